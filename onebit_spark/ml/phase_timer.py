"""Laps: the seconds of the phases of a fit."""

from __future__ import annotations

import time


class Laps:
    """Seconds of the phases of a fit."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def move(self, seconds: float, phase: str, into: str) -> None:
        """Count these seconds of a phase as another's."""
        self.seconds[phase] -= seconds
        self.seconds[into] = seconds
