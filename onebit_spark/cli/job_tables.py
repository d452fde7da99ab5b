"""The tables of the jobs: reads and checks ratings and pairs, writes predictions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from onebit_spark.cli.failures import reason_of
from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import (
    FILES,
    TABLE_FORMATS,
    FitRequest,
    JobRequest,
    PredictRequest,
    exists_already,
    is_table_name,
)
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.output_kinds import PREDICTED, PREDICTIONS, OutputKind
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import INTEGRAL, matching, missing, quoted
from onebit_spark.ml.prediction_params import plainly_named
from onebit_spark.ml.scored_ratings import predicted_pairs
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import RENAMING, Location, explained, replace_folder, table_format

NOT_JSON = "_corrupt_record"  # Spark's column for lines that are no JSON objects


def read_table(
    spark: SparkSession, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()
) -> DataFrame:
    """Read these columns from the path or table in the request's field ``name``, and ``optional`` ones if there.

    CSV has a header, and its columns are text.
    """
    table = _loaded(spark, request, name, dict(request.option))
    _check_columns(table, request, name, columns)
    more = [column for column in optional if matching(table, column) and column not in columns]
    return table.select(*map(quoted, (*columns, *more)))


def read_features(
    spark: SparkSession, request: FitRequest | PredictRequest, user: str, item: str
) -> dict[Who, DataFrame]:
    """All columns of the tables of side features that the request names; ``user`` and ``item`` are the id columns."""
    columns: dict[Who, str] = {"user": user, "item": item}
    return {
        who: _read_features(spark, request, f"{who}_features", column)
        for who, column in columns.items()
        if getattr(request, f"{who}_features")
    }


def _read_features(spark: SparkSession, request: JobRequest, name: str, id_column: str) -> DataFrame:
    """One of them. Of a CSV, columns of numbers become numbers; the ids stay text."""
    options = dict(request.option)
    table = _loaded(spark, request, name, options)
    _check_columns(table, request, name, (id_column,))
    if request.format != "csv" or any(key.lower() == "inferschema" for key in options):
        return table
    types = _loaded(spark, request, name, {**options, "inferSchema": "true"}).dtypes
    own = matching(table, id_column)[0].name
    return table.select(
        *(F.col(quoted(column)) if column == own else F.col(quoted(column)).cast(kind) for column, kind in types)
    )


def _loaded(spark: SparkSession, request: JobRequest, name: str, options: dict[str, str]) -> DataFrame:
    path, flag = getattr(request, name), as_flag(name)
    if request.format in FILES and (lake := table_format(spark, path)):
        raise RequestError(
            f"{flag} {path} is of a table of {TABLE_FORMATS[lake]}, whose folder also has files that no longer count: "
            f"name the table of the catalog ({flag} catalog.database.table), or read the folder with --format {lake}"
        )
    if request.format == "csv" and not any(key.lower() == "header" for key in options):
        options = {**options, "header": "true"}
    try:
        return spark.read.format(request.format).options(**options).load(path)
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error):
            if is_table_name(path) and spark.catalog.tableExists(path):
                return spark.table(path)
            kind = ", neither as a path nor as a table" if is_table_name(path) else ""
            raise RequestError(f"{flag} {path} does not exist{kind}") from error
        if "UNABLE_TO_INFER_SCHEMA" in str(error):
            raise RequestError(f"{flag} {path} holds no {request.format} file: check the path and --format") from error
        reason = f"{flag} {path} cannot be read as {request.format} (check --format and --option): {reason_of(error)}"
        raise RequestError(reason) from error


def _check_columns(table: DataFrame, request: JobRequest, name: str, columns: Sequence[str]) -> None:
    path, flag = getattr(request, name), as_flag(name)
    if request.format == "json" and NOT_JSON in table.columns:
        raise RequestError(
            f"{flag} {path} has lines that are no JSON objects: write one object per line; "
            "--option multiLine=true reads a file of one array"
        )
    unknown = [column for column in columns if not matching(table, column)]
    if unknown:
        cure = (
            "name them with --user-col, --item-col, --label-col, --weight-col"
            if hasattr(request, "user_col")
            else "rename them"
        )
        if request.format == "csv":
            cure += "; a file without a header line needs --option header=false, and its columns are _c0, _c1, …"
        raise RequestError(
            f"{flag} {path} has no column {', '.join(map(repr, unknown))}; "
            f"its columns are {', '.join(table.columns) or 'none'}: {cure}"
        )


def check_pairs(pairs: DataFrame, ids: Sequence[str]) -> int:
    """The number of pairs. Raises a RequestError with a count and examples if an id is null or NaN."""
    absent = [missing(pairs, column) for column in ids]
    line = pairs.select(F.count(F.lit(1)), *map(F.count_if, absent)).first()
    assert line is not None
    n, *counts = line
    problems = []
    for column, condition, count in zip(ids, absent, counts, strict=True):
        if count:
            examples = ", ".join(f"({', '.join(map(str, pair))})" for pair in pairs.where(condition).take(3))
            problems.append(f"{count:,} pairs with null or NaN in column {column!r}, such as {examples}")
    if problems:
        raise RequestError("; ".join(problems) + ": drop or fill them")
    return int(n)


def check_id_types(table: DataFrame, request: JobRequest, name: str, expected: Mapping[str, str]) -> None:
    """Refuse ids (column ─► type) of another type than in the fit. Integers of different widths are accepted."""
    problems = []
    for column, wanted in expected.items():
        given = table.schema[column].dataType.simpleString()
        if given != wanted and not (given in INTEGRAL and wanted in INTEGRAL):
            problems.append(f"column {column!r} of {as_flag(name)} is of type {given}, but was {wanted} in the fit")
    if problems:
        csv = " (CSV is read as text; --option inferSchema=true reads numbers)" if request.format == "csv" else ""
        raise RequestError("; ".join(problems) + f": cast it{csv}")


def id_types(model: OneBitCompletionModel) -> dict[str, str]:
    """The model's id columns with their types. The column of the users is first."""
    return {model.info.columns[side]: model.info.id_types[side] for side in ("user", "item")}


