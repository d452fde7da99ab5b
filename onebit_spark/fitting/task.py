"""What is to be fitted, and how the model of a fit is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from onebit_spark.certify.certificates import certificate_document
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.data.hashes import CellSketch, merged_sketch
from onebit_spark.data.ratings import Columns, RatingCounts
from onebit_spark.engines.base import T
from onebit_spark.fitting.checkpoints import ModelFiles
from onebit_spark.fitting.finish import Fit, info_of_fit, unrated_tables
from onebit_spark.model_info import FitFeatures, ModelInfo
from onebit_spark.records import Fields
from onebit_spark.settings import Execution, FitConfig, Terms, Who

M = TypeVar("M")  # the model of a runtime


@dataclass(frozen=True)
class FitTask(Generic[M]):
    """What is to be fitted, under settings that were checked."""

    config: FitConfig
    terms: Terms | None  # of certificates of draws
    columns: Columns
    id_types: Mapping[Who, str]  # Spark's types of the ids
    features: Mapping[Who, pa.Table] = field(default_factory=dict)  # side features
    execution: Execution = field(default_factory=Execution)
    exchange: Mapping[str, str] = field(default_factory=dict)  # where the fit runs, and why
    initial: M | None = None  # the model whose posterior the fit starts from


class Ratings(Protocol):
    """Ratings that were read and checked."""

    @property
    def counts(self) -> RatingCounts: ...

    def sketch(self) -> CellSketch | None:
        """Which cells are rated, if their ids are known outside this process."""


@dataclass(frozen=True)
class ModelParts(Generic[T]):
    """What a model is made of."""

    fit: Fit[T]
    state: FitState[T]
    info: ModelInfo
    newcomers: Mapping[Side, pa.Table]  # factors of ids with side features and without ratings
    certificate: Fields
    sketch: CellSketch | None


class ModelStore(ModelFiles[M], Protocol[M, T]):
    """How a runtime makes a model, stores it, and reads it as the start of another fit."""

    @property
    def setting_names(self) -> Mapping[str, str] | None:
        """The names of the settings in messages; None: those of the Params."""

    def make(self, parts: ModelParts[T]) -> M: ...

    def adopt(
        self,
        state: FitState[T],
        model: M,
        who: Who,
        prior: RowPosterior,
        precision: str,
    ) -> T:
        """The posterior of the state's ids. Those that the model lacks get the row of ``prior``."""


@dataclass(frozen=True)
class Maker(Generic[M, T]):
    """Makes the model of a fit."""

    task: FitTask[M]
    counts: RatingCounts
    store: ModelStore[M, T]
    state: FitState[T]
    features: Mapping[Side, FitFeatures]
    sketch: CellSketch | None

    def __call__(self, fit: Fit[T], seconds: Mapping[str, float] | None = None) -> M:
        """Without the seconds of its phases, the fit is unfinished: unrated ids are left out."""
        task = self.task
        unrated = {side: self.unrated(side) for side in SIDES}
        of_task = task.columns, task.id_types, unrated, task.exchange
        info = info_of_fit(fit, self.state, self.counts, *of_task, seconds or {})
        newcomers = {} if seconds is None else unrated_tables(fit, self.features, info)
        certificate = certificate_document(item.as_dict() for item in fit.certificates)
        parts = ModelParts(fit, self.state, info, newcomers, certificate, self.sketch)
        return self.store.make(parts)

    def unrated(self, side: Side) -> int:
        """The number of rows without ratings: of the engine, and of side features."""
        engine = self.state.engine
        known = self.features.get(side)
        without = 0 if known is None else len(known.unrated_ids)
        return engine.n_rows(side) - engine.count(side) + without

    def after(self, initial: Any) -> Maker[M, T]:
        """The same for a fit that starts from a model, whose cells count as fitted."""
        sketch = self.sketch
        if sketch is not None:
            sketch = merged_sketch(initial.fitted, sketch)
        return replace(self, sketch=sketch)
