"""Validation: held-out ratings that are measured after every iteration of a fit, and the best state so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from onebit_spark.core.engine import Engine
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.scales import ScaleHierarchy
from onebit_spark.core.solver import Iteration, Outcome
from onebit_spark.engines.held_out_loss import Measure
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import column_problem, quoted, type_of
from onebit_spark.input.defects import check_ratings
from onebit_spark.input.rating_checks import Columns, RatingCounts


def divided(dataset: DataFrame, indicator: str | None) -> tuple[DataFrame, DataFrame | None]:
    """The ratings to fit, and those for validation: the rows where the boolean column ``indicator`` is true."""
    if indicator is None:
        return dataset, None
    if column_problem(dataset, indicator) or not isinstance(type_of(dataset, indicator), BooleanType):
        raise RequestError(f"validationIndicatorCol {indicator!r} must be a boolean column of the ratings")
    message = f"validationIndicatorCol {indicator!r} holds a null: say true or false for every rating"
    held_out = F.coalesce(F.col(quoted(indicator)), F.raise_error(F.lit(message)))
    return dataset.where(~held_out), dataset.where(held_out)


@dataclass(frozen=True)
class _State:
    """What the fit had reached after an iteration."""

    number: int
    loss: float
    hierarchy: ScaleHierarchy
    posteriors: dict[Side, Any]


class Validation:
    """Called after every iteration; ``history`` holds the held-out loss and error rate of each."""

    def __init__(self, measure: Measure, engine: Engine[Any], patience: int) -> None:
        self._measure = measure
        self._engine = engine
        self._patience = patience
        self._best: _State | None = None
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0

    def begin(self, choice: Any) -> None:
        """All settings are welcome."""

    def __call__(self, engine: Engine[Any], hierarchy: ScaleHierarchy, history: list[Iteration]) -> str | None:
        """Measure; the reason to stop, if there is one."""
        began, iteration = time.perf_counter(), history[-1]
        posteriors: dict[Side, Any] = {side: engine.posterior(side) for side in SIDES}
        loss, error = self._measure(hierarchy.scales, posteriors)
        self.seconds += time.perf_counter() - began
        self.history.append({"loss": loss, "error": error})
        if self._best is None or loss < self._best.loss:
            kept = {side: posterior.copy() for side, posterior in posteriors.items()}  # the driver's change in place
            self._best = _State(iteration.number, loss, hierarchy, kept)
        if iteration.number - self._best.number >= self._patience:
            return f"none lower in patience = {self._patience} iterations"
        return None

    def best(self, outcome: Outcome[ScaleHierarchy]) -> Outcome[ScaleHierarchy]:
        """The fit as it was when the held-out loss was lowest, in the engine too.

        It has converged only if that was in the iteration that converged.
        """
        last = len(outcome.history)
        if len(self.history) < last:  # an iteration that converges ends the fit before it is measured
            self(self._engine, outcome.hierarchy, outcome.history)
        assert self._best is not None
        if self._best.number == last:
            return outcome
        self._engine.start_from(self._best.posteriors)
        reason = f"the validation loss was lowest in iteration {self._best.number} of {last} ({outcome.reason})"
        kept = outcome.history[: self._best.number]
        return Outcome(self._best.hierarchy, kept, False, reason)


def check_validation(ratings: DataFrame, columns: Columns) -> RatingCounts:
    """The tally of the ratings for validation."""
    try:
        return check_ratings(ratings, columns)
    except RequestError as error:
        raise RequestError(f"the validation ratings: {error}") from None
