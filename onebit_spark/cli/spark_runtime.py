"""SparkRuntime: the jobs on a Spark session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from onebit_spark.certificate.certificates import Certificate
from onebit_spark.cli import runtime
from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import (
    FILES,
    FitRequest,
    JobRequest,
    PredictRequest,
    exists_already,
    is_csv,
    is_table_name,
)
from onebit_spark.cli.runtime import Target
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.execution import Execution
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.output_kinds import PREDICTED, PREDICTIONS, PREDICTIONS_CSV
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import RequestError, reason_of
from onebit_spark.estimator import fit_ratings
from onebit_spark.input.collect import SplitCounts, check_split, split_off
from onebit_spark.input.rating_checks import Columns, RatingCounts, not_deterministic, total_of
from onebit_spark.input.ratings import matching, missing, quoted, with_weight
from onebit_spark.input.tables import (
    EMPTY_CSV,
    NOT_JSON,
    Format,
    Unreadable,
    csv_problems,
    ending,
    format_of,
    is_data,
    shared_name,
    spark_csv,
)
from onebit_spark.ml.evaluation import (
    CheckedRatings,
    certify,
    check_request,
    checked_ratings,
    measure,
    predicted_pairs,
    sketch_of,
)
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location, replace_folder, table_format
from onebit_spark.predictor.scored import CertificateRequest, seen_in_fit
from onebit_spark.tuning.cross_validation import CrossValidation, spark_validation

CORRUPT = "_corrupt_record"  # Spark's column for lines that are no JSON objects


@dataclass(frozen=True)
class SparkRatings:
    """Ratings to fit, and those that were held out."""

    to_fit: DataFrame
    held_out: CheckedRatings | None = None
    division: SplitCounts | None = None  # counts of both parts


class SparkRuntime:
    """The jobs on a session. Tables are DataFrames."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._work: Location | None = None

    def refuse(self, request: JobRequest) -> None:
        runtime.refuse_outputs(self.session, request)
        if isinstance(request, FitRequest | PredictRequest):
            refuse_table(self.session, Target.of(request))

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()) -> DataFrame:
        return read_table(self.session, request, name, columns, optional)

    def features(self, request: FitRequest | PredictRequest, columns: Mapping[Who, str]) -> dict[Who, DataFrame]:
        return read_features(self.session, request, columns)

    def types(self, table: DataFrame, columns: Sequence[str]) -> dict[str, str]:
        chosen = table.select(*map(quoted, columns))
        return {column: field.dataType.simpleString() for column, field in zip(columns, chosen.schema, strict=True)}

    def is_text(self, request: JobRequest, name: str) -> bool:
        return format_here(self.session, request, name).name == "csv"

    def count_pairs(self, pairs: DataFrame, ids: Sequence[str]) -> int:
        return count_pairs(pairs, ids)

    # ---- fits --------------------------------------------------------------------------------------------------------

    @contextmanager
    def work_folder(self, output: str) -> Iterator[None]:
        """A folder next to the output, where executors can write. It is deleted at the end."""
        target = Location(self.session, output)
        self._work = target.sibling(f".{target.name}.work-{uuid.uuid4().hex[:8]}")
        try:
            yield
        finally:
            with suppress(Exception):
                self._work.delete()

    def ratings(
        self, table: DataFrame, columns: Columns, holdout: float | None, seed: int, by: str | None
    ) -> SparkRatings:
        ratings = with_weight(table, columns)
        if holdout is None:
            return SparkRatings(ratings)
        counted = check_split(ratings, columns, holdout, seed)
        if not counted.held_out.n:
            raise RequestError(runtime.nothing_held_out(holdout))
        to_fit, held_out = split_off(ratings, columns, holdout, seed)
        return SparkRatings(to_fit, CheckedRatings(held_out, columns, counted.held_out), counted)

    def fit(
        self, ratings: SparkRatings, columns: Columns, config: FitConfig, execution: Execution, terms: Terms,
        features: Mapping[Who, DataFrame], progress: Callable[[Iteration], None],
    ) -> OneBitCompletionModel:  # fmt: skip
        """The fitted ratings must be those that were counted before."""
        execution = replace(execution, work_dir=None if self._work is None else self._work.uri)
        counted = ratings.division
        size = None if counted is None else counted.to_fit
        model = fit_ratings(
            ratings.to_fit, columns, config, execution, terms, features, progress, counted=size
        ).setUserCol(columns.user).setItemCol(columns.item)  # fmt: skip
        if counted is not None:
            whole, info = counted.whole, model.info
            fitted = RatingCounts(info.n_ratings, info.n_positive, whole.coding, info.fingerprint)
            if total_of(fitted, counted.held_out) != total_of(whole):
                raise not_deterministic(
                    f"{whole.n:,} ratings were counted, and those that were fitted later are others"
                )
        return model

    def load(self, path: str) -> OneBitCompletionModel:
        """The model under the column names of its fit, whatever its Params say."""
        model = OneBitCompletionModel.load(path)
        return model.copy({model.userCol: model.info.columns["user"], model.itemCol: model.info.columns["item"]})

    def save(self, model: OneBitCompletionModel, path: str, overwrite: bool) -> None:
        writer = model.write()
        (writer.overwrite() if overwrite else writer).save(path)

    def with_featured_ids(self, model: OneBitCompletionModel, features: DataFrame, who: Who) -> OneBitCompletionModel:
        return model.foldInFeatures(features, who)

    def validation(
        self, table: DataFrame, columns: Columns, folds: int, seed: int, worker_limit: int
    ) -> AbstractContextManager[CrossValidation]:
        return spark_validation(table, columns, folds, seed, worker_limit)

    # ---- quality -----------------------------------------------------------------------------------------------------

    def judged_by(
        self, model: OneBitCompletionModel, table: DataFrame, threshold: float | None, request: CertificateRequest
    ) -> CheckedRatings:
        check_request(model.factors, table, request)
        return checked_ratings(model.factors, table, threshold)

    def measure(self, model: OneBitCompletionModel, on: CheckedRatings) -> dict[str, Any]:
        figures = measure(model.factors, on.ratings, on.columns.threshold, on.counts)[0]
        known = model.fitted
        asked = None if known is None else sketch_of(on.ratings, on.columns, on.counts.n, known.limit)
        return figures | {"warning": None if asked is None else seen_in_fit(known, asked)}

    def certify(
        self, model: OneBitCompletionModel, on: CheckedRatings, request: CertificateRequest,
        freshness: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], list[Certificate]]:  # fmt: skip
        return certify(model.factors, model.fitted, on, request, freshness)

    def certified(self, model: OneBitCompletionModel, certificates: Sequence[Certificate]) -> OneBitCompletionModel:
        return model.withCertificates(certificates)

    def calibrated(self, model: OneBitCompletionModel, on: CheckedRatings) -> OneBitCompletionModel:
        return model.calibrate(on.ratings)

    def diagnosed(self, model: OneBitCompletionModel, ratings: SparkRatings, source: str) -> OneBitCompletionModel:
        if ratings.held_out is None:
            return model.diagnose(ratings.to_fit, source, fitted=True)
        return model.diagnose(ratings.held_out.ratings, source, counts=ratings.held_out.counts)

    def noted(self, model: OneBitCompletionModel, facts: Mapping[str, Any]) -> OneBitCompletionModel:
        return model.changed(diagnostics={**(model.info.diagnostics or {}), "job": facts})

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predict(self, model: OneBitCompletionModel, pairs: DataFrame, n: int, target: Target) -> None:
        write_lines(self.session, predictions(model, pairs, n), target)

    def recommend(self, model: OneBitCompletionModel, n: int, seen: DataFrame | None, target: Target) -> None:
        write_lines(self.session, recommendations(model, n, seen), target)


