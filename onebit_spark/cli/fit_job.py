"""jobs/fit.py: ratings in, a certified model out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.certificate.certificates import kept_by_coin
from onebit_spark.cli.failures import after
from onebit_spark.cli.job_tables import (
    Target,
    check_id_types,
    check_pairs,
    read_features,
    read_table,
    refuse_outputs,
    write_predictions,
)
from onebit_spark.cli.progress import Clock, Progress
from onebit_spark.cli.requests import FitRequest
from onebit_spark.cli.summaries import fit_summary, print_summary
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.settings import by_param
from onebit_spark.errors import RequestError
from onebit_spark.estimator import OneBitCompletion, fit_counted
from onebit_spark.input.columns import quoted
from onebit_spark.input.defects import Columns, RatingCounts, not_deterministic, summed, with_weight
from onebit_spark.input.holdout import Division, check_split, split_off
from onebit_spark.ml.certification import CertificateRequest, CheckedRatings, certify, with_certificates
from onebit_spark.ml.checkpoint import clear_checkpoints, complete_checkpoints
from onebit_spark.ml.freshness import KEPT_OUT
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location
from onebit_spark.report.page import REPORT


@dataclass(frozen=True)
class Inputs:
    """What a fit reads."""

    ratings: DataFrame  # to fit
    features: dict[Who, DataFrame]
    pairs: DataFrame | None = None  # to predict after the fit
    n_pairs: int = 0
    held_out: CheckedRatings | None = None  # kept out of the fit
    division: Division | None = None  # counts of both parts


def run(spark: SparkSession, request: FitRequest) -> None:
    refuse_outputs(spark, request)
    clock = Clock()
    with _work_folder(spark, request.output) as work:
        inputs = _read(spark, request, clock)
        model = _fitted(request, inputs, work, clock)
        model = _judged(request, inputs, model, clock)
        with clock("saving"):
            writer = model.write()
            (writer.overwrite() if request.overwrite else writer).save(request.output)
            if checkpoints := request.execution().checkpoint_dir:
                clear_checkpoints(spark, checkpoints)
        if inputs.pairs is not None:
            with clock("predicting"), after(f"the model is saved in {request.output}, but predicting failed"):
                write_predictions(spark, model, inputs.pairs, inputs.n_pairs, Target.of(request))
    drawn = not request.quiet and (Location(spark, request.output) / REPORT).exists()  # not without matplotlib
    report = f"{request.output.rstrip('/')}/{REPORT}" if drawn else None
    places = {"report": report, "model": request.output, **Target.of(request).places}
    print_summary(fit_summary(model.info, model.certificate), clock, request.quiet, places)


def when_interrupted(spark: SparkSession, request: FitRequest) -> str:
    """Which checkpoint there is, and how to go on."""
    folder = request.execution().checkpoint_dir
    if folder is None:
        return "No checkpoint was kept: with --checkpoint-dir FOLDER a fit keeps them, and --resume goes on."
    checkpoints = complete_checkpoints(Location(spark, folder))
    if not checkpoints:
        return f"There is no checkpoint in {folder} yet: the same command starts from the beginning."
    return f"The checkpoint {checkpoints[-1].uri} is complete: to go on from it, run the same command with --resume."


@contextmanager
def _work_folder(spark: SparkSession, output: str) -> Iterator[Location]:
    """A folder beside the output: where the output can be, executors can write. It is deleted at the end."""
    target = Location(spark, output)
    work = target.sibling(f".{target.name}.work-{uuid.uuid4().hex[:8]}")
    try:
        yield work
    finally:
        with suppress(Exception):
            work.delete()


def _read(spark: SparkSession, request: FitRequest, clock: Clock) -> Inputs:
    """Read, check and divide. The pairs are checked while the ratings are."""
    ids = (request.user_col, request.item_col)
    columns = Columns(*ids, request.label_col, request.threshold, request.weight_col)
    with ThreadPoolExecutor(1) as beside:
        with clock("reading"):
            by = [request.certify_by] if request.certify_by is not None else []
            table = read_table(spark, request, "ratings", tuple(dict.fromkeys((*columns.names, *by))))
            inputs = Inputs(with_weight(table, columns), read_features(spark, request, *ids))
            if request.predict:
                pairs = read_table(spark, request, "predict", ids)
                check_id_types(pairs, request, "predict", dict(table.select(*map(quoted, ids)).dtypes))
                counted = beside.submit(check_pairs, pairs, ids)
        if request.holdout is not None:
            with clock("holding out"):
                inputs = _divided(inputs, columns, request.holdout, request.fit_config().seed)
        return replace(inputs, pairs=pairs, n_pairs=counted.result()) if request.predict else inputs


def _divided(inputs: Inputs, columns: Columns, share: float, seed: int) -> Inputs:
    division = check_split(inputs.ratings, columns, share, seed)
    if not division.held_out.n:
        raise RequestError(
            f"--holdout {share:g} holds no rating out: the data are too few to certify on. Choose a larger share"
        )
    ratings, held_out = split_off(inputs.ratings, columns, share, seed)
    return replace(
        inputs, ratings=ratings, held_out=CheckedRatings(held_out, columns, division.held_out), division=division
    )


def _fitted(request: FitRequest, inputs: Inputs, work: Location, clock: Clock) -> OneBitCompletionModel:
    """The fit of the ratings that are not held out; these must be the ratings that were counted."""
    config = request.fit_config()
    estimator = OneBitCompletion(
        userCol=request.user_col,
        itemCol=request.item_col,
        labelCol=request.label_col,
        threshold=request.threshold,
        weightCol=request.weight_col,
        **by_param(config),
        **by_param(replace(request.execution(), work_dir=work.uri)),
        **by_param(request.terms()),
    )
    estimator.setUserFeatures(inputs.features.get("user")).setItemFeatures(inputs.features.get("item"))
    division = inputs.division
    counted = None if division is None else division.to_fit
    with clock("fitting"), Progress(config.max_iter, config.tol, quiet=request.quiet) as progress:
        model = fit_counted(estimator.setProgress(progress), inputs.ratings, counted)
    clock.split("fitting", "preparing", "iterations", progress.seconds)
    if division is not None:
        whole, info = division.whole, model.info
        fitted = RatingCounts(info.n_ratings, info.n_positive, whole.coding, info.fingerprint)
        if summed(fitted, division.held_out) != summed(whole):
            raise not_deterministic(f"{whole.n:,} ratings were counted, and those that were fitted later are others")
    return model


def _judged(request: FitRequest, inputs: Inputs, model: OneBitCompletionModel, clock: Clock) -> OneBitCompletionModel:
    """The model with its certificates, its calibration and the figures of its report."""
    held_out = inputs.held_out
    if held_out is not None:
        with clock("certifying"):
            wanted = CertificateRequest(request.terms(), request.max_error, request.certify_by)
            _, certificates = certify(model, held_out, wanted, KEPT_OUT)
            repeated = bool(model.info.repeats.get("repeated"))
            model = with_certificates(model, [kept_by_coin(item, repeated) for item in certificates])
    with clock("measuring"):
        if request.calibrate and held_out is not None:
            model = model.calibrate(held_out.ratings)
        if request.report and held_out is None:
            model = model.diagnose(inputs.ratings, "training ratings", fitted=True)
        elif request.report and held_out is not None:
            source = "the held-out ratings that calibrated it" if request.calibrate else "held-out ratings"
            model = model.diagnose(held_out.ratings, source, tally=held_out.tally)
    return model
