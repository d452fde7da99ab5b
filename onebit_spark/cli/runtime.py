"""What LocalRuntime and SparkRuntime share: where predictions go, and what both refuse alike.

The two have the same methods, so a job runs on either. Their tables and models have other types: a job reads only a
model's ``info`` and ``certificate``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import TABLE_FORMATS, FitRequest, JobRequest, PredictRequest, exists_already, is_csv
from onebit_spark.core.model_info import Who
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import INTEGRAL, as_examples
from onebit_spark.input.tables import separator_in
from onebit_spark.platform.files import (
    METRICS,
    MODEL,
    PREDICTED,
    PREDICTIONS,
    PREDICTIONS_CSV,
    RENAMING,
    Location,
    OutputKind,
    explained,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Runtime = Any  # a LocalRuntime or a SparkRuntime
InputTable = Any  # an ArrowTable or a DataFrame


class Target(NamedTuple):
    """Where predictions go: a folder of Parquet files or a CSV file, which appears whole or not at all; a table."""

    path: str | None
    table: str | None
    overwrite: bool

    @classmethod
    def of(cls, request: FitRequest | PredictRequest) -> Target:
        path = request.predictions if isinstance(request, FitRequest) else request.output
        return cls(path, request.output_table, request.overwrite)

    @property
    def places(self) -> dict[str, str | None]:
        return {"predictions": self.path, "table of predictions": self.table}


# ---- outputs ---------------------------------------------------------------------------------------------------------


KINDS = {"model": MODEL, "predictions": PREDICTIONS, "figures": METRICS}


def refuse_outputs(spark: SparkSession | None, request: JobRequest) -> None:
    """Refuse outputs of a request that may not be overwritten, or that cannot be created."""
    for name, what in request.outputs.items():
        if path := getattr(request, name):
            kind = PREDICTIONS_CSV if what == "predictions" and is_csv(path) else KINDS[what]
            refuse_output(spark, as_flag(name), path, kind, request.overwrite)
    if isinstance(request, FitRequest) and request.execution.checkpoint_dir:
        writable(spark, "--checkpoint-dir", request.execution.checkpoint_dir, inside=True)
    if isinstance(request, FitRequest | PredictRequest) and request.output_table and spark is not None:
        _refuse_table(spark, request.output_table, request.overwrite)


def refuse_output(spark: SparkSession | None, flag: str, path: str, kind: OutputKind, overwrite: bool) -> Location:
    """The location of an output. It does not exist, or may be overwritten; and it can be created."""
    target = writable(spark, flag, path)
    if target.exists():
        if not overwrite:
            raise RequestError(exists_already(flag, path))
        if kind.is_file and target.is_folder():
            raise RequestError(f"{flag} {path} is a folder: name a file")
        kind.check(target, f"{flag} {path}")
    return target


def _refuse_table(spark: SparkSession, table: str, overwrite: bool) -> None:
    """Refuse a table for predictions that exists and may not be overwritten, or cannot be created."""
    if spark.catalog.tableExists(table):
        if not overwrite:
            raise RequestError(exists_already("--output-table", table))
        if not set(spark.table(table).columns) >= PREDICTED:
            raise RequestError(
                f"--output-table {table} is not a table of predictions, and nothing else is overwritten: "
                "choose another name, or drop it yourself"
            )
    database = table.rpartition(".")[0]
    if database and not spark.catalog.databaseExists(database):
        raise RequestError(f"--output-table {table} cannot be made: there is no database {database}")


def writable(spark: SparkSession | None, flag: str, path: str, inside: bool = False) -> Location:
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


# ---- tables ----------------------------------------------------------------------------------------------------------


def read_features(
    runtime: Runtime, request: FitRequest | PredictRequest, columns: Mapping[Who, str]
) -> dict[Who, InputTable]:
    """All columns of the tables of side features that the request names; ``columns`` are those of the ids."""
    names = {who: f"{who}_features" for who in columns}
    return {who: runtime.features(request, name, columns[who]) for who, name in names.items() if getattr(request, name)}


def is_lake_table(request: JobRequest, name: str, lake: str) -> RequestError:
    """The input is a folder of a Delta, Iceberg or Hudi table."""
    path, flag = getattr(request, name), as_flag(name)
    return RequestError(
        f"{flag} {path} is of a table of {TABLE_FORMATS[lake]}, whose folder also has files that no longer count: "
        f"name the table of the catalog ({flag} catalog.database.table), or read the folder with --format {lake}"
    )


def no_columns(
    request: JobRequest, name: str, absent: Sequence[str], columns: Sequence[str], csv: bool
) -> RequestError:
    """The input lacks some columns."""
    cure = (
        "name them with --user-col, --item-col, --label-col, --weight-col"
        if hasattr(request, "user_col")
        else "rename them"
    )
    separator = separator_in(columns)
    if csv and separator is not None:
        cure = f"they look separated by {separator!r}: add --option 'sep={separator}'"
    elif csv:
        cure += "; a file without a header line needs --option header=false, and its columns are _c0, _c1, …"
    visible = [column if column == column.strip() else repr(column) for column in columns]  # blanks are overlooked
    return RequestError(
        f"{as_flag(name)} {getattr(request, name)} has no column {', '.join(map(repr, absent))}; "
        f"its columns are {', '.join(visible) or 'none'}: {cure}"
    )


def check_id_types(
    runtime: Runtime, request: JobRequest, name: str, table: InputTable, expected: Mapping[str, str]
) -> None:
    """Refuse ids of another type than ``expected`` (column ─► type). Integers of different widths are accepted."""
    given = runtime.types(table, tuple(expected))
    problems = [
        f"column {column!r} of {as_flag(name)} is of type {given[column]}, but was {wanted} in the fit"
        for column, wanted in expected.items()
        if given[column] != wanted and not (given[column] in INTEGRAL and wanted in INTEGRAL)
    ]
    if problems:
        csv = runtime.is_csv(request, name, table)
        hint = " (CSV is read as text; --option inferSchema=true reads numbers)" if csv else ""
        raise RequestError("; ".join(problems) + f": cast it{hint}")


def check_pairs(counts: Mapping[str, int], examples: Mapping[str, Sequence[Sequence[object]]]) -> None:
    """Refuse pairs with absent ids: column ─► how many, and three of them."""
    problems = [
        f"{count:,} pairs with null or NaN in column {column!r}, such as {as_examples(examples[column])}"
        for column, count in counts.items()
        if count
    ]
    if problems:
        raise RequestError("; ".join(problems) + ": drop or fill them")


def nothing_held_out(share: float) -> str:
    return f"--holdout {share:g} holds no rating out: the data are too few to certify on. Choose a larger share"