# ---- tables ----------------------------------------------------------------------------------------------------------


def format_here(spark: SparkSession, request: JobRequest, name: str) -> Format:
    """The format of an input: as given, or by its ending, or by the files in its folder."""
    path = getattr(request, name)
    if request.format is not None:
        return Format(request.format, {})
    if ending(path) is not None or is_table_name(path):
        return format_of(path)
    try:
        files = list(_files_in(Location(spark, path)))
    except RequestError:
        files = []  # whatever is wrong with the path shows when it is read
    try:
        return format_of(path, files)
    except Unreadable as error:
        raise RequestError(f"{as_flag(name)} {path} {error}") from None


def _files_in(folder: Location) -> Iterator[str]:
    for name in filter(is_data, folder.names()):
        if "=" in name:
            yield from _files_in(folder / name)
        elif ending(name) is not None or "." not in name or not (folder / name).is_folder():
            yield name


def read_table(
    spark: SparkSession, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()
) -> DataFrame:
    """Read these columns from the path or table in the request's field ``name``, and ``optional`` ones if there.

    CSV has a header, and its columns are text.
    """
    format = format_here(spark, request, name)
    table = _loaded(spark, request, name, format, dict(request.option))
    _check_columns(table, request, name, format, columns)
    more = [column for column in optional if matching(table, column) and column not in columns]
    return table.select(*map(quoted, (*columns, *more)))


