"""LocalRuntime: the jobs in this process. Arrow reads the tables; neither Java nor pyspark is
imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import FILES, FitRequest, JobRequest, Target, is_csv
from onebit_spark.core.solver import Iteration, PhaseTimer
from onebit_spark.data.files import ArrowTable, Unreadable, inferred, null_or_nan, open_table
from onebit_spark.data.locations import Location, table_format
from onebit_spark.data.ratings import (
    EXAMPLES,
    ArrowRatings,
    CollectedRatings,
    Columns,
    Holdout,
    KeptRatings,
    check_pairs,
    checked_lines,
    column_count_problem,
)
from onebit_spark.data.user_tables import spark_name
from onebit_spark.errors import RequestError, refuse
from onebit_spark.fit import fit_model
from onebit_spark.fitting.task import FitTask
from onebit_spark.in_process import LocalModels, checked_features, driver_state
from onebit_spark.model import FittedModel, load
from onebit_spark.model_folder import local_path, replaced_folder
from onebit_spark.model_info import SIDE_OF
from onebit_spark.predict.judged import RatingsHere
from onebit_spark.records import Record
from onebit_spark.report.map import groups_of
from onebit_spark.settings import Who

USERS_AT_ONCE = 100_000  # whose recommendations are held at once


class LocalRatings(NamedTuple):
    to_fit: CollectedRatings
    held_out: KeptRatings | None
    id_types: dict[Who, str]
    timer: PhaseTimer  # with the seconds that it took to read them


class LocalRuntime:
    """The jobs in this process.

    Tables are ArrowTables, models FittedModels. ``why`` says why it was chosen.
    """

    session = None

    def __init__(self, why: str = "") -> None:
        self._why = why

    # ---- tables ---------------------------------------------------------------------------------

    def table(
        self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()
    ) -> ArrowTable:
        """These columns of the input in the request's field ``name``, and ``optional`` ones if
        there.

        Two columns that differ only in upper and lower case are refused, as Spark does.
        """
        table = self._opened(request, name, columns)
        wanted = [
            *columns,
            *(column for column in optional if column not in columns and table.matching(column)),
        ]
        found = {column: table.matching(column) for column in wanted}
        for column, ones in found.items():
            if len(ones) > 1:
                raise RequestError(
                    f"{column_count_problem(len(ones), column, '', table.schema.names)}"
                )
        return table.named({column: ones[0] for column, ones in found.items()})

    def features(self, request: JobRequest, name: str, column: str) -> ArrowTable:
        """All columns of a table of side features.

        Of a CSV, columns of numbers become numbers; the ids stay text.
        """
        table = self._opened(request, name, (column,))
        if table.format != "csv" or any(key.lower() == "inferschema" for key in request.option):
            return table
        own = table.matching(column)[0]
        whole = table.table()
        names = whole.schema.names
        return ArrowTable.of(
            pa.table(
                {name: whole[name] if name == own else inferred(whole[name]) for name in names}
            )
        )

    def _opened(self, request: JobRequest, name: str, columns: Sequence[str]) -> ArrowTable:
        path = getattr(request, name)
        flag = as_flag(name)
        if (request.format or FILES[0]) in FILES and (lake := table_format(None, path)):
            raise request.is_lake_table(name, lake)
        try:
            table = open_table(path, request.format, dict(request.option))
        except FileNotFoundError:
            raise RequestError(f"{flag} {path} does not exist") from None
        except Unreadable as error:
            raise RequestError(f"{flag} {path} {error}") from error
        if absent := [column for column in columns if not table.matching(column)]:
            raise request.no_columns(name, absent, table.schema.names, table.format == "csv")
        return table

    def types(self, table: ArrowTable, columns: Sequence[str]) -> dict[str, str]:
        return {column: spark_name(table.schema.field(column).type) for column in columns}

    def is_csv(self, request: JobRequest, name: str, table: ArrowTable) -> bool:
        return table.format == "csv"

    def count_pairs(self, pairs: ArrowTable, ids: Sequence[str]) -> int:
        n = 0
        counts = dict.fromkeys(ids, 0)
        examples: dict[str, list[Any]] = {column: [] for column in ids}
        for batch in pairs.batches(ids):
            n += len(batch)
            for column in ids:
                absent = np.flatnonzero(null_or_nan(batch[column]))
                counts[column] += len(absent)
                lines = batch.take(pa.array(absent[: EXAMPLES - len(examples[column])])).to_pylist()
                examples[column] += [list(line.values()) for line in lines]
        check_pairs(counts, examples)
        return n

    # ---- fits -----------------------------------------------------------------------------------

    def work_folder(self, output: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ratings(self, table: ArrowTable, columns: Columns, request: FitRequest) -> LocalRatings:
        timer = PhaseTimer()
        source = ArrowRatings(table, columns, request.certify_by)
        seed = request.fit_config.seed
        name = request.holdout_flag
        divided = source.divided(
            None if request.holdout is None else Holdout(request.holdout, seed, name)
        )
        timer.end("survey")
        return LocalRatings(*divided, source.id_types, timer)

    def fit(
        self,
        ratings: LocalRatings,
        columns: Columns,
        request: FitRequest,
        features: Mapping[Who, ArrowTable],
        progress: Callable[[Iteration], None],
    ) -> FittedModel:
        tables = {
            who: checked_features(table, columns.roles[who], ratings.id_types[who], who)
            for who, table in features.items()
        }
        where = {"exchange": "local", "reason": self._why}
        task = FitTask[FittedModel](
            request.fit_config,
            request.terms,
            columns,
            ratings.id_types,
            tables,
            request.execution,
            where,
        )
        opening = driver_state(ratings.to_fit, task.config, task.execution.device)
        models = LocalModels()
        return fit_model(task, ratings.to_fit, models, opening, progress, ratings.timer)

    def load(self, path: str) -> FittedModel:
        return load(path)

    def save(self, model: FittedModel, path: str, overwrite: bool) -> None:
        model.save(path, overwrite)

    def with_featured_ids(self, model: FittedModel, features: ArrowTable, who: Who) -> FittedModel:
        column = model.info.columns[who]
        return model.fold_in_features(
            checked_features(features, column, model.info.id_types[who], who), who
        )

    # ---- quality --------------------------------------------------------------------------------

    def judged_by(
        self,
        model: FittedModel,
        table: ArrowTable,
        threshold: float | None,
        request: CertificateRequest,
    ) -> RatingsHere:
        judged = model.judge(table, threshold, request.by)
        refuse(request.problems(model.info))
        return judged

    def judge_held_out(
        self, model: FittedModel, ratings: LocalRatings, by: str | None = None
    ) -> RatingsHere:
        assert ratings.held_out is not None
        return model.judge_kept(ratings.held_out)

    def diagnosed(self, model: FittedModel, ratings: LocalRatings, source: str) -> FittedModel:
        """The model with the figures of its report: of the held-out ratings, or else of the fitted
        ones.
        """
        kept = ratings.held_out
        on = model.judge_fitted(ratings.to_fit) if kept is None else model.judge_kept(kept)
        return model.diagnose_on(on, source, kept is None)

    # ---- predictions ----------------------------------------------------------------------------

    def predict(self, model: FittedModel, pairs: ArrowTable, n: int, target: Target) -> None:
        """Write a line for every pair, whatever the model's strategy for unknown ids."""
        model = replace(model, cold_start="prior")
        user, item = (model.info.columns[who] for who in SIDE_OF)
        boolean = model.info.label_coding == "boolean"

        def lines() -> Iterator[pa.Table]:
            empty = pa.RecordBatch.from_pylist([], pairs.schema)
            for batch in pairs.batches((user, item)) if n else [empty]:
                predicted = model.predictions(batch[user], batch[item]).drop_columns(
                    ["user", "item"]
                )
                label = predicted["prediction"].to_numpy()
                place = predicted.column_names.index("prediction")
                coded = pa.array(label > 0) if boolean else pa.array(label.astype(np.int32))
                predicted = predicted.set_column(place, "prediction", coded)
                ids = [batch[user], batch[item]]
                yield pa.table(
                    [*ids, *predicted.columns], names=[user, item, *predicted.column_names]
                )

        _write(lines(), target)

    def recommend(
        self, model: FittedModel, n: int, seen: ArrowTable | None, target: Target
    ) -> None:
        user, item = (model.info.columns[who] for who in SIDE_OF)
        pairs = None if seen is None else seen.table()
        taken = None if pairs is None else (pairs[user], pairs[item])
        ids = model.users.ids

        def lines() -> Iterator[pa.Table]:
            for first in range(0, len(ids), USERS_AT_ONCE):
                best = model.recommend(ids.slice(first, USERS_AT_ONCE), n, seen=taken)
                rank = pa.array(best["rank"].to_numpy().astype(np.int32))
                columns = [
                    best["user"],
                    best["item"],
                    rank,
                    best["score"],
                    best["std"],
                    best["probability"],
                ]
                yield pa.table(columns, names=[user, item, "rank", "score", "std", "probability"])

        _write(lines(), target)

    def positions(
        self,
        model: FittedModel,
        who: Who,
        dimensions: int | None,
        anchors: Mapping[Any, int],
        target: Target,
    ) -> None:
        table = model.positions(who, dimensions, anchors)
        _write(iter([table.rename_columns({who: model.info.columns[who]})]), target)

    def groups(self, features: ArrowTable, column: str, drawn: Record) -> dict[Any, Any]:
        """The words that colour a map, of the users on it."""
        table, (own, *_), shown = features.table(), features.matching(column), set(drawn["ids"])
        known = pa.array([str(each) in shown for each in table[own].to_pylist()], pa.bool_())
        return groups_of(checked_lines(table.filter(known), own, "user"), own)


def _write(lines: Iterator[pa.Table], target: Target) -> None:
    """Write a CSV file, or a folder of one Parquet file, which appears whole or not at all."""
    path = target.path
    first = next(lines)
    assert path is not None
    if is_csv(path):
        with (
            target.kind.written_beside(Location(None, path), path, target.overwrite) as file,
            pacsv.CSVWriter(local_path(file.uri), first.schema) as writer,
        ):
            for table in chain([first], lines):
                writer.write_table(table)
        return
    with replaced_folder(path, target.kind, target.overwrite) as folder:
        with pq.ParquetWriter(folder / "part-00000.parquet", first.schema) as writer:
            for table in chain([first], lines):
                writer.write_table(table)
        (folder / "_SUCCESS").touch()
