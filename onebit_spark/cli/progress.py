"""Progress of a fit: a bar on a terminal, some lines in a log, nothing if quiet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TextIO

import numpy as np

from onebit_spark.cli.bar import bar
from onebit_spark.core.solver import WINDOW, Iteration, distance, recent_fall

LINE_EVERY_SECONDS = 5.0
LINE_EVERY_ITERATIONS = 10
TREND = 10  # number of last iterations whose trend is extrapolated
SPREAD = 1.25  # the largest ratio of two estimates that is worth a word


class Progress:
    """Shows each iteration when it is done. Pass it as the progress callback of a fit.

    >>> with Progress(max_iter=100, tol=1e-5) as progress:        # doctest: +SKIP
    ...     model = estimator.setProgress(progress).fit(ratings)
    """

    def __init__(self, max_iter: int, tol: float, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.max_iter, self.tol, self.quiet = max_iter, tol, quiet
        self.stream = stream or sys.stderr
        self.iterations: list[Iteration] = []
        self._bar: Any = None  # tqdm's
        self._shown = 0  # number of the iteration in the last line
        self._shown_at = -math.inf

    def __call__(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        if self.quiet:
            return
        if self._bar is None and len(self.iterations) == 1:
            self._bar = bar(self.max_iter, "iteration", self.stream, "{desc} |{bar}| {elapsed}{postfix}")
        if self._bar is not None:
            self._move_bar(iteration)
        elif (
            iteration.number == 1
            or iteration.number - self._shown >= LINE_EVERY_ITERATIONS
            or time.monotonic() - self._shown_at >= LINE_EVERY_SECONDS
        ):
            self._write_line(iteration)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the bar, or show the last iteration if its line was skipped."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self.iterations and not self.quiet and self._shown != self.iterations[-1].number:
            self._write_line(self.iterations[-1])

    @property
    def seconds(self) -> float:
        """Time spent in iterations so far."""
        return sum(iteration.seconds for iteration in self.iterations)

    def _move_bar(self, iteration: Iteration) -> None:
        expected = expected_iterations(self.iterations, self.tol, self.max_iter)
        self._bar.total = expected or self.max_iter
        self._bar.set_description_str(self._count(expected), refresh=False)
        missing = f"change {distance(self.iterations):.1e} (tol {self.tol:g})" if self._can_tell else ""
        self._bar.set_postfix_str(_joined(self._left(expected), missing), refresh=False)
        self._bar.update(iteration.number - self._bar.n)

    def _write_line(self, iteration: Iteration) -> None:
        expected = expected_iterations(self.iterations, self.tol, self.max_iter)
        told = f"{self._count(expected)}: objective {iteration.objective:.6g}"
        told = _joined(told, self._missing(), f"{self._seconds_each:.2g} s each", self._left(expected))
        print(told, file=self.stream, flush=True)
        self._shown, self._shown_at = iteration.number, time.monotonic()

    def _count(self, expected: int | None) -> str:
        number = self.iterations[-1].number
        if self.tol <= 0:
            return f"iteration {number} of {self.max_iter}"
        if expected == number:
            return f"iteration {number}, converged"
        return f"iteration {number} of " + (f"about {expected}" if expected else f"at most {self.max_iter}")

    def _left(self, expected: int | None) -> str:
        seconds = ((expected or self.max_iter) - self.iterations[-1].number) * self._seconds_each
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
    one says too few, the other too many. Their mean is told where they are close.
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