def read_features(
    spark: SparkSession, request: FitRequest | PredictRequest, columns: Mapping[Who, str]
) -> dict[Who, DataFrame]:
    """All columns of the tables of side features that the request names; ``columns`` are those of the ids."""
    return {
        who: _read_features(spark, request, f"{who}_features", column)
        for who, column in columns.items()
        if getattr(request, f"{who}_features")
    }


def _read_features(spark: SparkSession, request: JobRequest, name: str, id_column: str) -> DataFrame:
    """One of them. Of a CSV, columns of numbers become numbers; the ids stay text."""
    format, options = format_here(spark, request, name), dict(request.option)
    table = _loaded(spark, request, name, format, options)
    _check_columns(table, request, name, format, (id_column,))
    if format.name != "csv" or any(key.lower() == "inferschema" for key in options):
        return table
    types = _loaded(spark, request, name, format, {**options, "inferSchema": "true"}).dtypes
    own = matching(table, id_column)[0].name
    return table.select(
        *(F.col(quoted(column)) if column == own else F.col(quoted(column)).cast(kind) for column, kind in types)
    )


def _loaded(spark: SparkSession, request: JobRequest, name: str, format: Format, options: dict[str, str]) -> DataFrame:
    path, flag = getattr(request, name), as_flag(name)
    if format.name in FILES and (lake := table_format(spark, path)):
        raise runtime.is_lake_table(request, name, lake)
    options = {**format.options, **options}
    if format.name == "csv":
        if problems := csv_problems(options):
            raise RequestError(f"{flag} {path} cannot be read: {'; '.join(problems)}")
        options = spark_csv(options)
    try:
        table = spark.read.format(format.name).options(**options).load(path)
        return _of_one_header(table, flag, path, options) if format.name == "csv" else table
    except RequestError:
        raise
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error):
            if is_table_name(path) and spark.catalog.tableExists(path):
                return spark.table(path)
            kind = ", neither as a path nor as a table" if is_table_name(path) else ""
            raise RequestError(f"{flag} {path} does not exist{kind}") from error
        if "UNABLE_TO_INFER_SCHEMA" in str(error):
            raise RequestError(f"{flag} {path} holds no {format.name} file: check the path and the format") from error
        reason = f"{flag} {path} cannot be read as {format.name} (check the format and its options): {reason_of(error)}"
        raise RequestError(reason) from error


def _of_one_header(table: DataFrame, flag: str, path: str, options: Mapping[str, str]) -> DataFrame:
    """The table. If it has several files, a file with another header line than the first one ends the job.

    Spark reads CSV by the position of its columns. It compares header lines if a schema is given, in which a column
    without a name has an empty one. Spark has numbered the columns that share a name: a, a becomes a0, a1.
    """
    given = {key.lower(): value.strip().lower() for key, value in options.items()}
    if given.get("header") != "true" or "enforceschema" in given or len(table.inputFiles()) < 2:
        return table
    names = ["" if name == f"_c{n}" else name for n, name in enumerate(table.columns)]
    stems = [name.removesuffix(str(n)).lower() for n, name in enumerate(names) if name.endswith(str(n))]
    if len(set(stems)) < len(stems):  # perhaps they share a name: the header line decides
        text = StructType([StructField(name, StringType()) for name in table.columns])
        plain = {**{key: value for key, value in options.items() if key.lower() != "header"}, "mode": "PERMISSIVE"}
        first = table.sparkSession.read.format("csv").schema(text).options(**plain).load(path).first()
        if problem := shared_name([name or "" for name in first or ()]):
            raise RequestError(f"{flag} {path} {problem}")
    fields = [StructField(name, field.dataType) for name, field in zip(names, table.schema, strict=True)]
    reader = table.sparkSession.read.format("csv").schema(StructType(fields))
    return reader.options(**{**options, "enforceSchema": "false"}).load(path).toDF(*table.columns)


