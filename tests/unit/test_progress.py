"""The progress display: a bar on a terminal, few lines elsewhere, nothing when quiet."""

import io
import re
from dataclasses import replace

import pytest

from onebit_spark.cli import progress as module
from onebit_spark.cli.progress import Progress, TaskProgress
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import counted
from onebit_spark.in_process import fit_arrays
from onebit_spark.settings import FitConfig
from onebit_spark.simulate import simulate


class Terminal(io.StringIO):
    def isatty(self):
        return True


def iterations(n, decay=0.5, seconds=0.1, begin=0.1):
    """The objective falls to 1000, geometrically, and the scores move less."""
    objectives = [1000.0 * (1 + begin * decay**t) for t in range(n + 1)]
    return [
        Iteration(
            t, objectives[t], 0.0, 1 - objectives[t] / objectives[t - 1], 1e-6 * decay**t, seconds
        )
        for t in range(1, n + 1)
    ]


def shown(n, stream, seconds=0.1, **options):
    with Progress(100, 1e-5, stream=stream, **options) as progress:
        for iteration in iterations(n, seconds=seconds):
            progress(iteration)
    return stream.getvalue()


def test_lines_come_first_last_and_every_ten_iterations():
    # The last one is not repeated
    assert [len(shown(n, io.StringIO()).splitlines()) for n in (1, 11)] == [
        1,
        2,
    ]
    lines = shown(25, io.StringIO()).splitlines()
    assert [int(re.match(r"iteration (\d+)", line)[1]) for line in lines] == [1, 11, 21, 25]
    assert lines[0] == "iteration 1: objective 1050, 0.1 s each"
    assert lines[1] == "iteration 11: objective 1000.05, change 1.5e-03, 0.1 s each"


def test_slow_iterations_have_a_line_every_five_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(100, 1e-5, stream=stream)
    for iteration in iterations(6, seconds=2.0):
        now[0] += 2.0
        progress(iteration)
    assert [int(line.split()[1].rstrip(":")) for line in stream.getvalue().splitlines()] == [1, 4]


def test_a_terminal_has_a_bar():
    text = shown(14, Terminal(), seconds=1.0)
    assert "\riteration 12 " in text
    assert "objective 1000.01, change 1.9e-04, 1 s each" in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quiet_says_nothing(stream):
    assert shown(30, stream(), quiet=True) == shown(0, stream()) == ""


def test_seconds_are_summed():
    progress = Progress(10, 0.0, quiet=True)
    for iteration in iterations(4, seconds=0.25):
        progress(iteration)
    assert progress.seconds == 1.0


def test_a_fit_of_known_length_says_what_is_left():
    stream = io.StringIO()
    with Progress(15, 0.0, stream=stream) as progress:
        for iteration in iterations(11, seconds=2.0):
            progress(iteration)
    first, last = stream.getvalue().splitlines()
    assert first == "iteration 1 of 15: objective 1050, 2 s each, about 28 s left"
    assert last.startswith("iteration 11 of 15: objective 1000.05, change ")
    assert last.endswith(", 2 s each, about 8 s left")


def test_nothing_is_promised_of_a_fit_that_stops_by_itself(monkeypatch):
    """The length is chosen on a tenth of the ratings, so a fit may end long before its change is at
    the tolerance.
    """
    monkeypatch.setattr(module, "LINE_EVERY_ITERATIONS", 1)
    data = simulate("B2", 2, (60, 40), 0.5, seed=3)
    stream = io.StringIO()
    with Progress(100, 1e-5, stream=stream) as progress:
        fit_arrays(data.rows, data.cols, data.labels, FitConfig(rank=3), on_iteration=progress)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(progress.iterations) > 5
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(rf"iteration {number}: objective \S+(, change \S+)?, \S+ s each", line)


def test_the_larger_of_two_changes_is_shown():
    stream = io.StringIO()
    with Progress(100, 1e-5, stream=stream) as progress:
        for step in iterations(11):
            progress(replace(step, change=0.02))
    assert "objective 1000.05, change 2.0e-02, " in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (240, "4 min"), (7500, "2 h 05 min")]
)
def test_durations(seconds, text):
    assert module.duration(seconds) == text


def test_progress_is_over_all_tasks_and_says_how_long(monkeypatch):
    monkeypatch.setattr("onebit_spark.cli.progress.TASK_LINE_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    with TaskProgress(10, "tables", stream=stream) as progress:
        progress.advance(4, seconds=0.0)  # done in an earlier run, so it is no measure of the speed
        progress.advance(2, seconds=6.0)
        progress.advance(4, seconds=12.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tables: 4 of 10 fits"
    assert lines[1] == "tables: 6 of 10 fits: about 12 s left"
    assert lines[2] == "tables: 10 of 10 fits"
    assert len(lines) == 3


def test_progress_on_a_terminal_is_one_bar():
    stream = Terminal()
    with TaskProgress(4, "noise", stream=stream) as progress:
        progress.advance(2, seconds=10.0)
    assert re.search(r"noise: 2 of 4 fits \|.*about 10 s left", stream.getvalue())
    assert "\n" not in stream.getvalue().strip()


def test_one_is_singular():
    assert [counted(n, "rating") for n in (0, 1, 1200)] == [
        "0 ratings",
        "1 rating",
        "1,200 ratings",
    ]
