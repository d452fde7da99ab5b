"""Fits that start from an earlier model: warm starts, and checkpoints, from which a killed fit can
continue.

FOLDER/iteration-000020/    a model folder of that iteration (see ``model``), so it can predict
    checkpoint.json         the history so far, and the settings and ratings of the fit

A checkpoint is written after every level of the choice of the settings (``iteration-000000``), and
then every few iterations. It appears whole or not at all, and only then the previous one is
deleted. Both posteriors are stored in the type in which they are held (float32), the scales and the
history in full. So a resumed fit ends at exactly the same result as one with the same checkpoints
that was never interrupted.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from onebit_spark.core.fit_state import FitState
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import Side
from onebit_spark.core.model_selection import SelectedModel
from onebit_spark.core.posterior import FIT_VECTORS, MODEL_VECTORS, RowPosterior
from onebit_spark.core.setup import chooses_kappa, kappa_of
from onebit_spark.core.solver import AfterIteration, Iteration, IterationPlan, Start
from onebit_spark.data.locations import MODEL, Location, replace_folder
from onebit_spark.data.ratings import RatingCounts
from onebit_spark.engines.base import T
from onebit_spark.engines.spark.sessions import described
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.fitting.finish import Fit, unfinished, unfinished_choice
from onebit_spark.model_info import METADATA, SIDE_OF, ModelInfo, prior_row
from onebit_spark.records import Fields
from onebit_spark.settings import AUTO, FORM_SETTINGS, FitConfig, Who, param_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("onebit_spark")

HISTORY = "checkpoint.json"
PREFIX = "iteration-"
OWNER = "fit-in-progress"  # a file with the token of the fit that uses the folder
MAY_DIFFER = ("max_iter", "tol")  # these may be changed when a fit is resumed


M = TypeVar("M")  # the model of a runtime
# (model, "user" or "item", prior, precision) ─► the posterior of the engine's ids from a model
Adopt = Callable[[M, Who, RowPosterior, str], T]


class ModelFiles(Protocol[M]):
    """How a runtime stores a model."""

    @property
    def spark(self) -> SparkSession | None: ...

    def load(self, path: str) -> M: ...

    def save(self, model: M, path: str) -> None:
        """Write the model into a folder that does not exist."""

    def info(self, model: M) -> ModelInfo: ...


class Checkpoint(NamedTuple, Generic[M]):
    model: M  # at this iteration
    info: ModelInfo
    history: list[Iteration]  # so far


def warm_start(
    model: M,
    info: ModelInfo,
    config: FitConfig,
    adopt: Adopt[M, T],
    vectors: int = MODEL_VECTORS,
    names: Mapping[str, str] | None = None,
) -> Start[T]:
    """The model's posterior of the engine's ids. Ids that the model does not know get its prior.

    ``vectors`` is the number of those of implicit features that are read. ``names`` are those of
    the settings in messages. Default: the names of the Params.
    """
    _check_form(info, config, param_names(FitConfig) if names is None else names)
    posteriors: dict[Side, T] = {}
    for who, side in SIDE_OF.items():
        prior = prior_row(info.scales, side, *info.table_form).with_vectors(MODEL_VECTORS, vectors)
        posteriors[side] = adopt(model, who, prior, config.precision)
    settings = {
        name: info.parameters[name] for name in ("rank", "likelihood_weight", "implicit_features")
    }
    return Start(posteriors, info.scales.without_feature_coef(), settings=settings)


def resumed(checkpoint: Checkpoint[M], config: FitConfig, adopt: Adopt[M, T]) -> Start[T]:
    """The state of an interrupted fit, from which it continues as if nothing had happened."""
    info = checkpoint.info
    start = warm_start(checkpoint.model, info, config, adopt, FIT_VECTORS)
    start = replace(start, scales=info.scales, history=checkpoint.history)
    if info.choice is None:
        return start
    planned = info.choice["planned"]
    plan = None if planned is None else IterationPlan(*planned)
    return replace(start, record=info.choice, earlier=info.choice["earlier"], planned=plan)


def _check_form(info: ModelInfo, config: FitConfig, names: Mapping[str, str]) -> None:
    """Refuse a model of another form.

    Settings that are chosen from the data may be those of the model.
    """
    there = info.config
    chosen = [name for name in FORM_SETTINGS if getattr(config, name) == AUTO]
    if config.implicit_features and (config.rank == AUTO or chooses_kappa(config)):
        chosen.append("implicit_features")
    differing = [
        f"{names.get(name, name)} is {getattr(there, name)} there and {getattr(config, name)} here"
        for name in FORM_SETTINGS
        if getattr(there, name) != getattr(config, name) and name not in chosen
    ]
    if config.rank == AUTO and there.factors > config.max_rank:
        most = names.get("max_rank", "max_rank")
        differing.append(f"it has {there.factors} factors, and {most} is {config.max_rank} here")
    if differing:
        raise RequestError(f"the initial model has other settings: {'; '.join(differing)}")


class CheckpointFolder(Generic[M]):
    """The checkpoints of one fit. ``subject`` identifies the fit: see ``subject_of``.

    While a fit runs, the file ``OWNER`` holds its token, so a second fit in the same folder is
    refused.
    """

    def __init__(self, files: ModelFiles[M], folder: str, subject: Fields) -> None:
        self._files = files
        self._folder = Location(files.spark, folder)
        self._subject = subject
        self._token = uuid.uuid4().hex

    @contextmanager
    def claimed(self, resume: bool) -> Iterator[Checkpoint[M] | None]:
        """The newest checkpoint, or None.

        No other fit may use the folder, unless it resumes this one.
        """
        owner = self._folder / OWNER
        earlier = self.newest(resume)
        if owner.exists() and not resume:
            raise RequestError(
                f"another fit writes its checkpoints to {self._folder.uri}, or was killed there: "
                "choose another "
                "folder, or resume"
            )
        owner.write_text(self._token)
        try:
            yield earlier
        finally:
            if self._owner() == self._token:
                owner.delete()

    def _owner(self) -> str | None:
        with suppress(OSError):
            return (self._folder / OWNER).read_text()
        return None

    def newest(self, resume: bool) -> Checkpoint[M] | None:
        """The newest checkpoint, or None. Refuses a checkpoint of another fit."""
        complete = complete_checkpoints(self._folder)
        if not complete:
            if resume:
                log.info("no checkpoint in %s: the fit starts from the beginning", self._folder.uri)
            return None
        if not resume:
            raise RequestError(
                f"there is a checkpoint in {self._folder.uri}: resume from it, or choose another "
                "folder"
            )
        content = json.loads((complete[-1] / HISTORY).read_text())
        differing = [
            f"{name} was {content['subject'].get(name)} and is {value}"
            for name, value in self._subject.items()
            if content["subject"].get(name) != value
        ]
        if differing:
            raise RequestError(
                f"the checkpoint {complete[-1].uri} is of another fit: {'; '.join(differing)}"
            )
        model = self._files.load(complete[-1].uri)
        history = [
            Iteration(
                **{**step, "decrease": math.inf if step["decrease"] is None else step["decrease"]}
            )
            for step in content["history"]
        ]
        log.info(
            "resuming after iteration %d, from the checkpoint %s", len(history), complete[-1].uri
        )
        return Checkpoint(model, self._files.info(model), history)

    def write(self, iterations: list[Iteration], make_model: Callable[[], M]) -> None:
        """Write a checkpoint of an unfinished fit, then delete the older ones."""
        if self._owner() not in (self._token, None):
            raise FitFailed(
                f"another fit has resumed from the checkpoints in {self._folder.uri}: this one "
                "ends here"
            )
        spark = self._files.spark
        older = complete_checkpoints(self._folder)
        number = len(iterations)
        target = self._folder / f"{PREFIX}{number:06d}"
        with described(spark, f"checkpoint of iteration {number}"):
            model = make_model()
            with replace_folder(spark, target.uri, MODEL, overwrite=True) as folder:
                # JSON has no infinity: the first iteration's decrease becomes null
                history = [
                    {
                        **asdict(step),
                        "decrease": step.decrease if math.isfinite(step.decrease) else None,
                    }
                    for step in iterations
                ]
                content = {"subject": self._subject, "history": history}
                (Location(spark, folder) / HISTORY).write_text(json.dumps(content, allow_nan=False))
                self._files.save(model, folder)
            for old in older:
                if old.uri != target.uri:
                    old.delete()


def complete_checkpoints(folder: Location) -> list[Location]:
    """All complete checkpoints in a folder. The newest is last."""
    candidates = sorted(folder.children(), key=lambda place: place.name)
    return [
        place
        for place in candidates
        if place.name.startswith(PREFIX) and (place / METADATA).exists()
    ]


def clear_checkpoints(spark: SparkSession | None, folder: str) -> None:
    """Delete all checkpoints, also those that a killed driver did not finish.

    Call it when the model is saved.
    """
    for place in Location(spark, folder).children():
        if place.name == OWNER or place.name.lstrip(".").startswith(PREFIX):
            place.delete()


def subject_of(
    config: FitConfig,
    counts: RatingCounts,
    features: dict[str, int] | None = None,
) -> Fields:
    """What identifies a fit: the ratings, and all settings that its iterations depend on."""
    return {
        "ratings": counts.n,
        "fingerprint of the ratings": counts.fingerprint,
        **{name: value for name, value in asdict(config).items() if name not in MAY_DIFFER},
        "likelihood_weight": AUTO if chooses_kappa(config) else kappa_of(config),
        **{f"fingerprint of the {who} features": value for who, value in (features or {}).items()},
    }


@dataclass(frozen=True)
class Keeper(Generic[M, T]):
    """Stores an unfinished fit after every level of the choice, and then every few iterations."""

    folder: CheckpointFolder[M] | None  # None: it stores nothing
    interval: int  # iterations
    make: Callable[[Fit[T]], M]

    def after_level(self, choice: SelectedModel[T]) -> None:
        if self.folder is not None:
            self._write(self.folder, unfinished_choice(choice))

    def after_iterations_of(self, choice: SelectedModel[T]) -> AfterIteration[T] | None:
        folder = self.folder
        if folder is None:
            return None

        def after_iteration(
            state: FitState[T],
            scales: HyperPosterior,
            history: list[Iteration],
        ) -> None:
            if len(history) % self.interval == 0:
                self._write(folder, unfinished(state, choice, scales, history))

        return after_iteration

    def _write(self, folder: CheckpointFolder[M], fit: Fit[T]) -> None:
        folder.write(fit.history, partial(self.make, fit))
