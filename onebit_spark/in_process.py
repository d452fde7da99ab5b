"""Fits in this process, without Spark: ``fit_arrays`` of numpy arrays, ``fit_table`` of tables and files by their ids.

All other engines must agree with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from onebit_spark.certificate.certificates import certificate_document
from onebit_spark.certificate.certified_fit import CertifiedFit, Checkpoints, certified_fit
from onebit_spark.core import model_info
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import compile_kernels
from onebit_spark.core.config import (
    Execution,
    FitConfig,
    Labels,
    Problem,
    Terms,
    available_cores,
    device_problems,
    is_integer,
)
from onebit_spark.core.engine import Engine
from onebit_spark.core.features import SideFeatures
from onebit_spark.core.hashes import CellSketch, merged_sketch
from onebit_spark.core.id_index import HeldIds
from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.model_info import SIDE_OF, FitFeatures, ModelInfo, Who
from onebit_spark.core.model_selection import at_start_rank
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.solver import Iteration, PhaseTimer
from onebit_spark.core.user_data import checked_arrays, spark_name
from onebit_spark.engines.cuda.runner import CudaRunner
from onebit_spark.engines.threads import ThreadRunner, local_engine
from onebit_spark.errors import RequestError, refuse
from onebit_spark.input.ratings import (
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
from onebit_spark.input.tables import ArrowTable, Unreadable
from onebit_spark.ml.checkpoint import CheckpointFolder, resumed, subject_of, warm_start
from onebit_spark.predictor.fitted_model import FittedModel, load
from onebit_spark.predictor.model_folder import local_path, write_into
from onebit_spark.predictor.predictor import KEPT_OUT, CertificateRequest, ModelSide, fresh_to

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
    """Fit the ratings (rows[l], cols[l], labels[l]) in this process. A cell may be rated several times.

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
        A weight per rating, which multiplies κ (docs/MATH.md, §16). A rating of weight 0 is left out. Default: all 1.
    row_features, col_features : array_like of numbers or pyarrow.Table, optional
        Side features, one line per row or column of the shape (docs/MATH.md, §15). They are standardised; nan counts
        as the mean. A table may have columns of numbers, booleans, strings and arrays of them.
    config, threads, device, certify, on_iteration, initial_model
        See ``fit_table``.

    Raises
    ------
    RequestError
        Lists all problems of the input and the settings.

    >>> from onebit_spark import FitConfig, fit_arrays
    >>> fit = fit_arrays([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], FitConfig(rank=1, tol=0, max_iter=20))
    >>> fit.predict([0, 1], [0, 0]).tolist()
    [1.0, 1.0]
    """
    check_settings(config, certify)
    config = config or FitConfig()
    execution = Execution(device=device)
    settings = [*execution.problems(), *config.problems(), *(certify.problems() if certify else [])]
    settings += thread_problems(threads) + initial_problems(initial_model)
    settings = settings or device_problems(config, execution)
    ratings = rows, cols, labels, shape
    engine: Engine[Any]
    if device == "cuda":
        engine = Engine(CudaRunner.of_arrays(*ratings, settings, weights, at_start_rank(config).form))
    else:
        if not settings:
            _compile_ahead(config, weights is not None)
        engine = local_engine(RatingBlock.from_coordinates(*checked_arrays(*ratings, settings, weights)), threads)
    positives = engine.positives
    with engine.running():
        for side, given in zip(SIDES, (row_features, col_features), strict=True):
            if given is not None:
                rated, name = engine.counts(side) > 0, f"{side[:-1]}_features"
                engine.features[side] = SideFeatures.of_rows(given, rated, name)
        start = None
        if initial_model is not None:
            engine.ids = {side: HeldIds(pa.array(np.arange(engine.runner.n_rows(side)))) for side in SIDES}
            start = warm_start(initial_model, config, partial(_adopted, engine), names={})
        fit = certified_fit(engine, config, certify, positives, on_iteration, start)
    counts = RatingCounts(engine.n_ratings, positives, _label_coding(np.asarray(labels)), "")
    unrated = {side: int(np.count_nonzero(engine.counts(side) == 0)) for side in SIDES}
    columns = Columns(weight="weight" if engine.weighted else None)
    info = info_of_fit(fit, engine, counts, columns, {"user": "bigint", "item": "bigint"}, unrated)
    users, items = (_side(fit, engine, side, info) for side in SIDES)
    info = replace(info, n_users=len(users.ids), n_items=len(items.ids))
    certificate = certificate_document(item.as_dict() for item in fit.certificates)
    shape = engine.runner.n_rows("rows"), engine.runner.n_rows("cols")
    return FittedModel(info, users, items, certificate, history=fit.history, shape=shape)


def _compile_ahead(config: FitConfig, weighted: bool) -> None:
    if available_cores() > 1:  # else they are compiled as they are called
        compile_kernels(config.of_kernels(), weighted)


def _side(fit: CertifiedFit[Any], engine: Engine[Any], side: Side, info: ModelInfo) -> ModelSide:
    """The rows or columns with ratings or side features, in the precision of the fit."""
    lines, rated = engine.runner.lines(fit.posterior[side]), engine.counts(side) > 0
    assert fit.measured is not None
    measured, numbers = engine.runner.lines(fit.measured[side]), np.arange(len(rated))
    if side not in fit.codings and not rated.all():
        numbers = np.flatnonzero(rated)
        lines = lines.take(numbers)
        measured = measured[numbers]
    prior = model_info.prior_row(fit.scales, side, *info.table_form, precision=lines.location.dtype.name)
    return ModelSide(pa.array(numbers), lines, prior, measured)


def _label_coding(labels: NDArray[Any]) -> Coding:
    """How the labels are coded. Both classes occur, so some label is −1, 0 or False."""
    if labels.dtype == bool:
        return "boolean"
    return "binary" if labels.min() == 0 else "signed"


def info_of_fit(
    fit: CertifiedFit[Any], engine: Engine[Any], counts: RatingCounts, columns: Columns, id_types: Mapping[Any, str],
    unrated: Mapping[Side, int], exchange: Mapping[str, Any] | None = None,
) -> ModelInfo:  # fmt: skip
    """The content of ``metadata.json`` after a fit; ``unrated`` counts the ids with side features and no ratings."""
    scales, config = fit.scales, fit.choice.config
    kept = None if fit.thresholds is None else {str(call): each.as_dict() for call, each in fit.thresholds.items()}
    n_users, n_items = (engine.count(side) for side in SIDES)
    row_norms, col_norms = (engine.column_norms(side, fit.posterior[side]) for side in SIDES)
    features: dict[str, dict[str, Any]] = {
        who: {
            "coding": fit.codings[side].as_list(),
            "weights": scales.features[side].tolist(),
            "newcomers": unrated[side],
        }
        for who, side in SIDE_OF.items()
        if side in fit.codings
    }
    return ModelInfo(
        parameters={**asdict(config), "alpha": scales.prior.alpha, "beta": scales.prior.beta},
        n_users=n_users,
        n_items=n_items,
        n_ratings=counts.n,
        n_positive=counts.positives,
        label_coding=counts.coding,
        threshold=columns.threshold,
        majority=counts.majority,
        columns=columns.roles,
        total_weight=engine.total_weight if columns.weight is not None else None,
        id_types=dict(id_types),
        fingerprint=counts.fingerprint,
        exchange=dict(exchange or {}),
        objective_history=[step.objective for step in fit.history],
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=len(factors_in_use(row_norms, col_norms, n_users, n_items)),
        **model_info.scale_fields(scales),
        side_features=features or None,
        confidences=None if kept is None else {**kept.pop("answered"), **kept},
        weight_losses={f"{weight:g}": loss for weight, loss in fit.choice.losses.items()} or None,
        choice=fit.choice.as_dict(),
        calibration=None if fit.choice.calibration is None else asdict(fit.choice.calibration),
        repeats=asdict(engine.repeats),
        axes=None if fit.axes is None else fit.axes.as_dict(),
    )


def unrated_tables(
    fit: CertifiedFit[Any], features: Mapping[Side, FitFeatures], info: ModelInfo
) -> dict[Side, pa.Table]:
    tables = {}
    for side, coding in fit.codings.items():
        prior, weights = model_info.prior_row(fit.scales, side, *info.table_form), fit.scales.features[side]
        std = None if fit.axes is None else fit.axes.spreads(side, prior)
        lines = features[side].unrated_lines(prior, coding, weights, std)
        if lines is not None:
            tables[side] = lines
    return tables


# ---- tables ----------------------------------------------------------------------------------------------------------


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
        One line per rating. A path is that of a file or folder of Parquet, CSV or JSON lines, by its extension.
    config : FitConfig, optional
        The settings.
    user_col, item_col, label_col : str
        Names of the columns. Ids are of most types (docs/local.md). Labels are ±1, 0/1, booleans, or numbers with
        ``threshold``.
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
        Where the fit runs. On a GPU it needs CuPy, and it is the same fit up to rounding (docs/SCALING.md).
    options : mapping, optional
        How the files of paths are read: ``{"sep": ";"}`` for example, and ``{"format": "csv"}`` where the extension
        does not say it (docs/local.md).
    holdout : float, optional
        Keep the ratings of about this share of the cells out of the fit, and certify the predictions on them, on the
        terms of ``certify`` (docs/MATH.md, §9.2). They also give the figures of the report.
    initial_model : FittedModel, optional
        Start from the posterior of this model instead of the spectral start. Rank, loss, intercepts, covariance and
        implicit features must be the model's, or be chosen; ids that it does not know start at its prior. With
        ``holdout``, held-out ratings of cells that this model was fitted on do not count.

    Raises
    ------
    RequestError
        Lists all problems of the settings, or of the ratings with examples.

    >>> import pyarrow as pa
    >>> from onebit_spark import FitConfig, fit_table
    >>> likes = {"user": ["ann", "ann", "bob", "bob", "eve"], "item": ["tea", "rum", "tea", "rum", "tea"]}
    >>> table = pa.table({**likes, "label": [1, 0, 1, 0, 1]})
    >>> model = fit_table(table, FitConfig(rank=1, max_iter=5, tol=0))
    >>> model.predict("eve", "rum").tolist()
    [0.0]
    """
    check_settings(config, certify)
    timer, config = PhaseTimer(), config or FitConfig()
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
    opened = {who: _opened(each, f"the {who} features", options) for who, each in given.items() if each is not None}
    ids, types = columns.ids, source.id_types
    features = {who: checked_features(table, ids[who], types[who], who) for who, table in opened.items()}
    part = None if holdout is None else Holdout(holdout, config.seed, f"holdout={holdout}")
    to_fit, kept = source.divided(part)
    freshness: Mapping[str, Any] = KEPT_OUT
    if kept is not None and initial_model is not None:
        kept, freshness = unseen_by(initial_model, kept)
    fit = TableFit(
        config, certify, columns, source.id_types, features, execution, threads=threads, initial=initial_model
    )
    timer.end("survey")
    model: FittedModel = fit.model(to_fit, on_iteration, timer)
    if kept is None:
        return model
    scored = model.scored(model.users.positions(kept.users), model.items.positions(kept.items), kept.positive)
    _, certificates = model.certified(scored, CertificateRequest(certify or Terms()), freshness)
    return model.with_figures(scored, "held-out ratings", fitted=False).with_certificates(certificates)


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


