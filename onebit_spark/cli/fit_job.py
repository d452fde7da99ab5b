"""fit: ratings in, a certified model out."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from onebit_spark import __version__
from onebit_spark.certificate.certificates import kept_by_coin
from onebit_spark.cli.checks import Target, check_id_types
from onebit_spark.cli.failures import noting_success
from onebit_spark.cli.flags import command_of
from onebit_spark.cli.progress import Clock, Progress
from onebit_spark.cli.requests import FitRequest
from onebit_spark.cli.runtime import Division, FitPlan, Ratings, Runtime, Table
from onebit_spark.cli.summaries import fit_summary, print_summary
from onebit_spark.core.fitted_features import Who
from onebit_spark.input.rating_checks import Columns
from onebit_spark.ml.checkpoint import clear_checkpoints, complete_checkpoints
from onebit_spark.platform.files import Location
from onebit_spark.predictor.certification import KEPT_OUT, CertificateRequest
from onebit_spark.report.page import REPORT


@dataclass(frozen=True)
class Inputs:
    """What a fit reads."""

    ratings: Ratings
    features: dict[Who, Table]
    pairs: Table | None = None  # to predict after the fit
    n_pairs: int = 0


def run(runtime: Runtime, request: FitRequest) -> None:
    runtime.refuse(request)
    clock, columns = Clock(), _columns(request)
    with runtime.beside(request.output):
        inputs = _read(runtime, request, columns, clock)
        plan = FitPlan.of(request, columns)
        with clock("fitting"), Progress(plan.config.max_iter, plan.config.tol, quiet=request.quiet) as progress:
            model = runtime.fit(plan, inputs.ratings, inputs.features, progress)
        clock.split("fitting", "preparing", "iterations", progress.seconds)
        model = _judged(runtime, request, inputs, model, clock)
        if request.report:
            model = runtime.noted(model, _facts(request, clock))
        with clock("saving"):
            runtime.save(model, request.output, request.overwrite)
            if checkpoints := request.execution().checkpoint_dir:
                clear_checkpoints(runtime.session, checkpoints)
        if inputs.pairs is not None:
            with clock("predicting"), noting_success(f"the model is saved in {request.output}, but predicting failed"):
                runtime.predict(model, inputs.pairs, inputs.n_pairs, Target.of(request))
    drawn = not request.quiet and (Location(runtime.session, request.output) / REPORT).exists()  # needs matplotlib
    report = f"{request.output.rstrip('/')}/{REPORT}" if drawn else None
    places = {"report": report, "model": request.output, **Target.of(request).places}
    print_summary(fit_summary(model.info, model.certificate), clock, request.quiet, places)


def _facts(request: FitRequest, clock: Clock) -> dict[str, Any]:
    """What the report says about the job: when, by which version, from what, by which command, in which seconds."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "version": __version__,
        "input": request.ratings,
        "command": command_of("fit", request),
        "seconds": dict(clock.seconds),
    }


def when_interrupted(runtime: Runtime, request: FitRequest) -> str:
    """Which checkpoint there is, and how to go on."""
    folder = request.execution().checkpoint_dir
    if folder is None:
        return "No checkpoint was kept: with --checkpoint-dir FOLDER a fit keeps them, and --resume goes on."
    checkpoints = complete_checkpoints(Location(runtime.session, folder))
    if not checkpoints:
        return f"There is no checkpoint in {folder} yet: the same command starts from the beginning."
    return f"The checkpoint {checkpoints[-1].uri} is complete: to go on from it, run the same command with --resume."


def _columns(request: FitRequest) -> Columns:
    return Columns(request.user_col, request.item_col, request.label_col, request.threshold, request.weight_col)


def _read(runtime: Runtime, request: FitRequest, columns: Columns, clock: Clock) -> Inputs:
    """Read, check and divide. The pairs are checked while the ratings are."""
    ids, pairs, counted = (columns.user, columns.item), None, None
    division = Division(request.holdout, request.fit_config().seed, request.certify_by)
    with ThreadPoolExecutor(1) as beside:
        with clock("reading"):
            by = [request.certify_by] if request.certify_by is not None else []
            table = runtime.table(request, "ratings", tuple(dict.fromkeys((*columns.names, *by))))
            features = runtime.features(request, columns.ids)
            if request.predict:
                pairs = runtime.table(request, "predict", ids)
                types = runtime.types(pairs, ids), runtime.types(table, ids)
                check_id_types(*types, "predict", runtime.is_text(request, "predict"))
                counted = beside.submit(runtime.count_pairs, pairs, ids)
        with clock("holding out" if request.holdout is not None and runtime.session is not None else "reading"):
            ratings = runtime.ratings(table, columns, division)
        return Inputs(ratings, features, pairs, 0 if counted is None else counted.result())


def _judged(runtime: Runtime, request: FitRequest, inputs: Inputs, model: Any, clock: Clock) -> Any:
    """The model with its certificates, its calibration and the figures of its report."""
    held_out = inputs.ratings.held_out
    if held_out is not None:
        with clock("certifying"):
            wanted = CertificateRequest(request.terms(), request.max_error, request.certify_by)
            _, certificates = runtime.certify(model, held_out, wanted, KEPT_OUT)
            repeated = bool(model.info.repeats.get("repeated"))
            model = runtime.certified(model, [kept_by_coin(item, repeated) for item in certificates])
    with clock("measuring"):
        source = "training ratings" if held_out is None else "held-out ratings"
        if request.calibrate and held_out is not None:
            model = runtime.calibrated(model, held_out)
            source = "the held-out ratings that calibrated it"
        if request.report:
            model = runtime.diagnosed(model, inputs.ratings, source)
    return model
