"""Progress of an experiment: one bar for all its tasks on a terminal, some lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from onebit_spark.cli.bar import bar
from onebit_spark.cli.progress import duration

LINE_EVERY_SECONDS = 10.0


class TaskProgress:
    """Counts the tasks of one experiment, over all its stages. Callers must not call it from two threads at once."""

    def __init__(self, total: int, name: str, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.total, self.name, self.quiet = total, name, quiet
        self.stream = stream or sys.stderr
        self.done = self.worked = 0  # all of them, and those that took time in this run
        self.seconds = 0.0
        self._bar = None if quiet else bar(total, name, self.stream, "{desc} {n}/{total} |{bar}| {elapsed}{postfix}")
        self._shown, self._shown_at = -1, time.monotonic()

    def advance(self, tasks: int, seconds: float) -> None:
        """So many more tasks are done, in so many seconds on the clock. 0 seconds: they were done before."""
        self.done += tasks
        if seconds:
            self.worked, self.seconds = self.worked + tasks, self.seconds + seconds
        if self._bar is not None:
            self._bar.set_postfix_str(self._left(), refresh=False)
            self._bar.update(tasks)
        elif not self.quiet and time.monotonic() - self._shown_at >= LINE_EVERY_SECONDS:
            self._write_line()

    def __enter__(self) -> TaskProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif not self.quiet and self._shown != self.done:
            self._write_line()

    def _write_line(self) -> None:
        print(f"{self.name}: {self.done:,} of {self.total:,} fits{self._left()}", file=self.stream, flush=True)
        self._shown, self._shown_at = self.done, time.monotonic()

    def _left(self) -> str:
        left = self.total - self.done
        return f", about {duration(left * self.seconds / self.worked)} left" if left and self.worked else ""
