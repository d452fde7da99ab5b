"""Fits in this process, without Spark: ``fit_arrays`` of numpy arrays, ``fit_table`` of tables and
files by their ids.

Both check their input and open an engine; the fit itself is ``fit.fit_model``. All other engines
must agree with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from onebit_spark import model_info
from onebit_spark.certify.freshness import KEPT_OUT, fresh_to
from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_selection import at_start_rank
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.setup import form_of
from onebit_spark.core.solver import Iteration, PhaseTimer
from onebit_spark.data.features import SideFeatures, SideTables
from onebit_spark.data.files import ArrowTable, Unreadable
from onebit_spark.data.hashes import CellSketch
from onebit_spark.data.id_index import HeldIds, Ids
from onebit_spark.data.ratings import (
    ArrowRatings,
    Coding,
    CollectedRatings,
    Columns,
    Holdout,
    KeptRatings,
    RatingCounts,
    check_id_type,
    checked_lines,
    column_count_problem,
)
from onebit_spark.data.user_tables import checked_arrays, spark_name
from onebit_spark.engines.cuda.runner import CudaEngine
from onebit_spark.engines.threads import ThreadEngine
from onebit_spark.errors import RequestError, refuse
from onebit_spark.fit import fit_model
from onebit_spark.fitting.task import FitTask, ModelParts
from onebit_spark.model import FittedModel, load
from onebit_spark.model_folder import local_path, write_into
from onebit_spark.model_info import SIDE_OF, ModelInfo
from onebit_spark.predict.sides import ModelSide
from onebit_spark.records import Fields, Record
from onebit_spark.settings import (
    Execution,
    FitConfig,
    Labels,
    Problem,
    Terms,
    Who,
    device_problems,
    is_integer,
)

log = logging.getLogger("onebit_spark")


def fit_arrays(
    rows: ArrayLike,
    cols: ArrayLike,
    labels: ArrayLike,
    config: FitConfig | None = None,
    shape: tuple[int, int] | None = None,
    *,
    weights: ArrayLike | None = None,
    threads: int | None = None,
    device: str = "cpu",
    certify: Terms | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    row_features: ArrayLike | pa.Table | None = None,
    col_features: ArrayLike | pa.Table | None = None,
    initial_model: FittedModel | None = None,
) -> FittedModel:
    """Fit the ratings (rows[l], cols[l], labels[l]) in this process.

    A cell may be rated several times.

    The ids of the model are the numbers of the rows and columns.

    Parameters
    ----------
    rows, cols : array_like of int
        Row and column of each rating, from 0 on.
    labels : array_like
        ±1, 0/1 or booleans.
    shape : (int, int), optional
        Numbers of rows and columns. Rows and columns without ratings do not change the fit.
    weights : array_like, optional
        A weight per rating, which multiplies κ (docs/MATH.md, §16). A rating of weight 0 is left
        out. Default: all 1.
    row_features, col_features : array_like of numbers or pyarrow.Table, optional
        Side features, one line per row or column of the shape (docs/MATH.md, §15). They are
        standardised; nan counts as the mean. A table may have columns of numbers, booleans, strings
        and arrays of them.
    config, threads, device, certify, on_iteration, initial_model
        See ``fit_table``.

    Raises
    ------
    RequestError
        Lists all problems of the input and the settings.

    >>> from onebit_spark import FitConfig, fit_arrays
    >>> config = FitConfig(rank=1, tol=0, max_iter=20)
    >>> fit = fit_arrays([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], config)
    >>> fit.predict([0, 1], [0, 0]).tolist()
    [1.0, 1.0]
    """
    check_settings(config, certify)
    config = config or FitConfig()
    execution = Execution(device=device)
    terms = [] if certify is None else certify.problems()
    settings = [*execution.problems(), *config.problems(), *terms]
    settings += thread_problems(threads) + initial_problems(initial_model)
    settings = settings or device_problems(config, execution)
    ratings = rows, cols, labels, shape
    engine: ThreadEngine | CudaEngine
    if device == "cuda":
        form = form_of(at_start_rank(config))
        engine = CudaEngine.of_arrays(*ratings, settings, weights, form)
    else:
        checked = checked_arrays(*ratings, settings, weights)
        engine = ThreadEngine(RatingBlock.from_coordinates(*checked), threads)
    features: dict[Side, ArrayLike | pa.Table | None]
    features = {"rows": row_features, "cols": col_features}
    state = state_of_arrays(engine, features)
    counts = RatingCounts(engine.n_ratings, engine.positives, label_coding(labels), "")
    weight = "weight" if engine.weighted else None
    task = FitTask(
        config,
        certify,
        Columns(weight=weight),
        id_types={"user": "bigint", "item": "bigint"},
        execution=execution,
        initial=initial_model,
    )
    return fit_model(task, ArrayRatings(counts), ArrayModels(), state.running(), on_iteration)


def state_of_arrays(
    engine: ThreadEngine | CudaEngine,
    features: Mapping[Side, ArrayLike | pa.Table | None],
) -> FitState[RowPosterior]:
    """The state of a fit of arrays, whose ids are the numbers of the rows."""
    known: SideTables = {}
    for side, given in features.items():
        if given is not None:
            rated = engine.counts(side) > 0
            known[side] = SideFeatures.of_rows(given, rated, f"{side[:-1]}_features")
    ids = {side: HeldIds(pa.array(np.arange(engine.n_rows(side)))) for side in SIDES}
    return FitState(engine, known, ids)


class ArrayRatings(NamedTuple):
    """Ratings whose ids mean nothing outside this process."""

    counts: RatingCounts

    def sketch(self) -> None:
        return None


def label_coding(labels: ArrayLike) -> Coding:
    """How the labels are coded. Both classes occur, so some label is −1, 0 or False."""
    labels = np.asarray(labels)
    if labels.dtype == bool:
        return "boolean"
    return "binary" if labels.min() == 0 else "signed"


# ---- tables ------------------------------------------------------------------------------------


def fit_table(
    ratings: Any,
    config: FitConfig | None = None,
    *,
    user_col: str = "user",
    item_col: str = "item",
    label_col: str = "label",
    threshold: float | None = None,
    weight_col: str | None = None,
    user_features: Any = None,
    item_features: Any = None,
    certify: Terms | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
    threads: int | None = None,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    holdout: float | None = None,
    initial_model: FittedModel | None = None,
) -> FittedModel:
    """Fit a table of ratings in this process. Neither Java nor Spark is needed.

    Parameters
    ----------
    ratings : pyarrow.Table, DataFrame of pandas or polars, or path
        One line per rating. A path is that of a file or folder of Parquet, CSV or JSON lines, by
        its extension.
    config : FitConfig, optional
        The settings.
    user_col, item_col, label_col : str
        Names of the columns. Ids are of most types (docs/local.md). Labels are ±1, 0/1, booleans,
        or numbers with ``threshold``.
    threshold : float, optional
        Labels strictly greater are positive.
    weight_col : str, optional
        A column of weights, which multiply κ (docs/MATH.md, §16). A rating of weight 0 is left out.
    user_features, item_features : table or path, optional
        Side features: the column of the ids, and any others (§15).
    certify : Terms, optional
        Compute certificates on these terms.
    on_iteration : callable, optional
        Called after every iteration with an ``Iteration``.
    threads : int, optional
        Number of threads. Default: all cores.
    device : {"cpu", "cuda"}
        Where the fit runs. On a GPU it needs CuPy, and it is the same fit up to rounding
        (docs/SCALING.md).
    options : mapping, optional
        How the files of paths are read: ``{"sep": ";"}`` for example, and ``{"format": "csv"}``
        where the extension does not say it (docs/local.md).
    holdout : float, optional
        Keep the ratings of about this share of the cells out of the fit, and certify the
        predictions on them, on the terms of ``certify`` (docs/MATH.md, §9.2). They also give the
        figures of the report.
    initial_model : FittedModel, optional
        Start from the posterior of this model instead of the spectral start. Rank, loss,
        intercepts, covariance and implicit features must be the model's, or be chosen; ids that it
        does not know start at its prior. With ``holdout``, held-out ratings of cells that this
        model was fitted on do not count.

    Raises
    ------
    RequestError
        Lists all problems of the settings, or of the ratings with examples.

    >>> import pyarrow as pa
    >>> from onebit_spark import FitConfig, fit_table
    >>> users = ["ann", "ann", "bob", "bob", "eve"]
    >>> likes = {"user": users, "item": ["tea", "rum", "tea", "rum", "tea"]}
    >>> table = pa.table({**likes, "label": [1, 0, 1, 0, 1]})
    >>> model = fit_table(table, FitConfig(rank=1, max_iter=5, tol=0))
    >>> model.predict("eve", "rum").tolist()
    [0.0]
    """
    check_settings(config, certify)
    timer = PhaseTimer()
    config = config or FitConfig()
    labels = Labels(label_col=label_col, threshold=threshold, weight_col=weight_col)
    execution = Execution(device=device)
    asked = (config, labels, certify, execution)
    problems = [problem for part in asked if part is not None for problem in part.problems()]
    problems += thread_problems(threads) + initial_problems(initial_model)
    if holdout is not None and not 0 < holdout < 1:
        problems.append(Problem("holdout", f"must be a number between 0 and 1, not {holdout!r}"))
    if problems := problems or device_problems(config, execution):
        raise RequestError("; ".join(map(str, problems)))
    columns = Columns(user_col, item_col, label_col, threshold, weight_col)
    source = ArrowRatings(_opened(ratings, "the ratings", options), columns)
    given: dict[Who, Any] = {"user": user_features, "item": item_features}
    opened = {
        who: _opened(each, f"the {who} features", options)
        for who, each in given.items()
        if each is not None
    }
    ids = columns.ids
    types = source.id_types
    features = {
        who: checked_features(table, ids[who], types[who], who) for who, table in opened.items()
    }
    part = None if holdout is None else Holdout(holdout, config.seed, f"holdout={holdout}")
    to_fit, kept = source.divided(part)
    freshness: Record = KEPT_OUT
    if kept is not None and initial_model is not None:
        kept, freshness = unseen_by(initial_model, kept)
    task = FitTask(
        config,
        certify,
        columns,
        source.id_types,
        features,
        execution,
        initial=initial_model,
    )
    timer.end("survey")
    opening = driver_state(to_fit, config, device, threads)
    model = fit_model(task, to_fit, LocalModels(), opening, on_iteration, timer)
    return model if kept is None else certified_on(model, kept, certify or Terms(), freshness)


def certified_on(
    model: FittedModel,
    kept: KeptRatings,
    terms: Terms,
    freshness: Record,
) -> FittedModel:
    """The model with certificates, and the figures of its report, by ratings that were kept out."""
    on = model.judge_kept(kept)
    _, certificates = model.certify_on(on, CertificateRequest(terms), freshness)
    return model.diagnose_on(on, "held-out ratings").with_certificates(certificates)


def check_settings(config: object, certify: object) -> None:
    """Refuse settings that are no objects of their classes, such as dicts."""
    problems = []
    if not isinstance(config, FitConfig | None):
        problems.append(f"config must be a FitConfig, such as FitConfig(rank=3), not {config!r}")
    if not isinstance(certify, Terms | None):
        problems.append(f"certify must be Terms, such as Terms(delta=0.1), not {certify!r}")
    refuse(problems)


def thread_problems(threads: int | None) -> list[Problem]:
    if threads is None or (is_integer(threads) and threads >= 1):
        return []
    return [Problem("threads", f"must be an integer of at least 1, not {threads!r}")]


def initial_problems(model: object) -> list[Problem]:
    if model is None or isinstance(model, FittedModel):
        return []
    message = f"must be a FittedModel, not {type(model).__name__}: see onebit_spark.load"
    return [Problem("initial_model", message)]


def unseen_by(initial: FittedModel, kept: KeptRatings) -> tuple[KeptRatings, Fields]:
    """The held-out ratings of cells that the initial model was not fitted on, and their freshness:
    see ``fresh_to``.
    """
    known = initial.fitted
    n = len(kept.cells)
    cure = (
        "fit it with the same holdout and seed, or hold other ratings out yourself and "
        "certify on them"
    )
    if known is None:
        raise RequestError(
            "holdout does not go with this initial_model, which does not record the ratings that "
            "it was fitted on: "
            f"{cure}"
        )
    new = np.flatnonzero(~known.holds(kept.cells))
    left_out = n - len(new)
    if left_out and (not known.holds_all or left_out == n):
        which = f"all {n:,}" if left_out == n else f"at least {left_out:,} of the {n:,}"
        raise RequestError(
            "holdout does not go with this initial_model, which was fitted on the cells of "
            f"{which} held-out ratings: "
            f"{cure}"
        )
    if not known.holds_all:
        return kept, {**fresh_to(known, CellSketch.of(kept.cells, known.limit)), "by_coin": True}
    reason = f"{KEPT_OUT['reason']}, and the initial model was not fitted on their cells"
    if not left_out:
        return kept, {**KEPT_OUT, "reason": reason}
    log.warning(
        f"{left_out:,} of {n:,} held-out ratings are left out, because the initial model was "
        "fitted on their cells"
    )
    return kept.at(new), {**KEPT_OUT, "reason": reason, "left_out": left_out}


def _opened(given: Any, what: str, options: Mapping[str, str] | None) -> ArrowTable:
    try:
        return ArrowTable.of(given, options)
    except FileNotFoundError:
        raise RequestError(f"{what}: {given} does not exist") from None
    except Unreadable as error:
        raise RequestError(f"{what}: {given} {error}") from None


def checked_features(table: ArrowTable, column: str, id_type: str, who: Who) -> pa.Table:
    names = table.schema.names
    for name in (column, *names):
        if problem := column_count_problem(len(table.matching(name)), name, "", names):
            raise RequestError(f"{who} features: {problem}")
    (own,) = table.matching(column)
    check_id_type(column, spark_name(table.schema.field(own).type), id_type, who)
    return checked_lines(
        table.named({column if name == own else name: name for name in names}).table(), column, who
    )


# ---- engines and models of this process --------------------------------------------------------


@contextmanager
def driver_state(
    ratings: CollectedRatings,
    config: FitConfig,
    device: str,
    threads: int | None = None,
) -> Iterator[FitState[RowPosterior]]:
    """The state of a fit of these ratings, on the cores or the GPU of this machine."""
    engine: ThreadEngine | CudaEngine
    if device == "cpu":
        engine = ThreadEngine(ratings.ratings, threads)
    else:
        engine = CudaEngine.of_block(ratings.ratings, form_of(at_start_rank(config)))
    ids: dict[Side, Ids]
    ids = {"rows": HeldIds(ratings.users), "cols": HeldIds(ratings.items)}
    with FitState(engine, ids=ids).running() as state:
        yield state


class LocalModels:
    """Models in this process: see ``fitting.task.ModelStore``."""

    spark = None
    setting_names: Mapping[str, str] | None = {}  # as in Python

    def make(self, parts: ModelParts[RowPosterior]) -> FittedModel:
        params = {f"{who}Col": parts.info.columns[who] for who in SIDE_OF}
        return FittedModel(
            parts.info,
            self._side(parts, "user"),
            self._side(parts, "item"),
            parts.certificate,
            params=params,
            fitted=parts.sketch,
        )

    def _side(self, parts: ModelParts[RowPosterior], who: Who) -> ModelSide:
        side = SIDE_OF[who]
        rows = parts.state.engine.rows_here(parts.fit.posterior[side])
        measured = measured_here(parts, side)
        ids = parts.state.ids[side].values
        table = model_info.side_table(ids, rows, measured, parts.newcomers.get(side))
        return ModelSide.of(table, parts.info, who)

    def info(self, model: FittedModel) -> ModelInfo:
        return model.info

    def load(self, path: str) -> FittedModel:
        return load(path)

    def save(self, model: FittedModel, path: str) -> None:
        folder: Path = local_path(path)
        folder.mkdir(parents=True, exist_ok=True)
        sides = model.users, model.items
        write_into(folder, (model.info, *sides, model.certificate, model.params, model.fitted))

    def adopt(
        self,
        state: FitState[RowPosterior],
        model: FittedModel,
        who: Who,
        prior: RowPosterior,
        precision: str,
    ) -> RowPosterior:
        side = SIDE_OF[who]
        ids = state.ids[side].values
        factors = model_info.align_factors(model.factors.side(who).table, ids, prior, precision)
        return state.engine.table(side, factors)


class ArrayModels(LocalModels):
    """Models of ``fit_arrays``: the rows with ratings or side features, in the fit's precision."""

    def make(self, parts: ModelParts[RowPosterior]) -> FittedModel:
        engine = parts.state.engine
        return FittedModel(
            parts.info,
            self._side(parts, "user"),
            self._side(parts, "item"),
            parts.certificate,
            history=parts.fit.history,
            shape=(engine.n_rows("rows"), engine.n_rows("cols")),
        )

    def _side(self, parts: ModelParts[RowPosterior], who: Who) -> ModelSide:
        fit = parts.fit
        side = SIDE_OF[who]
        engine = parts.state.engine
        rows = engine.rows_here(fit.posterior[side])
        measured = measured_here(parts, side)
        assert measured is not None
        rated = engine.counts(side) > 0
        numbers = np.arange(len(rated))
        if side not in fit.codings and not rated.all():
            numbers = np.flatnonzero(rated)
            rows = rows.take(numbers)
            measured = measured[numbers]
        form = parts.info.table_form
        precision = rows.location.dtype.name
        prior = model_info.prior_row(fit.scales, side, *form, precision=precision)
        return ModelSide(pa.array(numbers), rows, prior, measured)


def measured_here(parts: ModelParts[RowPosterior], side: Side) -> FloatArray | None:
    """What the ratings leave open in the rows of a fit in this process; None at a checkpoint."""
    if parts.fit.measured is None:
        return None
    measured = parts.fit.measured[side]
    assert isinstance(measured, np.ndarray)
    return measured
