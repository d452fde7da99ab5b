"""The progress display: a bar on a terminal, few lines elsewhere, nothing when quiet."""

import io
import math

import pytest

from onebit_spark.cli import progress as module
from onebit_spark.cli.progress import Progress, expected_iterations
from onebit_spark.core.solver import Iteration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def iterations(n, decay=0.5, seconds=0.1, begin=0.1):
    return [
        Iteration(t, 1000.0 - t, 0.0, math.inf if t == 1 else begin * decay**t, begin * decay**t, seconds)
        for t in range(1, n + 1)
    ]


def shown(n, stream, **options):
    with Progress(100, 1e-5, stream=stream, **options) as progress:
        for iteration in iterations(n):
            progress(iteration)
    return stream.getvalue()


def test_lines_come_first_last_and_every_ten_iterations():
    lines = shown(25, io.StringIO()).splitlines()
    assert [int(line.split()[1]) for line in lines] == [1, 11, 21, 25]
    assert "objective 999" in lines[0]
    assert "of at most 100" in lines[0]
    assert all("change" in line and "s each" in line for line in lines)


def test_the_last_line_is_not_repeated():
    assert len(shown(1, io.StringIO()).splitlines()) == 1
    assert len(shown(11, io.StringIO()).splitlines()) == 2


def test_slow_iterations_have_a_line_every_five_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(100, 1e-5, stream=stream)
    for iteration in iterations(6, seconds=2.0):
        now[0] += 2.0
        progress(iteration)
    assert [int(line.split()[1]) for line in stream.getvalue().splitlines()] == [1, 4]


def test_a_terminal_has_a_bar():
    text = shown(12, Terminal())
    assert "objective 988" in text
    assert "change" in text
    assert "left" in text
    assert "\r" in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet_says_nothing(stream):
    assert shown(30, stream(), quiet=True) == ""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_iteration_no_word(stream):
    assert shown(0, stream()) == ""


def test_seconds_are_summed():
    progress = Progress(10, 0.0, quiet=True)
    for iteration in iterations(4, seconds=0.25):
        progress(iteration)
    assert progress.seconds == 1.0


def test_a_geometric_decay_is_carried_on_to_tol():
    """0.1·½^t ≤ 1e−5 from t = 14 on."""
    for seen in (4, 8, 13):
        assert expected_iterations(iterations(seen), 1e-5, 100) == 14


@pytest.mark.parametrize(
    ("history", "tol"),
    [
        (iterations(2), 1e-5),  # too few to see a trend
        (iterations(10), 0.0),  # runs max_iter
        (iterations(10, decay=1.0), 1e-5),  # no progress
        (iterations(10, decay=1.1), 1e-5),  # away from tol
        (iterations(10, decay=0.9999), 1e-9),  # further than max_iter
        (iterations(10, begin=0.0), 1e-5),  # nothing moves at all
    ],
)
def test_without_a_trend_the_limit_is_expected(history, tol):
    assert expected_iterations(history, tol, 100) == 100


def test_never_fewer_than_are_done():
    assert expected_iterations(iterations(20), 1e-5, 100) == 20


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (240, "4 min"), (7500, "2 h 05 min")])
def test_durations(seconds, text):
    assert module.duration(seconds) == text
