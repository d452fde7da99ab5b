"""TrainingSummary: how a fit went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingSummary:
    """How the fit went.

    Parameters
    ----------
    objectiveHistory : list of float
        The objective after each iteration. It is minimised.
    totalIterations : int
        Number of iterations.
    converged : bool
        Whether the stopping rule held.
    reason : str
        Why the fit stopped.
    seconds : dict
        Seconds of each phase.
    validationHistory : list of dict
        Held-out loss and error rate after each iteration, with ``validationIndicatorCol``.
    """

    objectiveHistory: list[float]
    totalIterations: int
    converged: bool
    reason: str
    seconds: dict[str, float]
    validationHistory: list[dict[str, float]]
