"""Progress of a fit or of an experiment: a bar on a terminal, some lines in a log, nothing if quiet. And its seconds.

The bar is tqdm's, if that is installed (the extra "progress"). Otherwise a terminal gets lines, as a log does.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TextIO

import numpy as np

from onebit_spark.core.solver import WINDOW, Iteration, distance, recent_fall

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None

LINE_EVERY_SECONDS = 5.0
LINE_EVERY_ITERATIONS = 10
TASK_LINE_EVERY_SECONDS = 10.0
TREND = 10  # number of last iterations whose trend is extrapolated
SPREAD = 1.25  # the largest ratio of two estimates that is worth a word


class Clock:
    """Seconds per phase: ``with clock("reading"): …``, once or more often. ``str(clock)`` lists all phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def split(self, phase: str, rest: str, part: str, seconds: float) -> None:
        """Divide a phase into a part of known length and the rest before it."""
        total = self.seconds.pop(phase)
        self.seconds |= {rest: max(0.0, total - seconds), part: seconds}

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())


def bar(total: int, name: str, stream: TextIO, form: str) -> Any:
    """A bar on the stream. None if the stream is not a terminal, or if tqdm is not installed."""
    if tqdm is None or not stream.isatty():
        return None
    return tqdm(total=total, desc=name, file=stream, bar_format=form, mininterval=0)


class _Display:
    """Shows how many steps are ``done``: by a bar, or by lines, the last of which is never skipped."""

    done: int

    def __init__(self, quiet: bool, stream: TextIO | None) -> None:
        self.quiet, self.stream = quiet, stream or sys.stderr
        self._bar: Any = None  # tqdm's
        self._shown, self._shown_at = 0, -math.inf  # what was done at the last line, and when that was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the bar, or show the last step if its line was skipped."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif not self.quiet and self._shown != self.done:
            self._write_line()

    def _write_line(self) -> None:
        print(self._line(), file=self.stream, flush=True)
        self._shown, self._shown_at = self.done, time.monotonic()

    def _line(self) -> str:
        raise NotImplementedError


class TaskProgress(_Display):
    """Counts the tasks of one experiment, over all its stages. Callers must not call it from two threads at once."""

    def __init__(self, total: int, name: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet, stream)
        self.total, self.name = total, name
        self.done = self.worked = 0  # all of them, and those that took time in this run
        self.seconds = 0.0
        if not quiet:
            self._bar = bar(total, name, self.stream, "{desc} {n}/{total} |{bar}| {elapsed}{postfix}")
        self._shown, self._shown_at = -1, time.monotonic()

    def advance(self, tasks: int, seconds: float) -> None:
        """So many more tasks are done, in so many seconds on the clock. 0 seconds: they were done before."""
        self.done += tasks
        if seconds:
            self.worked, self.seconds = self.worked + tasks, self.seconds + seconds
        if self._bar is not None:
            self._bar.set_postfix_str(self._left(), refresh=False)
            self._bar.update(tasks)
        elif not self.quiet and time.monotonic() - self._shown_at >= TASK_LINE_EVERY_SECONDS:
            self._write_line()

    def _line(self) -> str:
        return f"{self.name}: {self.done:,} of {self.total:,} fits{self._left()}"

    def _left(self) -> str:
        left = self.total - self.done
        return f", about {duration(left * self.seconds / self.worked)} left" if left and self.worked else ""


