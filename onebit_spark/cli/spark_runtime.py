"""SparkRuntime: the jobs on a Spark session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import FILES, FitRequest, JobRequest, Target, is_csv, is_table_name
from onebit_spark.core.solver import Iteration
from onebit_spark.data import files as tables
from onebit_spark.data.locations import Location, replace_folder, table_format
from onebit_spark.data.ratings import (
    Columns,
    RatingCounts,
    check_division,
    check_pairs,
    checked_lines,
    not_deterministic,
    total_of,
)
from onebit_spark.engines.spark.columns import matching, missing, quoted, split_off, with_weight
from onebit_spark.engines.spark.failures import reason_of
from onebit_spark.engines.spark.ratings import SplitCounts, check_split
from onebit_spark.errors import RequestError
from onebit_spark.records import Record
from onebit_spark.report.map import groups_of
from onebit_spark.settings import Who
from onebit_spark.spark import scoring
from onebit_spark.spark.estimator import fit_ratings
from onebit_spark.spark.model import OneBitCompletionModel
from onebit_spark.spark.scoring import SparkRatings

CORRUPT = "_corrupt_record"  # Spark's column for lines that are no JSON objects


class HeldOut(NamedTuple):
    frame: DataFrame
    columns: Columns
    counts: RatingCounts

    def judged_by(self, model: OneBitCompletionModel, by: str | None = None) -> SparkRatings:
        return SparkRatings(model.factors, self.frame, self.columns, self.counts, by)


class DividedFrame(NamedTuple):
    to_fit: DataFrame
    held_out: HeldOut | None = None
    division: SplitCounts | None = None  # counts of both parts


class SparkRuntime:
    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._work: Location | None = None

    # ---- tables ---------------------------------------------------------------------------------

    def table(
        self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> DataFrame:
        """These columns of the path or table in the request's field ``name``, and ``optional`` ones
        if there.
        """
        table, _ = self._opened(request, name, columns)
        more = [column for column in optional if matching(table, column) and column not in columns]
        return table.select(*map(quoted, (*columns, *more)))

    def features(self, request: JobRequest, name: str, column: str) -> DataFrame:
        table, format = self._opened(request, name, (column,))
        if format != "csv" or any(key.lower() == "inferschema" for key in request.option):
            return table
        types = self._opened(request, name, (column,), inferSchema="true")[0].dtypes
        own = matching(table, column)[0].name
        return table.select(
            *(
                F.col(quoted(one)) if one == own else F.col(quoted(one)).cast(kind)
                for one, kind in types
            )
        )

    def types(self, table: DataFrame, columns: Sequence[str]) -> dict[str, str]:
        chosen = table.select(*map(quoted, columns))
        return {
            column: field.dataType.simpleString()
            for column, field in zip(columns, chosen.schema, strict=True)
        }

    def is_csv(self, request: JobRequest, name: str, table: DataFrame) -> bool:
        return self._format(request, name).name == "csv"

    def count_pairs(self, pairs: DataFrame, ids: Sequence[str]) -> int:
        absent = {column: missing(pairs, column) for column in ids}
        line = pairs.select(F.count(F.lit(1)), *map(F.count_if, absent.values())).first()
        assert line is not None
        n, *numbers = line
        counts = dict(zip(ids, numbers, strict=True))
        check_pairs(
            counts,
            {column: pairs.where(absent[column]).take(3) for column in ids if counts[column]},
        )
        return int(n)

    def _format(self, request: JobRequest, name: str) -> tables.Format:
        """The format of an input: as given, or by its ending, or by the files in its folder."""
        path = getattr(request, name)
        files = list[str]()
        if request.format is not None:
            return tables.Format(request.format, {})
        if tables.ending(path) is None and not is_table_name(path):
            with suppress(RequestError):  # whatever is wrong with the path shows when it is read
                files = list(_files_in(Location(self.session, path)))
        return tables.format_of(path, files)

    def _opened(
        self, request: JobRequest, name: str, columns: Sequence[str], **more: str
    ) -> tuple[DataFrame, str]:
        """The input, which has these columns, and its format.

        CSV has a header, and its columns are text.
        """
        try:
            format, implied = self._format(request, name)
            if format in FILES and (lake := table_format(self.session, getattr(request, name))):
                raise request.is_lake_table(name, lake)
            table = self._loaded(
                getattr(request, name), format, {**implied, **request.option, **more}
            )
        except tables.Unreadable as error:
            raise RequestError(f"{as_flag(name)} {getattr(request, name)} {error}") from error
        if absent := [column for column in columns if not matching(table, column)]:
            raise request.no_columns(name, absent, table.columns, format == "csv")
        return table, format

    def _loaded(self, path: str, format: str, options: Mapping[str, str]) -> DataFrame:
        if format == "csv":
            tables.check_switches(options)
            options = tables.spark_csv(options)
        try:
            table = self.session.read.format(format).options(**options).load(path)
            table = _of_one_header(table, path, options) if format == "csv" else table
        except RequestError:
            raise
        except Exception as error:
            if "PATH_NOT_FOUND" in str(error):
                if is_table_name(path) and self.session.catalog.tableExists(path):
                    return self.session.table(path)
                kind = ", neither as a path nor as a table" if is_table_name(path) else ""
                raise tables.Unreadable(f"does not exist{kind}") from error
            if "UNABLE_TO_INFER_SCHEMA" in str(error):
                raise tables.Unreadable(
                    f"holds no {format} file: check the path and the format"
                ) from error
            reason = (
                f"cannot be read as {format} (check the format and its options): {reason_of(error)}"
            )
            raise tables.Unreadable(reason) from error
        if format == "json" and CORRUPT in table.columns:
            raise tables.Unreadable(tables.NOT_JSON)
        if format == "csv" and not table.columns:
            raise tables.Unreadable(tables.EMPTY_CSV)
        return table

    # ---- fits -----------------------------------------------------------------------------------

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

    def ratings(self, table: DataFrame, columns: Columns, request: FitRequest) -> DividedFrame:
        ratings = with_weight(table, columns)
        holdout = request.holdout
        seed = request.fit_config.seed
        if holdout is None:
            return DividedFrame(ratings)
        counted = check_split(ratings, columns, holdout, seed)
        check_division(request.holdout_flag, counted.whole, counted.held_out)
        to_fit, held_out = split_off(ratings, columns, holdout, seed)
        return DividedFrame(to_fit, HeldOut(held_out, columns, counted.held_out), counted)

    def fit(
        self,
        ratings: DividedFrame,
        columns: Columns,
        request: FitRequest,
        features: Mapping[Who, DataFrame],
        progress: Callable[[Iteration], None],
    ) -> OneBitCompletionModel:
        """A model of the ratings that are not held out.

        They must be those that were counted before.
        """
        execution = replace(
            request.execution, work_dir=None if self._work is None else self._work.uri
        )
        counted = ratings.division
        size = None if counted is None else counted.to_fit
        model = (
            fit_ratings(
                ratings.to_fit,
                columns,
                request.fit_config,
                execution,
                request.terms,
                features,
                progress,
                counted=size,
            )
            .setUserCol(columns.user)
            .setItemCol(columns.item)
        )
        if counted is not None:
            whole = counted.whole
            info = model.info
            fitted = RatingCounts(info.n_ratings, info.n_positive, whole.coding, info.fingerprint)
            if total_of(fitted, counted.held_out) != total_of(whole):
                raise not_deterministic(
                    f"{whole.n:,} ratings were counted, and those that were fitted later are others"
                )
        return model

    def load(self, path: str) -> OneBitCompletionModel:
        """The model under the column names of its fit, whatever its Params say."""
        model = OneBitCompletionModel.load(path)
        return model.copy(
            {model.userCol: model.info.columns["user"], model.itemCol: model.info.columns["item"]}
        )

    def save(self, model: OneBitCompletionModel, path: str, overwrite: bool) -> None:
        writer = model.write()
        (writer.overwrite() if overwrite else writer).save(path)

    def with_featured_ids(
        self, model: OneBitCompletionModel, features: DataFrame, who: Who
    ) -> OneBitCompletionModel:
        return model.foldInFeatures(features, who)

    # ---- quality --------------------------------------------------------------------------------

    def judged_by(
        self,
        model: OneBitCompletionModel,
        table: DataFrame,
        threshold: float | None,
        request: CertificateRequest,
    ) -> SparkRatings:
        scoring.check_request(model.factors, table, request)
        return model.judge(table, threshold, request.by)

    def judge_held_out(
        self, model: OneBitCompletionModel, ratings: DividedFrame, by: str | None = None
    ) -> SparkRatings:
        assert ratings.held_out is not None
        return ratings.held_out.judged_by(model, by)

    def diagnosed(
        self, model: OneBitCompletionModel, ratings: DividedFrame, source: str
    ) -> OneBitCompletionModel:
        if ratings.held_out is None:
            return model.diagnose(ratings.to_fit, source, fitted=True)
        return model.diagnose_on(ratings.held_out.judged_by(model), source)

    # ---- predictions ----------------------------------------------------------------------------

    def predict(
        self, model: OneBitCompletionModel, pairs: DataFrame, n: int, target: Target
    ) -> None:
        predicted = scoring.predicted_pairs(model.factors, pairs, n)
        label = F.col("prediction")
        label = label > 0 if model.info.label_coding == "boolean" else label.cast("int")
        ids = [F.col(quoted(column)) for column in pairs.columns]
        made = model.calls(F.col("score"), F.col("std"), F.col(scoring.KNOWN_PAIR))
        calls = (column.alias(call) for call, column in made.items())
        lines = predicted.select(
            *ids, "score", "std", "probability", label.alias("prediction"), *calls
        )
        self._write(lines, target)

    def recommend(
        self, model: OneBitCompletionModel, n: int, seen: DataFrame | None, target: Target
    ) -> None:
        """Write user, item, rank (1 is the best), score, std, probability, for every user."""
        user = model.getUserCol()
        item = model.getItemCol()
        lists = model.recommendForAllUsers(n, excludeSeen=seen)
        lines = lists.select(
            F.col(quoted(user)), F.posexplode("recommendations").alias("rank", "best")
        )
        figures = {"score": "rating", "std": "std", "probability": "probability"}
        best = lines.select(
            F.col(quoted(user)),
            F.col("best")[item].alias(item),
            (F.col("rank") + 1).alias("rank"),
            *(F.col("best")[field].cast("double").alias(name) for name, field in figures.items()),
        )
        self._write(best, target)

    def positions(
        self,
        model: OneBitCompletionModel,
        who: Who,
        dimensions: int | None,
        anchors: Mapping[Any, int],
        target: Target,
    ) -> None:
        self._write(model.positions(who, dimensions, anchors), target)

    def groups(self, features: DataFrame, column: str, drawn: Record) -> dict[Any, Any]:
        """The words that colour a map, of the users on it."""
        own = matching(features, column)[0].name
        ids = self.session.createDataFrame(pa.table({"id": drawn["ids"]}))
        known = features.join(
            F.broadcast(ids), features[quoted(own)].cast("string") == ids["id"], "left_semi"
        )
        return groups_of(checked_lines(known.toArrow(), own, "user"), own)

    def _write(self, lines: DataFrame, target: Target) -> None:
        if target.table is not None:
            lines.write.mode("overwrite" if target.overwrite else "errorifexists").saveAsTable(
                target.table
            )
        if target.path is not None and is_csv(target.path):
            place = Location(self.session, target.path)
            with target.kind.written_beside(place, target.path, target.overwrite) as file:
                parts = file.sibling(f"{file.name}-parts")
                lines.coalesce(1).write.csv(parts.uri, header=True, escape='"')
                next(part for part in parts.children() if part.name.startswith("part-")).move_to(
                    file
                )
                parts.delete()
        elif target.path is not None:
            with replace_folder(self.session, target.path, target.kind, target.overwrite) as folder:
                lines.write.mode("append").parquet(folder)  # the marker is there


def _files_in(folder: Location) -> Iterator[str]:
    for name in filter(tables.is_data, folder.names()):
        if "=" in name:
            yield from _files_in(folder / name)
        elif tables.ending(name) is not None or "." not in name or not (folder / name).is_folder():
            yield name


def _of_one_header(table: DataFrame, path: str, options: Mapping[str, str]) -> DataFrame:
    """The table.

    If it has several files, a file with another header line than the first one ends the job.

    Spark reads CSV by the position of its columns. It compares header lines if a schema is given,
    in which a column without a name has an empty one. Spark has numbered the columns that share a
    name: a, a becomes a0, a1.
    """
    given = {key.lower(): value.strip().lower() for key, value in options.items()}
    if given.get("header") != "true" or "enforceschema" in given or len(table.inputFiles()) < 2:
        return table
    names = ["" if name == f"_c{n}" else name for n, name in enumerate(table.columns)]
    stems = [
        name.removesuffix(str(n)).lower() for n, name in enumerate(names) if name.endswith(str(n))
    ]
    if len(set(stems)) < len(stems):  # perhaps they share a name: the header line decides
        text = StructType([StructField(name, StringType()) for name in table.columns])
        plain = {
            **{key: value for key, value in options.items() if key.lower() != "header"},
            "mode": "PERMISSIVE",
        }
        first = (
            table.sparkSession.read.format("csv").schema(text).options(**plain).load(path).first()
        )
        if problem := tables.shared_name([name or "" for name in first or ()]):
            raise tables.Unreadable(problem)
    fields = [
        StructField(name, field.dataType) for name, field in zip(names, table.schema, strict=True)
    ]
    reader = table.sparkSession.read.format("csv").schema(StructType(fields))
    return reader.options(**{**options, "enforceSchema": "false"}).load(path).toDF(*table.columns)