def refuse_outputs(spark: SparkSession, request: JobRequest) -> None:
    """Refuse, before any work is done, outputs that may not be overwritten, or that cannot be created."""
    for field, kind in request.outputs.items():
        if path := getattr(request, field):
            refuse_output(spark, as_flag(field), path, kind, request.overwrite)
    if isinstance(request, FitRequest):
        execution = request.execution()
        if execution.checkpoint_dir:
            writable(spark, "--checkpoint-dir", execution.checkpoint_dir, inside=True)
        if execution.blocks_dir and not Location(spark, execution.blocks_dir).exists():
            writable(spark, "--blocks", execution.blocks_dir)
    if isinstance(request, FitRequest | PredictRequest):
        Target.of(request).refuse(spark)


def refuse_output(spark: SparkSession, flag: str, path: str, kind: OutputKind, overwrite: bool) -> Location:
    """The location of an output. It does not exist, or may be overwritten; and it can be created."""
    target = writable(spark, flag, path)
    if target.exists():
        if not overwrite:
            raise RequestError(exists_already(flag, path))
        if kind.is_file and target.is_folder():
            raise RequestError(f"{flag} {path} is a folder: name a file")
        kind.check(target, f"{flag} {path}")
    return target


def writable(spark: SparkSession, flag: str, path: str, inside: bool = False) -> Location:
    """The location of an output. A RequestError if it cannot be created, or nothing ``inside`` it, which is tried."""
    try:
        target = Location(spark, path)
        above = target if inside else target.parent
        while not above.exists():
            above = above.parent
    except RequestError as error:
        raise RequestError(f"{flag}: {error}") from error
    if above.is_folder() and above.scheme not in RENAMING:
        return target  # an object store has no folder to try
    trial = above / f".{target.name}.trial-{uuid.uuid4().hex[:8]}"
    try:
        with explained(""):
            trial.write_bytes(b"")
            trial.delete()
    except RequestError:
        place = above.uri.removeprefix("file:")
        raise RequestError(f"{flag} {path} cannot be made: {place} is not a folder that you can write to") from None
    return target


class Target(NamedTuple):
    """Where predictions go: a folder of Parquet files, which appears whole or not at all; a table of the catalog."""

    folder: str | None
    table: str | None
    overwrite: bool

    @classmethod
    def of(cls, request: FitRequest | PredictRequest) -> Target:
        folder = request.predictions if isinstance(request, FitRequest) else request.output
        return cls(folder, request.output_table, request.overwrite)

    @property
    def places(self) -> dict[str, str | None]:
        return {"predictions": self.folder, "table of predictions": self.table}

    def refuse(self, spark: SparkSession) -> None:
        """Refuse, before any work is done, a table that exists and may not be overwritten, or cannot be created."""
        if self.table is None:
            return
        if spark.catalog.tableExists(self.table):
            if not self.overwrite:
                raise RequestError(exists_already("--output-table", self.table))
            if not set(spark.table(self.table).columns) >= PREDICTED:
                raise RequestError(
                    f"--output-table {self.table} is not a table of predictions, and nothing else is overwritten: "
                    "choose another name, or drop it yourself"
                )
        database = self.table.rpartition(".")[0]
        if database and not spark.catalog.databaseExists(database):
            raise RequestError(f"--output-table {self.table} cannot be made: there is no database {database}")

    def write(self, spark: SparkSession, lines: DataFrame) -> None:
        if self.table is not None:
            lines.write.mode("overwrite" if self.overwrite else "errorifexists").saveAsTable(self.table)
        if self.folder is not None:
            with replace_folder(spark, self.folder, PREDICTIONS, self.overwrite) as folder:
                lines.write.parquet(folder)


def write_predictions(
    spark: SparkSession, model: OneBitCompletionModel, pairs: DataFrame, n: int, target: Target
) -> None:
    """Write user, item, score, std, probability, prediction, and ``answered`` if an error rate was certified.

    Of n pairs that were checked.
    """
    predicted = predicted_pairs(plainly_named(model, answeredCol="answered"), pairs, n)
    prediction = F.col("prediction") > 0 if model.info.label_coding == "boolean" else F.col("prediction").cast("int")
    ids = [F.col(quoted(column)) for column in pairs.columns]
    answered = ["answered"] if model.certifiedErrors else []
    table = predicted.select(*ids, "score", "std", "probability", prediction.alias("prediction"), *answered)
    target.write(spark, table)


def write_recommendations(
    spark: SparkSession, model: OneBitCompletionModel, n: int, seen: DataFrame | None, target: Target
) -> None:
    """Write user, item, rank (1 is the best), score, std, probability."""
    user, item = (model.info.columns[side] for side in ("user", "item"))
    plain = model.copy({model.userCol: user, model.itemCol: item})
    lists = plain.recommendForAllUsers(n, excludeSeen=seen)
    lines = lists.select(F.col(quoted(user)), F.posexplode("recommendations").alias("rank", "best"))
    figures = {"score": "rating", "std": "std", "probability": "probability"}
    table = lines.select(
        F.col(quoted(user)),
        F.col("best")[item].alias(item),
        (F.col("rank") + 1).alias("rank"),
        *(F.col("best")[field].cast("double").alias(name) for name, field in figures.items()),
    )
    target.write(spark, table)