class Progress(_Display):
    """Shows each iteration when it is done. Pass it as the progress callback of a fit.

    >>> with Progress(max_iter=100, tol=1e-5) as progress:        # doctest: +SKIP
    ...     model = estimator.setProgress(progress).fit(ratings)
    """

    def __init__(self, max_iter: int, tol: float, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(quiet, stream)
        self.max_iter, self.tol, self.done = max_iter, tol, 0
        self.iterations: list[Iteration] = []

    def __call__(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        self.done = iteration.number
        if self.quiet:
            return
        if self._bar is None and len(self.iterations) == 1:
            self._bar = bar(self.max_iter, "iteration", self.stream, "{desc} |{bar}| {elapsed}{postfix}")
        if self._bar is not None:
            self._move_bar()
        elif (
            self.done == 1
            or self.done - self._shown >= LINE_EVERY_ITERATIONS
            or time.monotonic() - self._shown_at >= LINE_EVERY_SECONDS
        ):
            self._write_line()

    @property
    def seconds(self) -> float:
        """Time spent in iterations so far."""
        return sum(iteration.seconds for iteration in self.iterations)

    def _move_bar(self) -> None:
        expected = expected_iterations(self.iterations, self.tol, self.max_iter)
        self._bar.total = expected or self.max_iter
        self._bar.set_description_str(self._count(expected), refresh=False)
        missing = f"change {distance(self.iterations):.1e} (tol {self.tol:g})" if self._can_tell else ""
        self._bar.set_postfix_str(_joined(self._left(expected), missing), refresh=False)
        self._bar.update(self.done - self._bar.n)

    def _line(self) -> str:
        expected = expected_iterations(self.iterations, self.tol, self.max_iter)
        line = f"{self._count(expected)}: objective {self.iterations[-1].objective:.6g}"
        return _joined(line, self._missing(), f"{self._seconds_each:.2g} s each", self._left(expected))

    def _count(self, expected: int | None) -> str:
        if self.tol <= 0:
            return f"iteration {self.done} of {self.max_iter}"
        if expected == self.done:
            return f"iteration {self.done}, converged"
        return f"iteration {self.done} of " + (f"about {expected}" if expected else f"at most {self.max_iter}")

    def _left(self, expected: int | None) -> str:
        seconds = ((expected or self.max_iter) - self.done) * self._seconds_each
        return f"{'about' if expected else 'at most'} {duration(seconds)} left" if seconds >= 0.5 else ""

    def _missing(self) -> str:
        """What the fit waits for: of two changes that must be at most ``tol``, the larger."""
        if not self._can_tell:
            return ""
        fall, change = recent_fall(self.iterations), self.iterations[-1].change
        moved = f"which {'fell' if fall > 0 else 'rose'} by {abs(fall):.1e} in {WINDOW} iterations"
        return f"{moved if abs(fall) >= change else f'scores changed by {change:.1e}'} (tol {self.tol:g})"

    @property
    def _can_tell(self) -> bool:
        return self.tol > 0 and math.isfinite(distance(self.iterations))

    @property
    def _seconds_each(self) -> float:
        return float(np.mean([one.seconds for one in self.iterations[-TREND:]]))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def expected_iterations(history: Sequence[Iteration], tol: float, max_iter: int) -> int | None:
    """The expected number of iterations, all in all. None: nobody can tell.

    What must fall to ``tol`` falls like a geometric sequence in the end, and like a power of the iteration before. The
    one says too few, the other too many. Their mean is shown where they are close.
    """
    done = history[-1].number
    if tol <= 0:
        return max_iter
    if distance(history) <= tol:
        return done
    seen = range(max(WINDOW + 1, len(history) - TREND + 1), len(history) + 1)
    recent = [(history[n - 1].number, distance(history[:n])) for n in seen]
    if len(recent) < 3 or min(value for _, value in recent) <= 0:
        return None
    numbers, logs = np.array([number for number, _ in recent], float), np.log([value for _, value in recent])
    aim = math.log(tol) - logs[-1]
    slope, power = (float(np.polyfit(steps, logs, 1)[0]) for steps in (numbers, np.log(numbers)))
    if slope >= 0 or power >= 0 or aim / power > math.log(max_iter):
        return None
    few, many = done + aim / slope, done * math.exp(aim / power)
    expected = max(done + 1, round((few + many) / 2))
    return expected if many <= SPREAD * few and expected <= max_iter else None


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
