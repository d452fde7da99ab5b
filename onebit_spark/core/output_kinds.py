"""The kinds of output, and how each is recognised. Overwriting replaces an output of the same kind, and nothing else.

Outputs of all earlier versions are recognised. An empty folder, or an empty file where a file is written, may be
replaced by any kind.
"""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from onebit_spark.errors import RequestError

PREDICTED = {"score", "std", "probability"}  # columns of all predictions and recommendations
UNFINISHED = {"_SUCCESS", "._SUCCESS.crc", "_temporary"}  # what Spark leaves in a folder without data
EXPERIMENTS = {"tables", "noise", "movielens"}


class View(Protocol):
    """An output that exists. Paths are relative to it."""

    def is_folder(self) -> bool: ...

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder; an empty list if there is no such folder."""

    def text(self, file: str = "") -> str:
        """The content of a file; an empty text if there is no such file."""

    def columns(self) -> Sequence[str]:
        """The columns of the Parquet files in the folder; empty if there are none."""


class Place(View, Protocol):
    """Where an output is, or will be, on a file system that renames a folder in one atomic step."""

    @property
    def name(self) -> str: ...

    def exists(self) -> bool: ...

    def sibling(self, name: str) -> Self: ...

    def move_to(self, target: Self) -> None: ...

    def delete(self) -> None:
        """Delete the file, or the folder with its content."""


P = TypeVar("P", bound=Place)


@dataclass(frozen=True)
class OutputKind:
    """A kind of output."""

    name: str  # in words, with its article
    is_own: Callable[[View], bool]  # whether what a view shows is of this kind
    is_file: bool = False  # Whether it is a file. Otherwise it is a folder.

    def may_replace(self, output: View) -> bool:
        """Whether this kind of output may replace what is there."""
        if output.is_folder() == self.is_file:
            return False
        blank = not output.text().strip() if self.is_file else set(output.names()) <= UNFINISHED
        return blank or self.is_own(output)

    def check(self, output: View, place: str) -> None:
        """Raise a RequestError if this kind of output may not replace what is at ``place``."""
        if not self.may_replace(output):
            raise RequestError(
                f"{place} is not {self.name} of onebit_spark, and nothing else is overwritten: choose another path, "
                "or delete it yourself"
            )

    def check_target(self, target: Place, path: object, overwrite: bool) -> None:
        """Raise a RequestError if there is an output at the path that may not be overwritten, or is something else."""
        if not target.name:
            raise RequestError(f"cannot write to {path}: name a folder below it")
        if target.exists():
            if not overwrite:
                raise RequestError(f"the output {path} exists: choose another path, or allow it to be overwritten")
            self.check(target, f"the output {path}")

    @contextmanager
    def written_beside(self, target: P, path: object, overwrite: bool) -> Iterator[P]:
        """Yield a place for a new folder. At the end it is at ``target``, complete; after an error nothing changed.

        It has a hidden name beside the target, and is renamed at the end. An old folder is moved away first, and comes
        back if the rename fails. A killed process may leave hidden folders, but never a part of a folder at the target.
        """
        self.check_target(target, path, overwrite)
        token = uuid.uuid4().hex[:8]
        fresh, old = (target.sibling(f".{target.name}.{state}-{token}") for state in ("writing", "replaced"))
        with deleted_on_error(fresh):
            yield fresh
            self.check_target(target, path, overwrite)  # it may exist by now: a rename would move the folder into it
            replaced = target.exists()
            if replaced:
                target.move_to(old)
            try:
                fresh.move_to(target)
            except BaseException:
                if replaced:
                    old.move_to(target)
                raise
        if replaced:
            old.delete()


@contextmanager
def deleted_on_error(folder: Place) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            folder.delete()
        raise


def _entries(text: str) -> dict[str, Any]:
    """Of a JSON object; empty if the text is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _saved_class(output: View) -> str:
    """The last part of the Python class that pyspark.ml has saved, if it is of this package."""
    parts = (name for name in output.names("metadata") if name.startswith("part-"))  # all but one may be empty
    name = str(_entries("".join(output.text(f"metadata/{part}") for part in parts)).get("class"))
    return name.rpartition(".")[2] if name.startswith("onebit_spark.") else ""


def _is_model(output: View, under: str = "") -> bool:
    return {"format_version", "n_ratings"} <= _entries(output.text(f"{under}metadata.json")).keys()


def _is_predictions(output: View) -> bool:
    parts = set(output.names()) - UNFINISHED
    return all(name.lstrip(".").startswith("part-") for name in parts) and set(output.columns()) >= PREDICTED


def _is_vectors(output: View) -> bool:
    return {"_SUCCESS", "users", "items"} <= set(output.names()) and all(
        any(name.startswith("part-") for name in output.names(side)) for side in ("users", "items")
    )


def _is_ledger(output: View, under: str = "") -> bool:
    return any(name.startswith("code-") or name.endswith(".jsonl") for name in output.names(under))


MODEL = OutputKind("a model", lambda output: _is_model(output) or _saved_class(output) == "OneBitCompletionModel")
ESTIMATOR = OutputKind("an estimator", lambda output: _saved_class(output) == "OneBitCompletion")
PREDICTIONS = OutputKind("a folder of predictions", _is_predictions)
PREDICTIONS_CSV = OutputKind(
    "a CSV file of predictions",
    lambda output: set(next(csv.reader(output.text().splitlines()[:1]), [])) >= PREDICTED,
    is_file=True,
)
VECTORS = OutputKind("a folder of vectors", _is_vectors)
TUNING = OutputKind(
    "a result of tuning",
    lambda output: _is_ledger(output, "tasks") or ("best.toml" in output.names() and _is_model(output, "model/")),
)
LEDGER = OutputKind("a folder of results", _is_ledger)
REPRODUCTION = OutputKind("a folder of experiments", lambda output: bool(EXPERIMENTS & set(output.names("tasks"))))
METRICS = OutputKind(
    "a file of figures", lambda output: {"n", "error", "majority_error"} <= _entries(output.text()).keys(), is_file=True
)
