"""What a job needs of the place where it runs, this process or a Spark session; and what both refuse alike.

Tables and models have other types on each runtime. A job reads only a model's ``info`` and ``certificate``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onebit_spark.certificate.certificates import Certificate
from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import TABLE_FORMATS, FitRequest, JobRequest, PredictRequest, exists_already
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.execution import Execution
from onebit_spark.core.model_info import ModelInfo, Who
from onebit_spark.core.output_kinds import OutputKind
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import RequestError
from onebit_spark.input.rating_checks import INTEGRAL, Columns, as_examples
from onebit_spark.input.tables import separator_in
from onebit_spark.platform.files import RENAMING, Location, explained
from onebit_spark.predictor.scored import CertificateRequest
from onebit_spark.tuning.cross_validation import CrossValidation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

InputTable = Any  # a DataFrame, or an ArrowTable
TestRatings = Any  # ratings that a model is judged by, checked and counted


class Model(Protocol):
    """A fitted model."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def certificate(self) -> dict[str, Any]: ...


class Ratings(Protocol):
    """Ratings to fit, and those that were held out."""

    @property
    def held_out(self) -> TestRatings | None: ...


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


class Runtime(Protocol):
    """Reads tables, fits, judges and writes."""

    session: SparkSession | None

    def refuse(self, request: JobRequest) -> None:
        """Refuse, before any work is done, outputs that may not be overwritten, or that cannot be created."""

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()) -> InputTable:
        """These columns of the path or table in the request's field ``name``, and ``optional`` ones if there."""

    def features(self, request: FitRequest | PredictRequest, columns: Mapping[Who, str]) -> dict[Who, InputTable]:
        """All columns of the tables of side features that the request names; ``columns`` are those of the ids."""

    def types(self, table: InputTable, columns: Sequence[str]) -> dict[str, str]:
        """Column ─► Spark's name of its type."""

    def is_text(self, request: JobRequest, name: str) -> bool:
        """Whether the input is CSV, whose columns are text."""

    def count_pairs(self, pairs: InputTable, ids: Sequence[str]) -> int:
        """The number of pairs. Raises a RequestError with counts and examples if an id is null or NaN."""

    # ---- fits --------------------------------------------------------------------------------------------------------

    def work_folder(self, output: str) -> AbstractContextManager[None]:
        """A folder for files of the fit, if the runtime needs one: next to the output, which executors can reach."""

    def ratings(self, table: InputTable, columns: Columns, holdout: float | None, seed: int, by: str | None) -> Ratings:
        """The ratings of a table. A share is held out, checked, counted and grouped by the column ``by``."""

    def fit(
        self, ratings: Ratings, columns: Columns, config: FitConfig, execution: Execution, terms: Terms,
        features: Mapping[Who, InputTable], progress: Callable[[Iteration], None],
    ) -> Any:  # fmt: skip
        """A model of the ratings that are not held out."""

    def load(self, path: str) -> Any:
        """The model of a folder."""

    def save(self, model: Any, path: str, overwrite: bool) -> None:
        """Write a model folder, with its report if it was diagnosed. It appears whole or not at all."""

    def with_featured_ids(self, model: Any, features: InputTable, who: Who) -> Any:
        """The model, which also knows the ids in a table of side features."""

    def validation(
        self, table: InputTable, columns: Columns, folds: int, seed: int, worker_limit: int
    ) -> AbstractContextManager[CrossValidation]:
        """The ratings of a table, checked, in folds. Each fit runs on one core up to ``worker_limit`` ratings."""

    # ---- quality -----------------------------------------------------------------------------------------------------

    def judged_by(
        self, model: Any, table: InputTable, threshold: float | None, request: CertificateRequest
    ) -> TestRatings:
        """The ratings of a table, checked, to judge a model by. Refuses a request that cannot be certified."""

    def measure(self, model: Any, on: TestRatings) -> dict[str, Any]:
        """All figures of metrics.json."""

    def certify(
        self, model: Any, on: TestRatings, request: CertificateRequest, freshness: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Certificate]]:
        """The figures, and the certificates that they give. Ratings that were fitted are refused, unless their
        ``freshness`` is known."""

    def certified(self, model: Any, certificates: Sequence[Certificate]) -> Any:
        """The model with more certificates."""

    def calibrated(self, model: Any, on: TestRatings) -> Any:
        """The model with a probability that agrees with the frequencies in held-out ratings."""

    def diagnosed(self, model: Any, ratings: Ratings, source: str) -> Any:
        """The model with the figures of its report: of the held-out ratings, or else of the fitted ones."""

    def noted(self, model: Any, facts: Mapping[str, Any]) -> Any:
        """The diagnosed model with what its report says about the job."""

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predict(self, model: Any, pairs: InputTable, n: int, target: Target) -> None:
        """Write user, item, score, std, probability, prediction, and ``answered`` if an error rate was certified."""

    def recommend(self, model: Any, n: int, seen: InputTable | None, target: Target) -> None:
        """Write user, item, rank (1 is the best), score, std, probability, for every user."""


# ---- outputs ---------------------------------------------------------------------------------------------------------


def refuse_outputs(spark: SparkSession | None, request: JobRequest) -> None:
    """Refuse outputs of a request that may not be overwritten, or that cannot be created."""
    for name in request.outputs:
        if path := getattr(request, name):
            refuse_output(spark, as_flag(name), path, request.output_kind(name), request.overwrite)
    if isinstance(request, FitRequest) and request.execution.checkpoint_dir:
        writable(spark, "--checkpoint-dir", request.execution.checkpoint_dir, inside=True)


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
