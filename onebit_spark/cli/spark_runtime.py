"""SparkRuntime: the jobs on a Spark session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onebit_spark.certificate.certificates import Certificate
from onebit_spark.cli import checks, spark_tables
from onebit_spark.cli.checks import Target, refuse_outputs
from onebit_spark.cli.requests import FitRequest, JobRequest, PredictRequest
from onebit_spark.cli.runtime import Division, FitPlan
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.settings import by_param
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import RequestError
from onebit_spark.estimator import OneBitCompletion, fit_counted
from onebit_spark.input import holdout
from onebit_spark.input.columns import quoted
from onebit_spark.input.rating_checks import Columns, RatingCounts, not_deterministic, total_of
from onebit_spark.input.ratings import with_weight
from onebit_spark.ml.evaluation import (
    CheckedRatings,
    certify,
    check_request,
    checked_ratings,
    measure,
)
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location
from onebit_spark.predictor.certification import CertificateRequest
from onebit_spark.tuning.cross_validation import CrossValidation, spark_validation


@dataclass(frozen=True)
class SparkRatings:
    """Ratings to fit, and those that were held out."""

    to_fit: DataFrame
    held_out: CheckedRatings | None = None
    division: holdout.SplitCounts | None = None  # counts of both parts


class SparkRuntime:
    """The jobs on a session. Tables are DataFrames."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._work: Location | None = None

    def refuse(self, request: JobRequest) -> None:
        refuse_outputs(self.session, request)
        if isinstance(request, FitRequest | PredictRequest):
            spark_tables.refuse_table(self.session, Target.of(request))

    # ---- tables ------------------------------------------------------------------------------------------------------

    def table(self, request: JobRequest, name: str, columns: Sequence[str], optional: Sequence[str] = ()) -> DataFrame:
        return spark_tables.read_table(self.session, request, name, columns, optional)

    def features(self, request: FitRequest | PredictRequest, columns: Mapping[Who, str]) -> dict[Who, DataFrame]:
        return spark_tables.read_features(self.session, request, columns)

    def types(self, table: DataFrame, columns: Sequence[str]) -> dict[str, str]:
        chosen = table.select(*map(quoted, columns))
        return {column: field.dataType.simpleString() for column, field in zip(columns, chosen.schema, strict=True)}

    def is_text(self, request: JobRequest, name: str) -> bool:
        return spark_tables.format_here(self.session, request, name).name == "csv"

    def count_pairs(self, pairs: DataFrame, ids: Sequence[str]) -> int:
        return spark_tables.count_pairs(pairs, ids)

    # ---- fits --------------------------------------------------------------------------------------------------------

    @contextmanager
    def beside(self, output: str) -> Iterator[None]:
        """A folder beside the output: where the output can be, executors can write. It is deleted at the end."""
        target = Location(self.session, output)
        self._work = target.sibling(f".{target.name}.work-{uuid.uuid4().hex[:8]}")
        try:
            yield
        finally:
            with suppress(Exception):
                self._work.delete()

    def ratings(self, table: DataFrame, columns: Columns, division: Division) -> SparkRatings:
        ratings, share = with_weight(table, columns), division.holdout
        if share is None:
            return SparkRatings(ratings)
        counted = holdout.check_split(ratings, columns, share, division.seed)
        if not counted.held_out.n:
            raise RequestError(checks.nothing_held_out(share))
        to_fit, held_out = holdout.split_off(ratings, columns, share, division.seed)
        return SparkRatings(to_fit, CheckedRatings(held_out, columns, counted.held_out), counted)

    def fit(
        self, plan: FitPlan, ratings: SparkRatings, features: Mapping[Who, DataFrame],
        progress: Callable[[Iteration], None],
    ) -> OneBitCompletionModel:  # fmt: skip
        """The fitted ratings must be those that were counted before."""
        work = None if self._work is None else self._work.uri
        estimator = OneBitCompletion(
            userCol=plan.columns.user,
            itemCol=plan.columns.item,
            labelCol=plan.columns.label,
            threshold=plan.columns.threshold,
            weightCol=plan.columns.weight,
            **by_param(plan.config),
            **by_param(replace(plan.execution, work_dir=work)),
            **by_param(plan.terms),
        )
        estimator.setUserFeatures(features.get("user")).setItemFeatures(features.get("item"))
        counted = ratings.division
        size = None if counted is None else counted.to_fit
        model = fit_counted(estimator.setProgress(progress), ratings.to_fit, size)
        if counted is not None:
            whole, info = counted.whole, model.info
            fitted = RatingCounts(info.n_ratings, info.n_positive, whole.coding, info.fingerprint)
            if total_of(fitted, counted.held_out) != total_of(whole):
                raise not_deterministic(
                    f"{whole.n:,} ratings were counted, and those that were fitted later are others"
                )
        return model

    def load(self, path: str) -> OneBitCompletionModel:
        """The model under the column names of its fit, whatever its Params say."""
        model = OneBitCompletionModel.load(path)
        return model.copy({model.userCol: model.info.columns["user"], model.itemCol: model.info.columns["item"]})

    def save(self, model: OneBitCompletionModel, path: str, overwrite: bool) -> None:
        writer = model.write()
        (writer.overwrite() if overwrite else writer).save(path)

    def with_featured_ids(self, model: OneBitCompletionModel, features: DataFrame, who: Who) -> OneBitCompletionModel:
        return model.foldInFeatures(features, who)

    def validation(
        self, table: DataFrame, columns: Columns, folds: int, seed: int, worker_limit: int
    ) -> AbstractContextManager[CrossValidation]:
        return spark_validation(table, columns, folds, seed, worker_limit)

    # ---- quality -----------------------------------------------------------------------------------------------------

    def judged_by(
        self, model: OneBitCompletionModel, table: DataFrame, threshold: float | None, request: CertificateRequest
    ) -> CheckedRatings:
        check_request(model.factors, table, request)
        return checked_ratings(model.factors, table, threshold)

    def measure(self, model: OneBitCompletionModel, on: CheckedRatings) -> dict[str, Any]:
        return measure(model.factors, on.ratings, on.columns.threshold, on.counts)[0]

    def certify(
        self, model: OneBitCompletionModel, on: CheckedRatings, request: CertificateRequest,
        freshness: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], list[Certificate]]:  # fmt: skip
        return certify(model.factors, model.fitted, on, request, freshness)

    def certified(self, model: OneBitCompletionModel, certificates: Sequence[Certificate]) -> OneBitCompletionModel:
        return model.withCertificates(certificates)

    def calibrated(self, model: OneBitCompletionModel, on: CheckedRatings) -> OneBitCompletionModel:
        return model.calibrate(on.ratings)

    def diagnosed(self, model: OneBitCompletionModel, ratings: SparkRatings, source: str) -> OneBitCompletionModel:
        if ratings.held_out is None:
            return model.diagnose(ratings.to_fit, source, fitted=True)
        return model.diagnose(ratings.held_out.ratings, source, counts=ratings.held_out.counts)

    def noted(self, model: OneBitCompletionModel, facts: Mapping[str, Any]) -> OneBitCompletionModel:
        return model.changed(diagnostics={**(model.info.diagnostics or {}), "job": facts})

    # ---- predictions -------------------------------------------------------------------------------------------------

    def predict(self, model: OneBitCompletionModel, pairs: DataFrame, n: int, target: Target) -> None:
        spark_tables.write_lines(self.session, spark_tables.predictions(model, pairs, n), target)

    def recommend(self, model: OneBitCompletionModel, n: int, seen: DataFrame | None, target: Target) -> None:
        spark_tables.write_lines(self.session, spark_tables.recommendations(model, n, seen), target)
