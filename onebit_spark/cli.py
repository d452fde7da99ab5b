"""The jobs: fit, predict, evaluate. Each reads, makes one call of the package, writes, and says what it did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.jobconfig import EvaluateRequest, FitRequest, JobRequest, PredictRequest
from onebit_spark.jobrun import reason_of, run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onebit_spark.model import OneBitCompletionModel
    from onebit_spark.ratings import Columns, Tally


def fit(argv: Sequence[str] | None = None, *, ship_package: bool = False) -> int:
    return run_job("fit.py", FitRequest, run_fit, argv, ship_package)


def predict(argv: Sequence[str] | None = None, *, ship_package: bool = False) -> int:
    return run_job("predict.py", PredictRequest, run_predict, argv, ship_package)


def evaluate(argv: Sequence[str] | None = None, *, ship_package: bool = False) -> int:
    return run_job("evaluate.py", EvaluateRequest, run_evaluate, argv, ship_package)


# ---- fit -------------------------------------------------------------------------------------------------------------


def run_fit(spark: SparkSession, request: FitRequest) -> None:
    from onebit_spark import evaluation
    from onebit_spark.certification import document
    from onebit_spark.checkpoint import clear_checkpoints
    from onebit_spark.estimator import OneBitCompletion
    from onebit_spark.progress import Progress
    from onebit_spark.ratings import Columns, check_ratings, split_off
    from onebit_spark.tables import check_id_types, check_pairs, quoted, read_table, refuse_outputs, write_predictions

    clock = Clock()
    refuse_outputs(spark, request)
    ids = (request.user_col, request.item_col)
    with clock("reading"):
        ratings = read_table(spark, request, "ratings", (*ids, request.label_col))
        if request.predict:
            pairs = read_table(spark, request, "predict", ids)
            check_id_types(pairs, request, "predict", dict(ratings.select(*map(quoted, ids)).dtypes))
            check_pairs(pairs, ids)
    columns = Columns(*ids, request.label_col, request.threshold)
    if request.holdout is not None:
        with clock("holding out"):
            check_ratings(ratings, columns)
            ratings, held_out = split_off(ratings, columns, request.holdout, request.seed)
            held_out_tally = _holdout_tally(held_out, columns, request.holdout)
    estimator = OneBitCompletion(
        userCol=request.user_col,
        itemCol=request.item_col,
        labelCol=request.label_col,
        threshold=request.threshold,
        rank=request.rank,
        loss=request.loss,
        prior=request.prior,
        likelihoodWeight=request.likelihood_weight,
        alpha=request.alpha,
        beta=request.beta,
        fitIntercept=request.intercepts,
        solver=request.solver,
        covariance=request.covariance,
        maxIter=request.max_iter,
        tol=request.tol,
        seed=request.seed,
        numUserBlocks=request.row_blocks,
        numItemBlocks=request.col_blocks,
        checkpointDir=request.checkpoint_dir,
        checkpointInterval=request.checkpoint_interval,
        resume=request.resume,
        delta=request.delta,
        certificateGrid=request.certificate_grid,
        certificatePriorSplit=request.certificate_prior_split,
    )
    with clock("fitting"), Progress(request.max_iter, request.tol, quiet=request.quiet) as progress:
        model = estimator.setProgress(progress).fit(ratings)
    clock.split("fitting", "preparing", "iterations", progress.seconds)
    if request.holdout is not None:
        with clock("certifying"):
            figures = evaluation.evaluate(model, held_out, request.threshold, held_out_tally)
            certificate = evaluation.certify(model, figures, held_out_tally, request.terms())
            model.certificate = document([*model.certificate["certificates"], certificate.as_dict()])
    with clock("measuring"):
        if request.holdout is None:
            model = model.diagnose(ratings, "training ratings")
        elif request.calibrate:
            model = model.calibrate(held_out).diagnose(held_out, "the held-out ratings that calibrated it")
        else:
            model = model.diagnose(held_out)
    with clock("saving"):
        writer = model.write()
        (writer.overwrite() if request.overwrite else writer).save(request.output)
        if request.checkpoint_dir:
            clear_checkpoints(spark, request.checkpoint_dir)
    if request.predict and request.predictions:
        with clock("predicting"), _after(f"the model is saved in {request.output}, but predicting failed"):
            write_predictions(spark, model, pairs, request.predictions, request.overwrite)
    if not request.quiet:
        print("\n".join(_fit_summary(model, clock)))
        print(f"report: {request.output.rstrip('/')}/report.html")
    _locations(request, {"model": request.output, "predictions": request.predictions})


def _fit_summary(model: OneBitCompletionModel, clock: Clock) -> Iterator[str]:
    from onebit_spark.certification import headline_of

    info = model.info
    share = info.n_positive / info.n_ratings
    yield (
        f"Fitted {info.n_ratings:,} ratings of {info.n_users:,} users on {info.n_items:,} items, "
        f"{share:.1%} of them positive."
    )
    if info.repeats.get("repeated"):
        yield (
            f"{info.repeats['repeated']:,} cells were rated more than once, every rating counts; "
            f"{info.repeats['conflicting']:,} of them with both labels."
        )
    last = f"{info.iterations} iteration{'s' if info.iterations > 1 else ''}: {info.reason}"
    if info.converged:
        yield f"Converged after {last}."
    elif info.parameters["tol"] == 0:
        yield f"Stopped after {last}, as asked with tol = 0."
    else:
        yield f"Not converged after {last}. The predictions can be used; a larger --max-iter may improve them."
    rank = info.parameters["rank"]
    off = rank - info.effective_rank
    yield f"Effective rank {info.effective_rank} of {rank}" + (
        f": {off} not needed." if off else ": try a larger --rank."
    )
    certified = headline_of(model.certificate)
    if certified:
        yield f"Certificate ({model.certificate['headline']}): {certified}"
    yield f"Time: {clock}."


def _holdout_tally(held_out: DataFrame, columns: Columns, fraction: float) -> Tally:
    from onebit_spark.ratings import check_ratings

    if held_out.isEmpty():
        raise RequestError(
            f"--holdout {fraction:g} holds no rating out: the data are too few to certify on. Choose a larger share"
        )
    return check_ratings(held_out, columns)


# ---- predict ---------------------------------------------------------------------------------------------------------


def run_predict(spark: SparkSession, request: PredictRequest) -> None:
    from onebit_spark.model import OneBitCompletionModel
    from onebit_spark.tables import (
        check_id_types,
        check_pairs,
        read_table,
        refuse_outputs,
        write_predictions,
        write_recommendations,
    )

    clock = Clock()
    refuse_outputs(spark, request)
    asked = "pairs" if request.pairs else "exclude_seen" if request.exclude_seen else None
    pairs, n = None, 0
    with clock("reading"):
        model = OneBitCompletionModel.load(request.model)
        types = _id_types(model)
        if asked:
            pairs = read_table(spark, request, asked, tuple(types))
            check_id_types(pairs, request, asked, types)
            n = check_pairs(pairs, tuple(types))
    with clock("predicting"):
        if request.top is None:
            assert pairs is not None
            write_predictions(spark, model, pairs, request.output, request.overwrite)
            done = f"Predicted {n:,} pairs."
        else:
            write_recommendations(spark, model, request.top, pairs, request.output, request.overwrite)
            done = f"Recommended {request.top} items to each of {model.info.n_users:,} users"
            done += f", none of the {n:,} pairs of --exclude-seen." if pairs is not None else "."
    if not request.quiet:
        print(f"{done}\nTime: {clock}.")
    _locations(request, {"predictions": request.output})


# ---- evaluate --------------------------------------------------------------------------------------------------------


def run_evaluate(spark: SparkSession, request: EvaluateRequest) -> None:
    from pyspark.sql import types as T

    from onebit_spark import evaluation
    from onebit_spark.certification import Terms
    from onebit_spark.model import OneBitCompletionModel
    from onebit_spark.ratings import Columns, check_ratings
    from onebit_spark.tables import check_id_types, read_table, refuse_outputs

    clock = Clock()
    refuse_outputs(spark, request, folders=False)
    with clock("reading"):
        model = OneBitCompletionModel.load(request.model)
        user, item, label = (model.info.columns[role] for role in ("user", "item", "label"))
        ratings = read_table(spark, request, "ratings", (user, item, label))
        check_id_types(ratings, request, "ratings", _id_types(model))
        boolean = isinstance(ratings.schema[label].dataType, T.BooleanType)
        threshold = request.threshold
        if threshold is None and not boolean:
            threshold = model.info.threshold
        tally = check_ratings(ratings, Columns(user, item, label, threshold))
    with clock("evaluating"):
        figures = evaluation.evaluate(model, ratings, threshold, tally)
        if request.certify:
            certificate = evaluation.certify(model, figures, tally, Terms(delta=request.delta))
            figures["certificate"] = certificate.as_dict()
    if request.output:
        _write_json(spark, request.output, figures)
    if not request.quiet:
        print("\n".join(_evaluation_summary(figures)) + f"\nTime: {clock}.")
    _locations(request, {"metrics": request.output})


def _evaluation_summary(figures: dict[str, Any]) -> Iterator[str]:
    yield f"{figures['n']:,} ratings, {figures['n_positive'] / figures['n']:.1%} positive"
    for side, words in (("user", "of a user"), ("item", "on an item")):
        if figures[f"n_unknown_{side}"]:
            yield f"  {figures[f'n_unknown_{side}']:,} of them {words} that the model has never seen"
    low, high = figures["error_low"], figures["error_high"]
    yield f"error      {figures['error']:.4f}   95% interval {low:.4f} to {high:.4f}"
    yield f"  (always predicting the training majority errs on {figures['majority_error']:.4f})"
    if figures["auc"] is None:
        yield "auc        none: only one class is present"
    else:
        off = f"   within {figures['auc_error']:.0e}" if figures["auc_error"] else ""
        yield f"auc        {figures['auc']:.4f}{off}"
    for name in ("log_loss", "brier", "hinge_loss"):
        yield f"{name:<10} {figures[name]:.4f}"
    yield f"calibration {figures['calibration_error']:.4f} off on average: how far probabilities are from frequencies"
    if "certificate" in figures:
        yield figures["certificate"]["statement"]


# ---- what the jobs share ---------------------------------------------------------------------------------------------


class Clock:
    """Seconds by phase: ``with clock("reading"): …``; as text, all of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - began

    def split(self, phase: str, rest: str, part: str, seconds: float) -> None:
        """Replace a phase by a part of known length and the rest before it."""
        total = self.seconds.pop(phase)
        self.seconds |= {rest: max(0.0, total - seconds), part: seconds}

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())


def _id_types(model: OneBitCompletionModel) -> dict[str, str]:
    """The model's id columns with their types, the users' first."""
    return {model.info.columns[side]: model.info.id_types[side] for side in ("user", "item")}


def _locations(request: JobRequest, outputs: dict[str, str | None]) -> None:
    """Where the outputs are: the only lines of a quiet job, then without their names."""
    for name, path in outputs.items():
        if path:
            print(path if request.quiet else f"{name}: {path}", flush=True)


@contextmanager
def _after(success: str) -> Iterator[None]:
    """Name what is already done in the reason of a failure."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{success}: {error}") from error
    except Exception as error:
        raise FitFailed(f"{success}: {reason_of(error)}") from error


def _write_json(spark: SparkSession, path: str, content: dict[str, Any]) -> None:
    from onebit_spark.filesystem import Location

    target, text = Location(spark, path), json.dumps(content, indent=2, allow_nan=False) + "\n"
    if target.scheme != "file":
        target.write_text(text)
        return
    local = Path(target.uri.removeprefix("file:"))  # written here, for Hadoop would add a checksum file
    local.parent.mkdir(parents=True, exist_ok=True)
    unfinished = local.with_name(f".{local.name}.writing")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, local)
