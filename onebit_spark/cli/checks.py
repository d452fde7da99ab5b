"""What the jobs refuse, in the words of their flags: outputs that they cannot or may not write, and wrong tables."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import TABLE_FORMATS, FitRequest, JobRequest, PredictRequest, exists_already
from onebit_spark.core.output_kinds import OutputKind
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import INTEGRAL, as_examples
from onebit_spark.input.tables import separator_in
from onebit_spark.platform.files import RENAMING, Location, explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def refuse_outputs(spark: SparkSession | None, request: JobRequest) -> None:
    """Refuse outputs of a request that may not be overwritten, or that cannot be created."""
    for field, kind in request.outputs.items():
        if path := getattr(request, field):
            refuse_output(spark, as_flag(field), path, kind, request.overwrite)
    if isinstance(request, FitRequest):
        execution = request.execution()
        if execution.checkpoint_dir:
            writable(spark, "--checkpoint-dir", execution.checkpoint_dir, inside=True)


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
    return RequestError(
        f"{as_flag(name)} {getattr(request, name)} has no column {', '.join(map(repr, absent))}; "
        f"its columns are {', '.join(map(_visible, columns)) or 'none'}: {cure}"
    )


def _visible(name: str) -> str:
    """In quotes, if blanks could be overlooked."""
    return name if name == name.strip() else repr(name)


def check_id_types(given: Mapping[str, str], expected: Mapping[str, str], name: str, csv: bool) -> None:
    """Refuse ids (column ─► type) of another type than in the fit. Integers of different widths are accepted."""
    problems = [
        f"column {column!r} of {as_flag(name)} is of type {given[column]}, but was {wanted} in the fit"
        for column, wanted in expected.items()
        if given[column] != wanted and not (given[column] in INTEGRAL and wanted in INTEGRAL)
    ]
    if problems:
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