def unseen_by(initial: FittedModel, kept: KeptRatings) -> tuple[KeptRatings, dict[str, Any]]:
    """The held-out ratings of cells that the initial model was not fitted on, and their freshness: see ``fresh_to``."""
    known, n = initial.fitted, len(kept.cells)
    cure = "fit it with the same holdout and seed, or hold other ratings out yourself and certify on them"
    if known is None:
        raise RequestError(
            "holdout does not go with this initial_model, which does not record the ratings that it was fitted on: "
            f"{cure}"
        )
    new = np.flatnonzero(~known.holds(kept.cells))
    left_out = n - len(new)
    if left_out and (not known.holds_all or left_out == n):
        which = f"all {n:,}" if left_out == n else f"at least {left_out:,} of the {n:,}"
        raise RequestError(
            f"holdout does not go with this initial_model, which was fitted on the cells of {which} held-out ratings: "
            f"{cure}"
        )
    if not known.holds_all:
        return kept, {**fresh_to(known, CellSketch.of(kept.cells, known.limit)), "by_coin": True}
    reason = f"{KEPT_OUT['reason']}, and the initial model was not fitted on their cells"
    if not left_out:
        return kept, {**KEPT_OUT, "reason": reason}
    log.warning(
        f"{left_out:,} of {n:,} held-out ratings are left out, because the initial model was fitted on their cells"
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
    return checked_lines(table.named({column if name == own else name: name for name in names}).table(), column, who)


# ---- ratings by their ids, here and on Spark -------------------------------------------------------------------------


@contextmanager
def driver_engine(
    ratings: CollectedRatings, config: FitConfig, device: str, threads: int | None = None
) -> Iterator[Engine[Any]]:
    runner: Any
    if device == "cpu":
        runner = ThreadRunner(ratings.ratings, threads)
    else:
        runner = CudaRunner.of_block(ratings.ratings, at_start_rank(config).form)
    with Engine[Any](runner, {"rows": HeldIds(ratings.users), "cols": HeldIds(ratings.items)}).running() as engine:
        yield engine


class Backend(NamedTuple):
    """What a model is for a fit: how it is made, stored, and read as the start of another fit."""

    spark: Any  # the session, or None
    load: Callable[[str], Any]
    save: Callable[[Any, str], None]  # into a folder that does not exist
    adopt: Callable[..., Any]  # see ``_adopted``
    make: Callable[..., Any]  # see ``_made``
    names: Mapping[str, str] | None = None  # of the settings in messages; None: the names of the Params


@dataclass(frozen=True)
class TableFit:
    config: FitConfig
    terms: Terms | None
    columns: Columns
    id_types: Mapping[Who, str]  # Spark's types of the ids
    features: Mapping[Who, pa.Table] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    exchange: Mapping[str, str] = field(default_factory=dict)  # where the fit ran, and why
    threads: int | None = None
    initial: Any = None  # the model whose posterior the fit starts from

    def model(
        self, ratings: Any, on_iteration: Callable[[Iteration], None] | None = None, timer: PhaseTimer | None = None,
        backend: Backend | None = None, opening: AbstractContextManager[Engine[Any]] | None = None,
    ) -> Any:  # fmt: skip
        """The model of ratings, which have counts and a sketch: of this process, or of the ``backend`` and its engine.

        ``timer`` has the seconds that it took to read them.
        """
        timer, backend = timer or PhaseTimer(), backend or Backend(None, load, _write, _adopted, _made, {})
        opening = opening or driver_engine(ratings, self.config, self.execution.device, self.threads)
        if self.execution.device == "cpu":
            _compile_ahead(self.config, self.columns.weight is not None)
        counts, folder, earlier, start, checkpoints = ratings.counts, None, None, None, None

        def made(fit: CertifiedFit[Any], seconds: Mapping[str, float] | None = None) -> Any:
            """Without the seconds of its phases, the fit is unfinished: its model lacks the ids without ratings."""
            unrated = {side: len(known.unrated_ids) for side, known in features.items()}
            info = info_of_fit(fit, engine, counts, self.columns, self.id_types, unrated, self.exchange)
            newcomers = {} if seconds is None else unrated_tables(fit, features, info)
            n_rows, n_cols = (newcomers[side].num_rows if side in newcomers else 0 for side in SIDES)
            n_users, n_items = info.n_users + n_rows, info.n_items + n_cols
            info = replace(info, n_users=n_users, n_items=n_items, seconds=dict(seconds or {}))
            certificate = certificate_document(item.as_dict() for item in fit.certificates)
            return backend.make(engine, info, fit, newcomers, certificate, sketch)

        with ExitStack() as release:
            if self.execution.checkpoint_dir:
                ids = self.columns.ids
                digests = {str(who): model_info.digest(table, ids[who]) for who, table in self.features.items()}
                subject = subject_of(self.config, counts, digests)
                stored = backend.spark, self.execution.checkpoint_dir, subject, backend.load, backend.save
                folder = CheckpointFolder(*stored)
                earlier = release.enter_context(folder.claimed(self.execution.resume))
            sketch: CellSketch = ratings.sketch()  # before the memory is full of blocks
            engine = release.enter_context(opening)
            features = model_info.give_features(engine.features, self.features, self.columns.ids, engine.ids)
            if earlier is not None:
                start = resumed(earlier, self.config, partial(backend.adopt, engine))
            elif self.initial is not None:
                sketch = merged_sketch(self.initial.fitted, sketch)
                start = warm_start(self.initial, self.config, partial(backend.adopt, engine), names=backend.names)
            if folder is not None:
                checkpoints = Checkpoints(self.execution.checkpoint_interval, partial(folder.write, made))
            timer.end("blocking")
            fit = certified_fit(engine, self.config, self.terms, counts.positives, on_iteration, start, checkpoints)
            timer.end("fit")
            timer.divide_fit(fit.choice.seconds, fit.history[0 if start is None else len(start.history) :])
            return made(fit, timer.seconds)


def _made(
    engine: Engine[Any], info: ModelInfo, fit: CertifiedFit[Any], newcomers: Mapping[Side, pa.Table],
    certificate: dict[str, Any], fitted: CellSketch,
) -> FittedModel:  # fmt: skip
    def made(who: Who) -> ModelSide:
        side = SIDE_OF[who]
        rows = [engine.runner.lines(each) for each in fit.tables(side)]
        return ModelSide.of(model_info.side_table(engine.ids[side].values, rows, newcomers.get(side)), info, who)

    params = {f"{who}Col": info.columns[who] for who in SIDE_OF}
    return FittedModel(info, made("user"), made("item"), certificate, params=params, fitted=fitted)


def _write(model: FittedModel, uri: str) -> None:
    folder: Path = local_path(uri)
    folder.mkdir(parents=True, exist_ok=True)
    write_into(folder, (model.info, model.users, model.items, model.certificate, model.params, model.fitted))


def _adopted(engine: Engine[Any], model: FittedModel, who: Who, prior: RowPosterior, precision: str) -> Any:
    """The posterior of the engine's ids from a model. Ids that it lacks get the one row of ``prior``."""
    side = SIDE_OF[who]
    factors = model_info.align_factors(model.side(who).table, engine.ids[side].values, prior, precision)
    return engine.runner.table(side, factors)
