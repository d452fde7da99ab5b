"""Progress of a fit or of an experiment: a bar on a terminal, some lines in a log, nothing if
quiet. And its seconds.

The bar is tqdm's (the extra "progress").
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from onebit_spark.core.solver import Iteration, distance
from onebit_spark.kernels.jit import compile_seconds

try:
    from tqdm import tqdm
except ModuleNotFoundError:
    tqdm = None

LINE_EVERY_SECONDS = 5.0
LINE_EVERY_ITERATIONS = 10
TASK_LINE_EVERY_SECONDS = 10.0
RECENT = 10  # iterations whose seconds are averaged


class Clock:
    """Seconds per phase: ``with clock("reading"): …``, once or more often. ``str(clock)`` lists all
    phases.

    Seconds in which kernels were compiled are a phase of their own, "compiling".
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        compiled = compile_seconds()
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


class _Display(ABC):
    """Shows how many of ``total`` steps are ``done``: by a bar on a terminal, if tqdm is installed;
    else by lines.
    """

    def __init__(
        self, name: str, total: int | None, form: str, quiet: bool, stream: TextIO | None
    ) -> None:
        self.name = name
        self.total = total
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.done = 0
        self._bar: Any = None  # tqdm's
        self._form = form  # of the bar
        self._shown = 0
        self._shown_at = -math.inf  # what was done at the last line, and when that was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar, or show the last step if its line was skipped."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._shown != self.done and not self.quiet:
            self._write(*self._words())

    def _show(self, line_is_due: bool) -> None:
        if self.quiet:
            return
        count, figures = self._words()
        if self._bar is None and tqdm is not None and self.stream.isatty():
            self._bar = tqdm(
                total=self.total, desc=count, file=self.stream, bar_format=self._form, mininterval=0
            )
        if self._bar is not None:
            self._bar.set_description_str(count, refresh=False)
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(self.done - self._bar.n)
        elif line_is_due:
            self._write(count, figures)

    def _write(self, count: str, figures: str) -> None:
        print(f"{count}: {figures}" if figures else count, file=self.stream, flush=True)
        self._shown = self.done
        self._shown_at = time.monotonic()

    @abstractmethod
    def _words(self) -> tuple[str, str]:
        """What is done, and the figures of it."""


class TaskProgress(_Display):
    """Counts the tasks of one experiment, over all its stages.

    Callers must not call it from two threads at once.
    """

    def __init__(
        self,
        total: int,
        name: str,
        unit: str = "fits",
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__(name, total, "{desc} |{bar}| {elapsed}{postfix}", quiet, stream)
        self.unit = unit
        self.worked = 0
        self.seconds = 0.0  # tasks that took time in this run, and their time
        self._shown = -1
        self._shown_at = time.monotonic()

    def advance(self, tasks: int, seconds: float) -> None:
        """Count tasks that took so many seconds on the clock. 0 seconds: they were done before."""
        self.done += tasks
        if seconds:
            self.worked = self.worked + tasks
            self.seconds = self.seconds + seconds
        self._show(time.monotonic() - self._shown_at >= TASK_LINE_EVERY_SECONDS)

    def _words(self) -> tuple[str, str]:
        left = self.total - self.done if self.total and self.worked else 0
        figures = f"about {duration(left * self.seconds / self.worked)} left" if left else ""
        return f"{self.name}: {self.done:,} of {self.total:,} {self.unit}", figures


class Progress(_Display):
    """Shows each iteration when it is done. Pass it as the progress callback of a fit.

    >>> with Progress(max_iter=100, tol=1e-5) as progress:        # doctest: +SKIP
    ...     model = estimator.setProgress(progress).fit(ratings)
    """

    def __init__(
        self, max_iter: int, tol: float, *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        # With a tolerance the number of iterations is unknown
        total = max_iter if tol <= 0 else None
        form = "{desc} |{bar}| {elapsed}{postfix}" if total else "{desc} {elapsed}{postfix}"
        super().__init__("iteration", total, form, quiet, stream)
        self.iterations: list[Iteration] = []

    def __call__(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        self.done = iteration.number
        late = time.monotonic() - self._shown_at >= LINE_EVERY_SECONDS
        self._show(late or self.done == 1 or self.done - self._shown >= LINE_EVERY_ITERATIONS)

    @property
    def seconds(self) -> float:
        return sum(iteration.seconds for iteration in self.iterations)

    def _words(self) -> tuple[str, str]:
        """The objective, the change that the stopping rule compares with the tolerance, and the
        seconds.
        """
        recent = [one.seconds for one in self.iterations[-RECENT:]]
        each = sum(recent) / len(recent)
        figures = [f"objective {self.iterations[-1].objective:.6g}"]
        if math.isfinite(change := distance(self.iterations)):
            figures.append(f"change {change:.1e}")
        figures.append(f"{each:.2g} s each")
        if self.total and (left := (self.total - self.done) * each) >= 0.5:
            figures.append(f"about {duration(left)} left")
        return f"iteration {self.done}" + (f" of {self.total}" if self.total else ""), ", ".join(
            figures
        )


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
