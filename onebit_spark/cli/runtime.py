"""Runtime: what a job asks of the place where it runs. There are two: this process, and a Spark session.

A job reads its request, calls these methods, and prints a summary. What a table and a model are is the runtime's own
affair; a job looks only at a model's ``info`` and ``certificate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from onebit_spark.certificate.certificates import Certificate
from onebit_spark.cli.checks import Target
from onebit_spark.cli.requests import FitRequest, JobRequest, PredictRequest
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.execution import Execution
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.solver import Iteration
from onebit_spark.input.rating_checks import Columns
from onebit_spark.predictor.certification import CertificateRequest
from onebit_spark.tuning.cross_validation import CrossValidation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Table = Any  # a DataFrame, or an ArrowTable
Kept = Any  # ratings that a model is judged by, checked and counted


class Model(Protocol):
    """A fitted model."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def certificate(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Division:
    """How ratings are divided before the fit."""

    holdout: float | None  # the share that is kept out of the fit
    seed: int
    by: str | None  # a column to group those by


@dataclass(frozen=True)
class FitPlan:
    """What is fitted, and how."""

    columns: Columns
    config: FitConfig
    execution: Execution
    terms: Terms

    @classmethod
    def of(cls, request: FitRequest, columns: Columns) -> FitPlan:
        return cls(columns, request.fit_config(), request.execution(), request.terms())


class Ratings(Protocol):
    """Ratings to fit, and those that were held out."""

    @property
    def held_out(self) -> Kept | None: ...


class Runtime(Protocol):
    """Reads tables, fits, judges and writes."""

    session: SparkSession | None

    def refuse(self, request: JobRequest) -> None:
        """Refuse, before any work is done, outputs that may not be overwritten, or that cannot be created."""

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Table:
        """These columns of the path or table in the request's field ``name``, and ``optional`` ones if there."""

    def features(self, request: FitRequest | PredictRequest, columns: Mapping[Who, str]) -> dict[Who, Table]:
        """All columns of the tables of side features that the request names; ``columns`` are those of the ids."""

    def types(self, table: Table, columns: Sequence[str]) -> dict[str, str]:
        """Column ─► Spark's name of its type."""

    def is_text(self, request: JobRequest, name: str) -> bool:
        """Whether the input is CSV, whose columns are text."""

    def count_pairs(self, pairs: Table, ids: Sequence[str]) -> int:
        """The number of pairs. Raises a RequestError with counts and examples if an id is null or NaN."""

    # ---- fits --------------------------------------------------------------------------------------------------------

    def beside(self, output: str) -> AbstractContextManager[None]:
        """A place for files of the body, if the runtime needs one: beside the output, which it can reach."""

    def ratings(self, table: Table, columns: Columns, division: Division) -> Ratings:
        """The ratings of a table, divided. Those that are held out are checked and counted."""

    def fit(
        self, plan: FitPlan, ratings: Ratings, features: Mapping[Who, Table], progress: Callable[[Iteration], None]
    ) -> Any:
        """A model of the ratings that are not held out."""

    def load(self, path: str) -> Any:
        """The model of a folder."""

    def save(self, model: Any, path: str, overwrite: bool) -> None:
        """Write a model folder, with its report if it was diagnosed. It appears whole or not at all."""

    def with_featured_ids(self, model: Any, features: Table, who: Who) -> Any:
        """The model, which also knows the ids in a table of side features."""

    def validation(
        self, table: Table, columns: Columns, folds: int, seed: int, worker_limit: int
    ) -> AbstractContextManager[CrossValidation]:
        """The ratings of a table, checked, in folds. Each fit runs on one core up to ``worker_limit`` ratings."""

    # ---- quality -----------------------------------------------------------------------------------------------------

    def judged_by(self, model: Any, table: Table, threshold: float | None, request: CertificateRequest) -> Kept:
        """The ratings of a table, checked, to judge a model by. Refuses a request that cannot be certified."""

    def measure(self, model: Any, on: Kept) -> dict[str, Any]:
        """All figures of metrics.json."""

    def certify(
        self, model: Any, on: Kept, request: CertificateRequest, freshness: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Certificate]]:
        """The figures, and the certificates that they give. Ratings that were fitted are refused, unless their
        ``freshness`` is known."""

    def certified(self, model: Any, certificates: Sequence[Certificate]) -> Any:
        """The model with more certificates."""

    def calibrated(self, model: Any, on: Kept) -> Any:
        """The model with a probability that agrees with the frequencies in held-out ratings."""

    def diagnosed(self, model: Any, ratings: Ratings, source: str) -> Any:
        """The model with the figures of its report: of the held-out ratings, or else of the fitted ones."""

    def noted(self, model: Any, facts: Mapping[str, Any]) -> Any:
        """The diagnosed model with what its report says about the job."""

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predict(self, model: Any, pairs: Table, n: int, target: Target) -> None:
        """Write user, item, score, std, probability, prediction, and ``answered`` if an error rate was certified."""

    def recommend(self, model: Any, n: int, seen: Table | None, target: Target) -> None:
        """Write user, item, rank (1 is the best), score, std, probability, for every user."""
