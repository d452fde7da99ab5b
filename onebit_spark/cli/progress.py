"""Progress of a fit or of an experiment: a bar on a terminal, some lines in a log, nothing if quiet. And its seconds.

The bar is tqdm's, if that is installed (the extra "progress"). Otherwise a terminal gets lines, as a log does.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from onebit_spark.core.compiled import compile_seconds
from onebit_spark.core.solver import Iteration, distance

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None

LINE_EVERY_SECONDS = 5.0
LINE_EVERY_ITERATIONS = 10
TASK_LINE_EVERY_SECONDS = 10.0
RECENT = 10  # iterations whose seconds are averaged


class Clock:
    """Seconds per phase: ``with clock("reading"): …``, once or more often. ``str(clock)`` lists all phases.

    Seconds in which kernels were compiled are a phase of their own, "compiling".
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began, compiled = time.perf_counter(), compile_seconds()
        yield
        seconds = time.perf_counter() - began
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        compiling = min(seconds, compile_seconds() - compiled)
        if compiling > 0.0:
            self.move(phase, "compiling", compiling)

    def move(self, phase: str, part: str, seconds: float) -> None:
        """Book some seconds of a phase under another name, after it."""
        seconds = min(seconds, self.seconds[phase])
        self.seconds[phase] -= seconds
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())


def bar(total: int | None, name: str, stream: TextIO, form: str) -> Any:
    """A bar on the stream. None if the stream is not a terminal, or if tqdm is not installed."""
    if tqdm is None or not stream.isatty():
        return None
    return tqdm(total=total, desc=name, file=stream, bar_format=form, mininterval=0)


class _Display(ABC):
    """Shows how many steps are ``done``: by a bar, or by lines, the last of which is never skipped."""

    done: int

    def __init__(self, quiet: bool, stream: TextIO | None) -> None:
        self.quiet, self.stream = quiet, stream or sys.stderr
        self._bar: Any = None  # tqdm's
        self._shown, self._shown_at = 0, -math.inf  # what was done at the last line, and when that was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar, or show the last step if its line was skipped."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif not self.quiet and self._shown != self.done:
            self._write_line()

    def _write_line(self) -> None:
        print(self._line(), file=self.stream, flush=True)
        self._shown, self._shown_at = self.done, time.monotonic()

    @abstractmethod
    def _line(self) -> str:
        """The line that describes the state."""


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
        self.total = max_iter if tol <= 0 else None  # with a tolerance the number of iterations is unknown
        self.done = 0
        self.iterations: list[Iteration] = []

    def __call__(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        self.done = iteration.number
        if self.quiet:
            return
        if self._bar is None and len(self.iterations) == 1:
            form = "{desc} |{bar}| {elapsed}{postfix}" if self.total else "{desc} {elapsed}{postfix}"
            self._bar = bar(self.total, "iteration", self.stream, form)
        if self._bar is not None:
            self._bar.set_description_str(self._count(), refresh=False)
            self._bar.set_postfix_str(", ".join(self._figures()), refresh=False)
            self._bar.update(self.done - self._bar.n)
        elif (
            self.done == 1
            or self.done - self._shown >= LINE_EVERY_ITERATIONS
            or time.monotonic() - self._shown_at >= LINE_EVERY_SECONDS
        ):
            self._write_line()

    @property
    def seconds(self) -> float:
        return sum(iteration.seconds for iteration in self.iterations)

    def _line(self) -> str:
        return f"{self._count()}: {', '.join(self._figures())}"

    def _count(self) -> str:
        return f"iteration {self.done}" + (f" of {self.total}" if self.total else "")

    def _figures(self) -> Iterator[str]:
        """The objective, the change that the stopping rule compares with the tolerance, and the seconds."""
        yield f"objective {self.iterations[-1].objective:.6g}"
        if math.isfinite(change := distance(self.iterations)):
            yield f"change {change:.1e}"
        recent = [one.seconds for one in self.iterations[-RECENT:]]
        each = sum(recent) / len(recent)
        yield f"{each:.2g} s each"
        if self.total and (left := (self.total - self.done) * each) >= 0.5:
            yield f"about {duration(left)} left"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
