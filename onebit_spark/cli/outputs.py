"""Where the jobs write: outputs that may not be overwritten, or cannot be made, are refused before any work is done."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import FitRequest, JobRequest, PredictRequest, exists_already
from onebit_spark.core.output_kinds import OutputKind
from onebit_spark.errors import RequestError
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
        if execution.blocks_dir and not Location(spark, execution.blocks_dir).exists():
            writable(spark, "--blocks", execution.blocks_dir)


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
