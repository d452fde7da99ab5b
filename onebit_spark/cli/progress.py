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
from onebit_spark.core.solver import Iteration

LINE_EVERY_SECONDS = 5.0
LINE_EVERY_ITERATIONS = 10
TREND = 5  # number of last iterations whose trend is extrapolated


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
            form = "{desc} {n}/{total} |{bar}| {elapsed}, about {remaining} left{postfix}"
            self._bar = bar(self.max_iter, "iteration", self.stream, form)
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
        self._bar.total = expected_iterations(self.iterations, self.tol, self.max_iter)
        self._bar.set_postfix_str(f"objective {iteration.objective:.6g}, change {iteration.change:.1e}", refresh=False)
        self._bar.update()

    def _write_line(self, iteration: Iteration) -> None:
        expected = expected_iterations(self.iterations, self.tol, self.max_iter)
        each = float(np.mean([one.seconds for one in self.iterations[-TREND:]]))
        left = (expected - iteration.number) * each
        print(
            f"iteration {iteration.number} of {'at most' if expected == self.max_iter else 'about'} {expected}: "
            f"objective {iteration.objective:.6g}, change {iteration.change:.1e}, {each:.2g} s each"
            + (f", about {duration(left)} left" if left else ""),
            file=self.stream,
            flush=True,
        )
        self._shown, self._shown_at = iteration.number, time.monotonic()


def expected_iterations(history: Sequence[Iteration], tol: float, max_iter: int) -> int:
    """The expected number of iterations, if the changes go on falling to ``tol`` as in the last iterations."""
    done = history[-1].number
    recent = [max(abs(one.decrease), one.change) for one in history[-TREND:]]
    recent = [value for value in recent if 0 < value < math.inf]
    if tol <= 0 or len(recent) < 3:
        return max_iter
    slope = float(np.polyfit(np.arange(len(recent)), np.log(recent), 1)[0])
    if slope >= 0:
        return max_iter
    left = max(0, math.ceil(math.log(tol / recent[-1]) / slope))
    return min(max_iter, done + left)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