def _check_columns(table: DataFrame, request: JobRequest, name: str, format: Format, columns: Sequence[str]) -> None:
    if format.name == "json" and CORRUPT in table.columns:
        raise RequestError(f"{as_flag(name)} {getattr(request, name)} {NOT_JSON}")
    if format.name == "csv" and not table.columns:
        raise RequestError(f"{as_flag(name)} {getattr(request, name)} {EMPTY_CSV}")
    if absent := [column for column in columns if not matching(table, column)]:
        raise runtime.no_columns(request, name, absent, table.columns, format.name == "csv")


def count_pairs(pairs: DataFrame, ids: Sequence[str]) -> int:
    """The number of pairs. Raises a RequestError with a count and examples if an id is null or NaN."""
    absent = {column: missing(pairs, column) for column in ids}
    line = pairs.select(F.count(F.lit(1)), *map(F.count_if, absent.values())).first()
    assert line is not None
    n, *numbers = line
    counts = dict(zip(ids, numbers, strict=True))
    runtime.check_pairs(counts, {column: pairs.where(absent[column]).take(3) for column in ids if counts[column]})
    return int(n)


# ---- predictions -----------------------------------------------------------------------------------------------------


def refuse_table(spark: SparkSession, target: Target) -> None:
    """Refuse, before any work is done, a table that exists and may not be overwritten, or cannot be created."""
    if target.table is None:
        return
    if spark.catalog.tableExists(target.table):
        if not target.overwrite:
            raise RequestError(exists_already("--output-table", target.table))
        if not set(spark.table(target.table).columns) >= PREDICTED:
            raise RequestError(
                f"--output-table {target.table} is not a table of predictions, and nothing else is overwritten: "
                "choose another name, or drop it yourself"
            )
    database = target.table.rpartition(".")[0]
    if database and not spark.catalog.databaseExists(database):
        raise RequestError(f"--output-table {target.table} cannot be made: there is no database {database}")


def write_lines(spark: SparkSession, lines: DataFrame, target: Target) -> None:
    if target.table is not None:
        lines.write.mode("overwrite" if target.overwrite else "errorifexists").saveAsTable(target.table)
    if target.path is not None and is_csv(target.path):
        with PREDICTIONS_CSV.written_beside(Location(spark, target.path), target.path, target.overwrite) as file:
            parts = file.sibling(f"{file.name}-parts")
            lines.coalesce(1).write.csv(parts.uri, header=True, escape='"')
            next(part for part in parts.children() if part.name.startswith("part-")).move_to(file)
            parts.delete()
    elif target.path is not None:
        with replace_folder(spark, target.path, PREDICTIONS, target.overwrite) as folder:
            lines.write.parquet(folder)


def predictions(model: OneBitCompletionModel, pairs: DataFrame, n: int) -> DataFrame:
    """User, item, score, std, probability, prediction, and ``answered`` if an error rate was certified."""
    predicted = predicted_pairs(model.factors, pairs, n)
    prediction = F.col("prediction") > 0 if model.info.label_coding == "boolean" else F.col("prediction").cast("int")
    ids = [F.col(quoted(column)) for column in pairs.columns]
    answered = [model.answers(F.col("score"), F.col("std")).alias("answered")] if model.certifiedErrors else []
    return predicted.select(*ids, "score", "std", "probability", prediction.alias("prediction"), *answered)


def recommendations(model: OneBitCompletionModel, n: int, seen: DataFrame | None) -> DataFrame:
    """User, item, rank (1 is the best), score, std, probability."""
    user, item = model.getUserCol(), model.getItemCol()
    lists = model.recommendForAllUsers(n, excludeSeen=seen)
    lines = lists.select(F.col(quoted(user)), F.posexplode("recommendations").alias("rank", "best"))
    figures = {"score": "rating", "std": "std", "probability": "probability"}
    return lines.select(
        F.col(quoted(user)),
        F.col("best")[item].alias(item),
        (F.col("rank") + 1).alias("rank"),
        *(F.col("best")[field].cast("double").alias(name) for name, field in figures.items()),
    )
