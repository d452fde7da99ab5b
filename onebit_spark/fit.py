"""THE pipeline of a fit: ratings ─► choose ─► solve ─► certify ─► finish ─► model.

Every front end calls it:

    fit_arrays, fit_table, the classifier of scikit-learn, jobs without Spark    ``in_process``
    OneBitCompletion.fit, jobs on Spark                                          ``estimator``

A front end checks its input and opens an engine. A ``ModelStore`` makes the model of its runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from onebit_spark.certify.certificates import certificate_document
from onebit_spark.certify.draw_certificates import certify_draws
from onebit_spark.checkpoints import CheckpointFolder, ModelFiles, resumed, subject_of, warm_start
from onebit_spark.compile import compile_kernels
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_selection import SelectedModel, select_model
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.solver import Iteration, PhaseTimer, Start, solve
from onebit_spark.data.hashes import CellSketch, merged_sketch
from onebit_spark.data.ratings import Columns, RatingCounts
from onebit_spark.engines.base import T
from onebit_spark.finish import (
    Fit,
    finish,
    info_of_fit,
    unfinished,
    unfinished_choice,
    unrated_tables,
)
from onebit_spark.model_info import FitFeatures, ModelInfo, digest, give_features
from onebit_spark.settings import Execution, FitConfig, Terms, Who, available_cores

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
    certificate: dict[str, Any]
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


def fit_model(
    task: FitTask[M],
    ratings: Ratings,
    store: ModelStore[M, T],
    opening: AbstractContextManager[FitState[T]],
    on_iteration: Callable[[Iteration], None] | None = None,
    timer: PhaseTimer | None = None,
) -> M:
    """Fit ratings on the engine that ``opening`` opens; ``timer`` has the seconds of reading."""
    timer = timer or PhaseTimer()
    config = task.config
    if task.execution.device == "cpu" and available_cores() > 1:  # else as they are called
        compile_kernels(config, task.columns.weight is not None)
    with ExitStack() as release:
        checkpoints = checkpoint_folder(task, ratings.counts, store)
        earlier = None
        if checkpoints is not None:
            earlier = release.enter_context(checkpoints.claimed(task.execution.resume))
        sketch = ratings.sketch()  # before the memory is full of blocks
        state = release.enter_context(opening)
        features = give_features(state.features, task.features, task.columns.ids, state.ids)
        make = Maker(task, ratings.counts, store, state, features, sketch)
        start: Start[T] | None = None
        if earlier is not None:
            start = resumed(earlier, config, partial(store.adopt, state))
        elif task.initial is not None:
            make = make.after(task.initial)
            info = store.info(task.initial)
            names = store.setting_names
            start = warm_start(task.initial, info, config, partial(store.adopt, state), names=names)
        keep = None if checkpoints is None else Keeper(checkpoints, task, make)
        timer.end("blocking")
        after_level = None if keep is None else keep.after_level
        choice = select_model(state, config, start, after_level)
        after_iteration = None if keep is None else keep.after_iterations_of(choice)
        outcome = solve(state, choice.config, on_iteration, choice.start, after_iteration)
        certificates = certify_draws(state, choice, outcome, task.terms, ratings.counts.positives)
        fit = finish(state, choice, outcome, certificates)
        timer.end("fit")
        timer.divide_fit(choice.seconds, fit.history[0 if start is None else len(start.history) :])
        return make(fit, timer.seconds)


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
        return Maker(self.task, self.counts, self.store, self.state, self.features, sketch)


# ---- checkpoints ---------------------------------------------------------------------------------


def checkpoint_folder(
    task: FitTask[M],
    counts: RatingCounts,
    files: ModelFiles[M],
) -> CheckpointFolder[M] | None:
    folder = task.execution.checkpoint_dir
    if not folder:
        return None
    ids = task.columns.ids
    digests = {str(who): digest(table, ids[who]) for who, table in task.features.items()}
    return CheckpointFolder(files, folder, subject_of(task.config, counts, digests))


@dataclass(frozen=True)
class Keeper(Generic[M, T]):
    """Stores an unfinished fit after every level of the choice, and then every few iterations."""

    folder: CheckpointFolder[M]
    task: FitTask[M]
    make: Maker[M, T]

    def after_level(self, choice: SelectedModel[T]) -> None:
        self.write(unfinished_choice(choice))

    def after_iterations_of(
        self,
        choice: SelectedModel[T],
    ) -> Callable[[FitState[T], HyperPosterior, list[Iteration]], None]:
        def after_iteration(
            state: FitState[T],
            scales: HyperPosterior,
            history: list[Iteration],
        ) -> None:
            if len(history) % self.task.execution.checkpoint_interval == 0:
                self.write(unfinished(state, choice, scales, history))

        return after_iteration

    def write(self, fit: Fit[T]) -> None:
        self.folder.write(fit.history, partial(self.make, fit))
