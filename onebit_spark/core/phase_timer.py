"""The seconds of the phases of a fit."""

from __future__ import annotations

import time

from onebit_spark.core.solver import Iteration


class PhaseTimer:
    """Seconds of the phases of a fit."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str) -> None:
        """The phase that began with the end of the last one is over."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now

    def divide_fit(self, iterations: list[Iteration], validation: float | None) -> None:
        """Of the seconds of the fit, those beside its iterations: the start, and the validation if there was one."""
        self.seconds["start"] = self.seconds["fit"] - sum(step.seconds for step in iterations)
        if validation is not None:
            self.seconds["start"] -= validation
            self.seconds["validation"] = validation
