"""Certificates of a model's predictions, from ratings that it has not seen, on Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType

from onebit_spark.certificate.certificates import Certificate, with_freshness
from onebit_spark.certificate.held_out import held_out_certificates
from onebit_spark.core.confidence import EVERYTHING
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import column_problem, matching
from onebit_spark.input.defects import Columns, RatingCounts, check_ratings
from onebit_spark.ml.evaluation import measure
from onebit_spark.ml.fitted_model import FittedModel
from onebit_spark.ml.freshness import check_fresh
from onebit_spark.ml.scored_ratings import counting
from onebit_spark.predictor import certification
from onebit_spark.predictor.certification import CertificateRequest

M = TypeVar("M", bound=FittedModel)


@dataclass(frozen=True)
class CheckedRatings:
    """Ratings that a model is judged by, without those of weight 0: see ``checked_ratings``."""

    ratings: DataFrame
    columns: Columns
    tally: RatingCounts


def checked_ratings(model: FittedModel, ratings: DataFrame, threshold: float | None = None) -> CheckedRatings:
    """Check and count ratings. The default threshold is that of the fit, unless the labels are booleans."""
    if threshold is None and not any(
        isinstance(field.dataType, BooleanType) for field in matching(ratings, model.info.columns["label"])
    ):
        threshold = model.info.threshold
    ratings, columns = counting(model, ratings, threshold)
    return CheckedRatings(ratings, columns, check_ratings(ratings, columns))


def certify(
    model: FittedModel, on: CheckedRatings, request: CertificateRequest, freshness: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Certificate]]:
    """The figures of a model on ratings, and the certificates that they give: ``holdout`` first.

    Ratings that the model was fitted on are refused, unless the caller knows their ``freshness``.
    """
    if freshness is None:
        freshness = check_fresh(model, on.ratings, on.columns, on.tally)
    figures, counts = measure(model, on.ratings, on.columns.threshold, on.tally, request.by)
    ladder = model.info.ladder or EVERYTHING
    certificates = held_out_certificates(ladder, counts, request.terms, request.max_error)
    return figures, [with_freshness(item, freshness) for item in certificates]


def check_request(model: FittedModel, ratings: DataFrame, request: CertificateRequest) -> None:
    """Refuse, before any rating is scored, what cannot be certified."""
    problems = request.problems(model.info)
    if request.by is not None and (problem := column_problem(ratings, request.by, " to group by")):
        problems.append(problem)
    if problems:
        raise RequestError("; ".join(problems))


def certified(model: FittedModel, ratings: DataFrame, request: CertificateRequest) -> list[Certificate]:
    """The certificates that ratings with the columns of the fit give."""
    check_request(model, ratings, request)
    return certify(model, checked_ratings(model, ratings), request)[1]


def with_certificates(model: M, certificates: Sequence[Certificate], instead_of: Collection[str] = ()) -> M:
    """The model with more certificates, without those of some names; and then without those of groups."""
    certified = model.changed()
    certified.certificate = certification.with_certificates(model.certificate, certificates, instead_of)
    return certified
