"""What the outputs look like, kind by kind. To overwrite is to replace an output of the same kind, and nothing else.

    kind               how it is recognised
    model              metadata.json of a model, or pyspark.ml's metadata/ of one
    estimator          pyspark.ml's metadata/ of an estimator
    predictions        Parquet part files, and no other files, with the columns score, std and probability
    vectors            users/ and items/ of Parquet part files, and _SUCCESS
    prepared ratings   prepared.json
    tuning             tasks/ with a ledger, or best.toml and a model
    ledger             the results of tasks
    reproduction       tasks/ with an experiment of the paper
    metrics            a JSON file with n, error and majority_error

Outputs of all earlier versions are recognised. An empty folder, or an empty file where a file is written, may be
replaced by any kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onebit_spark.errors import RequestError

PREDICTED = {"score", "std", "probability"}  # columns of all predictions and recommendations
UNFINISHED = {"_SUCCESS", "._SUCCESS.crc", "_temporary"}  # what Spark leaves in a folder without data
EXPERIMENTS = {"tables", "noise", "movielens"}


class View(Protocol):
    """Looks at an output that exists. Paths are relative to it."""

    def is_folder(self) -> bool: ...

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder; an empty list if there is no such folder."""

    def text(self, file: str = "") -> str:
        """The content of a file; an empty text if there is no such file."""

    def columns(self) -> Sequence[str]:
        """The columns of the Parquet files in the folder; empty if there are none."""


@dataclass(frozen=True)
class OutputKind:
    """A kind of output.

    Parameters
    ----------
    name : str
        In words, with its article.
    is_own : function
        Whether what a view shows is of this kind.
    is_file : bool
        Whether it is a file. Otherwise it is a folder.
    """

    name: str
    is_own: Callable[[View], bool]
    is_file: bool = False

    def may_replace(self, found: View) -> bool:
        """Whether this kind of output may replace what is there."""
        if found.is_folder() == self.is_file:
            return False
        blank = not found.text().strip() if self.is_file else set(found.names()) <= UNFINISHED
        return blank or self.is_own(found)

    def check(self, found: View, place: str) -> None:
        """Raise a RequestError if this kind of output may not replace what is at ``place``."""
        if not self.may_replace(found):
            raise RequestError(
                f"{place} is not {self.name} of onebit_spark, and nothing else is overwritten: choose another path, "
                "or delete it yourself"
            )


def _entries(text: str) -> dict[str, Any]:
    """Of a JSON object; empty if the text is something else."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _saved_class(found: View) -> str:
    """The last part of the Python class that pyspark.ml has saved, if it is of this package."""
    parts = [name for name in found.names("metadata") if name.startswith("part-")]
    name = str(_entries(found.text(f"metadata/{parts[0]}")).get("class")) if parts else ""
    return name.rpartition(".")[2] if name.startswith("onebit_spark.") else ""


def _is_model(found: View, under: str = "") -> bool:
    return {"format_version", "n_ratings"} <= _entries(found.text(f"{under}metadata.json")).keys()


def _is_predictions(found: View) -> bool:
    parts = set(found.names()) - UNFINISHED
    return all(name.lstrip(".").startswith("part-") for name in parts) and set(found.columns()) >= PREDICTED


def _is_vectors(found: View) -> bool:
    return {"_SUCCESS", "users", "items"} <= set(found.names()) and all(
        any(name.startswith("part-") for name in found.names(side)) for side in ("users", "items")
    )


def _is_ledger(found: View, under: str = "") -> bool:
    return any(name.startswith("code-") or name.endswith(".jsonl") for name in found.names(under))


def _is_tuning(found: View) -> bool:
    return _is_ledger(found, "tasks") or ("best.toml" in found.names() and _is_model(found, "model/"))


MODEL = OutputKind("a model", lambda found: _is_model(found) or _saved_class(found) == "OneBitCompletionModel")
ESTIMATOR = OutputKind("an estimator", lambda found: _saved_class(found) == "OneBitCompletion")
PREDICTIONS = OutputKind("a folder of predictions", _is_predictions)
VECTORS = OutputKind("a folder of vectors", _is_vectors)
PREPARED = OutputKind(
    "a folder of prepared ratings", lambda found: "format_version" in _entries(found.text("prepared.json"))
)
TUNING = OutputKind("a result of tuning", _is_tuning)
LEDGER = OutputKind("a folder of results", _is_ledger)
REPRODUCTION = OutputKind("a folder of experiments", lambda found: bool(EXPERIMENTS & set(found.names("tasks"))))
METRICS = OutputKind(
    "a file of figures", lambda found: {"n", "error", "majority_error"} <= _entries(found.text()).keys(), is_file=True
)
