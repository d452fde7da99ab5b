"""The job fit, and what all jobs share: checks of inputs and outputs, and the summary at the end.

A job runs on a LocalRuntime or a SparkRuntime, which have the same methods. Their tables and models
have other types: a job uses only a model's ``info``, ``certificate`` and ``changed``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onebit_spark import __version__
from onebit_spark.certify.freshness import KEPT_OUT
from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.cli import requests
from onebit_spark.cli.flags import as_flag, command_of
from onebit_spark.cli.progress import Clock, Progress
from onebit_spark.cli.requests import FitRequest, JobRequest, PredictRequest, Target
from onebit_spark.cli.running import failures_after
from onebit_spark.cli.sentences import fit_summary
from onebit_spark.data import locations as files
from onebit_spark.data.locations import Location, OutputKind
from onebit_spark.data.ratings import INTEGRAL, Columns
from onebit_spark.errors import RequestError
from onebit_spark.fitting.checkpoints import clear_checkpoints, complete_checkpoints
from onebit_spark.records import Fields
from onebit_spark.report.map import coloured
from onebit_spark.report.page import REPORT
from onebit_spark.settings import Who

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Runtime = Any  # a LocalRuntime or a SparkRuntime
InputTable = Any  # an ArrowTable or a DataFrame
KINDS = {"model": files.MODEL, "figures": files.METRICS, "map": files.MAP}


def fit(runtime: Runtime, request: FitRequest) -> None:
    refuse_outputs(runtime.session, request)
    clock = Clock()
    columns = columns_of(request)
    config = request.fit_config
    with runtime.work_folder(request.output):
        ratings, features, pairs, n_pairs = _read(runtime, request, columns, clock)
        with (
            clock("preparing"),
            Progress(config.max_iter, config.tol, quiet=request.quiet) as progress,
        ):
            model = runtime.fit(ratings, columns, request, features, progress)
        if choosing := model.info.seconds["choosing"]:
            clock.move("preparing", "choosing", choosing)
        clock.move("preparing", "iterations", progress.seconds)
        model = _judged(runtime, request, ratings, model, clock)
        if request.report:
            job = {
                "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "version": __version__,
                "input": request.ratings,
                "command": command_of("fit", request),
                "seconds": dict(clock.seconds),
            }
            seen = model.info.diagnostics or {}
            more = (
                {"map": with_colours(runtime, seen["map"], features, columns.user)}
                if "map" in seen
                else {}
            )
            model = model.with_info(replace(model.info, diagnostics={**seen, **more, "job": job}))
        with clock("saving"):
            runtime.save(model, request.output, request.overwrite)
            if checkpoints := request.checkpoint_dir:
                clear_checkpoints(runtime.session, checkpoints)
        if pairs is not None:
            with (
                clock("predicting"),
                failures_after(f"the model is saved in {request.output}, but predicting failed"),
            ):
                runtime.predict(model, pairs, n_pairs, Target.of(request))
    # Without matplotlib there is no report.
    drawn = not request.quiet and (Location(runtime.session, request.output) / REPORT).exists()
    report = f"{request.output.rstrip('/')}/{REPORT}" if drawn else None
    places = {"report": report, "model": request.output, **Target.of(request).places}
    print_summary(fit_summary(model.info, model.certificate), clock, request.quiet, places)


def how_to_resume(runtime: Runtime, request: FitRequest) -> str:
    folder = request.checkpoint_dir
    if folder is None:
        return (
            "No checkpoint was kept: with --checkpoint-dir FOLDER a fit keeps them, and "
            "--resume continues it."
        )
    checkpoints = complete_checkpoints(Location(runtime.session, folder))
    if not checkpoints:
        return (
            f"There is no checkpoint in {folder} yet: the same command starts from the beginning."
        )
    return (
        f"The checkpoint {checkpoints[-1].uri} is complete: to continue from it, run the "
        "same command with --resume."
    )


def columns_of(request: FitRequest) -> Columns:
    return Columns(
        request.user_col, request.item_col, request.label_col, request.threshold, request.weight_col
    )


def _read(
    runtime: Runtime, request: FitRequest, columns: Columns, clock: Clock
) -> tuple[Any, dict[Who, InputTable], InputTable | None, int]:
    """The ratings, checked and partly held out; side features; pairs to predict after the fit, and
    their number.

    The pairs are counted while the ratings are read.
    """
    ids = (columns.user, columns.item)
    pairs = None
    count = None
    by = request.certify_by
    with ThreadPoolExecutor(1) as executor:
        with clock("reading"):
            names = dict.fromkeys((*columns.names, *([] if by is None else [by])))
            table = runtime.table(request, "ratings", tuple(names))
            features = read_features(runtime, request, columns.ids)
            if request.predict:
                pairs = runtime.table(request, "predict", ids)
                check_id_types(runtime, request, "predict", pairs, runtime.types(table, ids))
                count = executor.submit(runtime.count_pairs, pairs, ids)
        with clock(
            "holding out"
            if request.holdout is not None and runtime.session is not None
            else "reading"
        ):
            ratings = runtime.ratings(table, columns, request)
        return ratings, features, pairs, 0 if count is None else count.result()


def _judged(runtime: Runtime, request: FitRequest, ratings: Any, model: Any, clock: Clock) -> Any:
    held_out = ratings.held_out
    if held_out is not None:
        with clock("certifying"):
            wanted = CertificateRequest(
                request.terms, request.max_error, request.certify_by, request.min_precision
            )
            judged = runtime.judge_held_out(model, ratings, wanted.by)
            certificates = model.certify_on(judged, wanted, KEPT_OUT)[1]
            model = model.replace_certificates(certificates)
    with clock("measuring"):
        source = "training ratings" if held_out is None else "held-out ratings"
        if request.calibrate and held_out is not None:
            model = model.calibrate_on(runtime.judge_held_out(model, ratings))
            source = "the held-out ratings that calibrated it"
        return runtime.diagnosed(model, ratings, source) if request.report else model


def with_colours(
    runtime: Runtime, drawn: Fields, features: Mapping[Who, InputTable], column: str
) -> Fields:
    """A map whose colours are a column of the side features of the users, if they have one with few
    values.
    """
    return (
        coloured(drawn, runtime.groups(features["user"], column, drawn))
        if "user" in features
        else drawn
    )


# ---- inputs ------------------------------------------------------------------------------------


def read_features(
    runtime: Runtime,
    request: FitRequest | PredictRequest | requests.PositionsRequest,
    columns: Mapping[Who, str],
) -> dict[Who, InputTable]:
    """All columns of the tables of side features that the request names; ``columns`` are those of
    the ids.
    """
    names = {who: f"{who}_features" for who in columns}
    return {
        who: runtime.features(request, name, columns[who])
        for who, name in names.items()
        if getattr(request, name)
    }


def check_id_types(
    runtime: Runtime, request: JobRequest, name: str, table: InputTable, expected: Mapping[str, str]
) -> None:
    """Refuse ids of another type than ``expected`` (column ─► type).

    Integers of different widths are accepted.
    """
    given = runtime.types(table, tuple(expected))
    problems = [
        f"column {column!r} of {as_flag(name)} is of type {given[column]}, but was {wanted} in "
        "the fit"
        for column, wanted in expected.items()
        if given[column] != wanted and not (given[column] in INTEGRAL and wanted in INTEGRAL)
    ]
    if problems:
        csv = runtime.is_csv(request, name, table)
        hint = " (CSV is read as text; --option inferSchema=true reads numbers)" if csv else ""
        raise RequestError("; ".join(problems) + f": cast it{hint}")


# ---- outputs -----------------------------------------------------------------------------------


def refuse_outputs(spark: SparkSession | None, request: JobRequest) -> None:
    for name, what in request.outputs.items():
        if path := getattr(request, name):
            kind = (
                files.TABLES[what][requests.is_csv(path)] if what in files.TABLES else KINDS[what]
            )
            refuse_output(spark, as_flag(name), path, kind, request.overwrite)
    if isinstance(request, FitRequest) and request.checkpoint_dir:
        writable(spark, "--checkpoint-dir", request.checkpoint_dir, inside=True)
    if (
        isinstance(request, FitRequest | PredictRequest)
        and request.output_table
        and spark is not None
    ):
        _refuse_table(spark, request.output_table, request.overwrite)


def refuse_output(
    spark: SparkSession | None, flag: str, path: str, kind: OutputKind, overwrite: bool
) -> Location:
    """The location of an output.

    It does not exist, or may be overwritten; and it can be created.
    """
    target = writable(spark, flag, path)
    if target.exists():
        if not overwrite:
            raise RequestError(requests.exists_already(flag, path))
        if kind.is_file and target.is_folder():
            raise RequestError(f"{flag} {path} is a folder: name a file")
        kind.check(target, f"{flag} {path}")
    return target


def _refuse_table(spark: SparkSession, table: str, overwrite: bool) -> None:
    if spark.catalog.tableExists(table):
        if not overwrite:
            raise RequestError(requests.exists_already("--output-table", table))
        if not set(spark.table(table).columns) >= files.PREDICTED:
            raise RequestError(
                f"--output-table {table} is not a table of predictions, and nothing else is "
                "overwritten: "
                "choose another name, or drop it yourself"
            )
    database = table.rpartition(".")[0]
    if database and not spark.catalog.databaseExists(database):
        raise RequestError(
            f"--output-table {table} cannot be made: there is no database {database}"
        )


def writable(spark: SparkSession | None, flag: str, path: str, inside: bool = False) -> Location:
    """The location of an output.

    A RequestError if it cannot be created, or nothing ``inside`` it, which is tried.
    """
    try:
        target = Location(spark, path)
        above = target if inside else target.parent
        while not above.exists():
            above = above.parent
    except RequestError as error:
        raise RequestError(f"{flag}: {error}") from error
    if above.is_folder() and above.scheme not in files.RENAMING:
        return target  # an object store has no folder to try
    trial = above / f".{target.name}.trial-{uuid.uuid4().hex[:8]}"
    try:
        with files.explained(""):
            trial.write_bytes(b"")
            trial.delete()
    except RequestError:
        place = above.uri.removeprefix("file:")
        raise RequestError(
            f"{flag} {path} cannot be made: {place} is not a folder that you can write to"
        ) from None
    return target


# ---- what they print ---------------------------------------------------------------------------


def print_summary(
    lines: Iterable[str], clock: Clock | None, quiet: bool, places: Mapping[str, str | None]
) -> None:
    """Print the summary, the seconds, and where the outputs are.

    A quiet job prints only the paths.
    """
    if not quiet:
        print(*lines, *([] if clock is None else [f"Time: {clock}."]), sep="\n")
    for name, path in places.items():
        if path:
            print(path if quiet else f"{name}: {path}", flush=True)
