"""jobs/fit.py: ratings in, a certified model out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from pyspark.sql import SparkSession

from onebit_spark.certificate.certificates import document, headline_of, kept_by_coin
from onebit_spark.cli.common import Clock, after, further_statements, tell_locations
from onebit_spark.cli.job_tables import (
    Target,
    check_id_types,
    check_pairs,
    read_features,
    read_table,
    refuse_outputs,
    write_predictions,
)
from onebit_spark.cli.progress import Progress
from onebit_spark.cli.requests import FitRequest
from onebit_spark.core.settings import by_param
from onebit_spark.errors import RequestError
from onebit_spark.estimator import OneBitCompletion, fit_counted
from onebit_spark.input.columns import quoted
from onebit_spark.input.defects import Columns, RatingCounts, not_deterministic, summed, with_weight
from onebit_spark.input.holdout import check_split, split_off
from onebit_spark.ml import evaluation
from onebit_spark.ml.checkpoint import clear_checkpoints, complete_checkpoints
from onebit_spark.ml.freshness import KEPT_OUT
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location
from onebit_spark.report.page import REPORT


def run_fit(spark: SparkSession, request: FitRequest) -> None:
    refuse_outputs(spark, request)
    Target.of(request).refuse(spark)
    output = Location(spark, request.output)
    work = output.sibling(f".{output.name}.work-{uuid.uuid4().hex[:8]}")  # where the output can be, executors can write
    try:
        _fit(spark, request, work)
    finally:
        with suppress(Exception):
            work.delete()


def when_interrupted(spark: SparkSession, request: FitRequest) -> str:
    """Which checkpoint there is, and how to go on."""
    folder = request.execution().checkpoint_dir
    if folder is None:
        return "No checkpoint was kept: with --checkpoint-dir FOLDER a fit keeps them, and --resume goes on."
    found = complete_checkpoints(Location(spark, folder))
    if not found:
        return f"There is no checkpoint in {folder} yet: the same command starts from the beginning."
    return f"The checkpoint {found[-1].uri} is complete: to go on from it, run the same command with --resume."


def _fit(spark: SparkSession, request: FitRequest, work: Location) -> None:
    clock = Clock()
    config, execution = request.fit_config(), request.execution()
    ids = (request.user_col, request.item_col)
    columns = Columns(*ids, request.label_col, request.threshold, request.weight_col)
    with ThreadPoolExecutor(1) as beside:  # the pairs are checked while the ratings are
        with clock("reading"):
            by = () if request.certify_by is None else (request.certify_by,)
            ratings = read_table(spark, request, "ratings", tuple(dict.fromkeys((*columns.names, *by))))
            ratings = with_weight(ratings, columns)
            features = {
                name: read_features(spark, request, name, column)
                for name, column in (("user_features", request.user_col), ("item_features", request.item_col))
                if getattr(request, name)
            }
            if request.predict:
                pairs = read_table(spark, request, "predict", ids)
                check_id_types(pairs, request, "predict", dict(ratings.select(*map(quoted, ids)).dtypes))
                checked = beside.submit(check_pairs, pairs, ids)
        if request.holdout is not None:
            with clock("holding out"):
                division = check_split(ratings, columns, request.holdout, config.seed)
                if not division.held_out.n:
                    raise RequestError(
                        f"--holdout {request.holdout:g} holds no rating out: the data are too few to certify on. "
                        "Choose a larger share"
                    )
                ratings, held_out = split_off(ratings, columns, request.holdout, config.seed)
        if request.predict:
            n_pairs = checked.result()
    estimator = OneBitCompletion(
        userCol=request.user_col,
        itemCol=request.item_col,
        labelCol=request.label_col,
        threshold=request.threshold,
        weightCol=request.weight_col,
        **by_param(config),
        **by_param(replace(execution, work_dir=work.uri)),
        **by_param(request.terms()),
    )
    estimator.setUserFeatures(features.get("user_features")).setItemFeatures(features.get("item_features"))
    counted = None if request.holdout is None else division.to_fit
    with clock("fitting"), Progress(config.max_iter, config.tol, quiet=request.quiet) as progress:
        model = fit_counted(estimator.setProgress(progress), ratings, counted)
    clock.split("fitting", "preparing", "iterations", progress.seconds)
    if request.holdout is not None:
        whole, held_out_tally = division.whole, division.held_out
        fitted = RatingCounts(model.info.n_ratings, model.info.n_positive, whole.coding, model.info.fingerprint)
        if summed(fitted, held_out_tally) != summed(whole):
            raise not_deterministic(f"{whole.n:,} ratings were counted, and those that were fitted later are others")
        with clock("certifying"):
            figures, by_rung = evaluation.measure(
                model, held_out, request.threshold, held_out_tally, request.certify_by
            )
            certificate = evaluation.certify(figures, request.terms(), KEPT_OUT)
            further = evaluation.further(model, by_rung, request.terms(), request.max_error, KEPT_OUT)
            repeated = bool(model.info.repeats.get("repeated"))
            made = [kept_by_coin(item, repeated).as_dict() for item in (certificate, *further)]
            found = [*model.certificate["certificates"], *made]
            model.certificate = document(found)
    with clock("measuring"):
        if request.calibrate:
            model = model.calibrate(held_out)
        if request.report and request.holdout is None:
            model = model.diagnose(ratings, "training ratings", fitted=True)
        elif request.report:
            source = "the held-out ratings that calibrated it" if request.calibrate else "held-out ratings"
            model = model.diagnose(held_out, source, tally=held_out_tally)
    with clock("saving"):
        writer = model.write()
        (writer.overwrite() if request.overwrite else writer).save(request.output)
        if execution.checkpoint_dir:
            clear_checkpoints(spark, execution.checkpoint_dir)
    if request.predict:
        with clock("predicting"), after(f"the model is saved in {request.output}, but predicting failed"):
            write_predictions(spark, model, pairs, n_pairs, Target.of(request))
    if not request.quiet:
        print("\n".join(_fit_summary(model, clock)))
        if (Location(spark, request.output) / REPORT).exists():  # not without matplotlib
            print(f"report: {request.output.rstrip('/')}/{REPORT}")
    tell_locations(request, {"model": request.output, **Target.of(request).places})


def _fit_summary(model: OneBitCompletionModel, clock: Clock) -> Iterator[str]:
    info = model.info
    share, (users, items) = info.n_positive / info.n_ratings, info.rated
    yield f"Fitted {info.n_ratings:,} ratings of {users:,} users on {items:,} items, {share:.1%} of them positive."
    for who, told in (info.side_features or {}).items():
        yield (
            f"Side features of the {who}s: {len(told['coding']):,}. {told['newcomers']:,} {who}s without ratings are "
            "predicted from them."
        )
    if info.repeats["repeated"]:
        yield (
            f"{info.repeats['repeated_cells']:,} cells were rated more than once ({info.repeats['repeated']:,} ratings "
            f"beyond the first), every rating counts; {info.repeats['conflicting']:,} of them with both labels."
        )
    if info.total_weight is not None:
        yield (
            f"Weighted by the column {info.columns['weight']!r}: the weights sum to {info.total_weight:,.6g}. "
            "Certificates count every rating once; theorem1 does not hold with weights and is left out."
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
        f": {off} not needed."
        if off
        else ": a larger --rank may or may not predict better. Trying several is a comparison (--certificate-grid)."
    )
    if info.weight_losses:
        tried = ", ".join(f"{loss:.4f} at {weight}" for weight, loss in info.weight_losses.items())
        yield f"Weight of a rating: {info.config.weight:g}, chosen by the loss of a tenth of the ratings ({tried})."
    certified = headline_of(model.certificate)
    if not certified:
        yield _why_no_certificate(model)
        if info.nine_tenths:
            yield f"{info.nine_tenths['statement']} To certify the model itself: --holdout 0.1."
    else:
        yield f"Certificate ({model.certificate['headline']}): {certified}"
    yield from further_statements(model.certificate["certificates"])
    for one in model.certificate["certificates"]:
        if one["name"] == "prior_split":
            yield (
                f"The model has learnt almost only from {one['prior_fraction']:.0%} of the ratings, its prior's: a "
                "fit without a prior split predicts better."
            )
    yield f"Time: {clock}."


def _why_no_certificate(model: OneBitCompletionModel) -> str:
    """Which features the fit used, and what gives a certificate."""
    who, implicit = list(model.info.side_features or {}), model.info.config.implicit_features
    used = ["implicit features, which are on by default"] if implicit else []
    used += [f"side features of the {one}s" for one in who]
    without = ["--no-implicit-features"] if implicit else []
    without += [f"no --{one}-features" for one in who]
    return (
        f"No certificate: the fit used {', and '.join(used)}. With these, a certificate takes ratings that are kept "
        "out (--holdout 0.1) or a prior split (--certificate-prior-split 0.5). Or fit without them: "
        f"{', '.join(without)}."
    )
