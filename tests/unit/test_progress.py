"""The progress display: a bar on a terminal, few lines elsewhere, nothing when quiet."""

import io
import re
from dataclasses import replace

import pytest

from onebit_spark.cli import progress as module
from onebit_spark.cli.progress import Progress, TaskProgress, expected_iterations
from onebit_spark.core.config import FitConfig
from onebit_spark.core.solver import Iteration
from onebit_spark.in_process import fit_arrays
from onebit_spark.simulate import simulate


class Terminal(io.StringIO):
    def isatty(self):
        return True


def iterations(n, decay=0.5, seconds=0.1, begin=0.1):
    """The objective falls to 1000, geometrically, and the scores move less."""
    objectives = [1000.0 * (1 + begin * decay**t) for t in range(n + 1)]
    return [
        Iteration(t, objectives[t], 0.0, 1 - objectives[t] / objectives[t - 1], 1e-6 * decay**t, seconds)
        for t in range(1, n + 1)
    ]


def shown(n, stream, seconds=0.1, **options):
    with Progress(100, 1e-5, stream=stream, **options) as progress:
        for iteration in iterations(n, seconds=seconds):
            progress(iteration)
    return stream.getvalue()


def test_lines_come_first_last_and_every_ten_iterations():
    lines = shown(25, io.StringIO()).splitlines()
    assert [int(re.match(r"iteration (\d+)", line)[1]) for line in lines] == [1, 11, 21, 25]
    assert lines[0] == "iteration 1 of at most 100: objective 1050, 0.1 s each, at most 10 s left"
    assert all("(tol 1e-05), 0.1 s each" in line for line in lines[1:])


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
    text = shown(14, Terminal(), seconds=1.0)
    assert "\riteration 12 of at most 100 |" in text
    assert "\riteration 14 of about 20 |" in text
    assert "about 6 s left, change 1.9e-04 (tol 1e-05)" in text


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
    """Over five iterations the objective falls by 3.1·½^t, which is below 1e−5 from t = 19 on."""
    assert [expected_iterations(iterations(seen), 1e-5, 100) for seen in (14, 16, 18, 19)] == [20, 19, 19, 19]


def test_without_an_end_there_are_as_many_as_asked():
    assert expected_iterations(iterations(10), 0.0, 100) == 100


@pytest.mark.parametrize(
    ("history", "tol"),
    [
        (iterations(7), 1e-5),  # too few to see a trend
        (iterations(10, decay=1.1), 1e-5),  # away from tol
        (iterations(10, decay=0.9999), 1e-9),  # further than max_iter
        (iterations(30, decay=0.9), 1e-9),  # too far to tell: 157 if it is geometric, ever so many if not
    ],
)
def test_without_a_trend_nothing_is_promised(history, tol):
    assert expected_iterations(history, tol, 1000) is None
    progress = Progress(1000, tol, stream=io.StringIO())
    progress.iterations = list(history[:-1])
    progress(history[-1])
    assert "of at most 1000: objective" in progress.stream.getvalue()


def test_the_larger_of_two_changes_is_shown():
    steps = [replace(step, change=0.02) for step in iterations(11)]
    stream = io.StringIO()
    with Progress(100, 1e-5, stream=stream) as progress:
        for step in steps:
            progress(step)
    assert "objective 1000.05, scores changed by 2.0e-02 (tol 1e-05)" in stream.getvalue()


def test_a_fit_is_shown_by_what_it_waits_for(monkeypatch):
    """No line but the last says that the end is reached, in numbers or in words."""
    monkeypatch.setattr(module, "LINE_EVERY_ITERATIONS", 1)
    data, stream = simulate("B2", 2, (60, 40), 0.5, seed=3), io.StringIO()
    with Progress(100, 1e-5, stream=stream) as progress:
        fit = fit_arrays(data.rows, data.cols, data.labels, FitConfig(rank=3), on_iteration=progress)
    assert fit.converged
    *going_on, last = stream.getvalue().splitlines()
    assert len(going_on) + 1 == len(progress.iterations) > 10
    for number, line in enumerate(going_on, 1):
        of = re.match(rf"iteration {number} of (about|at most) (\d+): ", line)
        assert int(of[2]) > number
        waits_for = re.search(r"(?:which fell|changed) by (\S+) .*\(tol 1e-05\)", line)
        assert number < 6 if waits_for is None else float(waits_for[1]) >= 1e-5
    assert any("of about" in line for line in going_on)
    assert last.startswith(f"iteration {len(progress.iterations)}, converged: ")
    assert float(re.search(r"by (\S+) ", last)[1]) <= 1e-5


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (99, "99 s"), (240, "4 min"), (7500, "2 h 05 min")])
def test_durations(seconds, text):
    assert module.duration(seconds) == text


def test_progress_is_over_all_tasks_and_says_how_long(monkeypatch):
    monkeypatch.setattr("onebit_spark.cli.progress.TASK_LINE_EVERY_SECONDS", 0.0)
    stream = io.StringIO()
    with TaskProgress(10, "tables", stream=stream) as progress:
        progress.advance(4, seconds=0.0)  # done in an earlier run: says nothing about the speed
        progress.advance(2, seconds=6.0)
        progress.advance(4, seconds=12.0)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tables: 4 of 10 fits"
    assert lines[1] == "tables: 6 of 10 fits, about 12 s left"
    assert lines[2] == "tables: 10 of 10 fits"
    assert len(lines) == 3


def test_progress_on_a_terminal_is_one_bar():
    stream = Terminal()
    with TaskProgress(4, "noise", stream=stream) as progress:
        progress.advance(2, seconds=10.0)
    assert re.search(r"noise 2/4 \|.*about 10 s left", stream.getvalue())
    assert "\n" not in stream.getvalue().strip()
