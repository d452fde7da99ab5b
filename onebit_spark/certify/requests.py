"""What is to be certified on ratings that were not fitted, and the certificates that follow from
their counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onebit_spark.certify.certificates import (
    OF_PREDICTIONS,
    CallRequest,
    Certificate,
    HeldOutCounts,
    certificate_document,
    held_out_certificates,
    kept_by_coin,
    precision_problems,
    precision_requests,
    request_problems,
    with_freshness,
)
from onebit_spark.certify.freshness import Freshness
from onebit_spark.model_info import (
    ModelInfo,
)
from onebit_spark.records import Fields
from onebit_spark.settings import Terms, param_names

Document = Fields  # the content of certificate.json
Precisions = str | float | Sequence[str | float]  # such as 0.9, or "0.9,negative:0.99"


@dataclass(frozen=True)
class CertificateRequest:
    terms: Terms
    max_error: float | Sequence[float] = ()  # requested error rates among the answered pairs
    by: str | None = None  # a column of the ratings: certify within each of its groups as well
    min_precision: Precisions = ()  # requested precisions of calls: see ``precision_requests``

    @classmethod
    def of(
        cls,
        maxError: float | Sequence[float],
        delta: float,
        by: str | None,
        grid: int,
        minPrecision: Precisions = (),
    ) -> CertificateRequest:
        return cls(Terms(delta=delta, grid=grid), maxError, by, minPrecision)

    @property
    def rates(self) -> list[float]:
        given = self.max_error
        if isinstance(given, Iterable) and not isinstance(given, str):
            return list(given)
        return [given]

    @property
    def calls(self) -> list[CallRequest]:
        return [
            *(CallRequest("answered", float(rate)) for rate in self.rates),
            *precision_requests(self.min_precision),
        ]

    def problems(self, info: ModelInfo, names: Mapping[str, str] | None = None) -> list[str]:
        """Why a model cannot be certified like this, before any rating is scored.

        ``names`` are those of the arguments in the messages. Default: the names of the Params.
        """
        own = {"max_error": "maxError", "min_precision": "minPrecision"}
        names = {**param_names(Terms), **own} if names is None else names
        if not isinstance(self.terms, Terms):
            return [f"terms must be Terms, such as Terms(delta=0.1), not {self.terms!r}"]
        problems = [problem.in_words(names) for problem in self.terms.problems()]
        asked = {
            "max_error": request_problems(self.rates),
            "min_precision": precision_problems(self.min_precision),
        }
        problems += [
            f"{names.get(name, name)} {problem}"
            for name, found in asked.items()
            for problem in found
        ]
        if not problems and self.calls and info.confidences is None:
            problems.append(
                "a checkpoint has no confidences of its ratings: certify the finished model"
            )
        return problems


def make_certificates(
    info: ModelInfo, counts: HeldOutCounts, request: CertificateRequest, fresh: Freshness
) -> list[Certificate]:
    certificates = held_out_certificates(info.thresholds, counts, request.terms, request.calls)
    certificates = [with_freshness(item, fresh) for item in certificates]
    if not fresh.get("by_coin"):
        return certificates
    repeated = bool(info.repeats.get("repeated"))
    left_out = fresh.get("left_out", 0)
    return [kept_by_coin(item, repeated, left_out) for item in certificates]


def replace_certificates(
    before: Document,
    certificates: Sequence[Certificate],
    instead_of: Collection[str] = OF_PREDICTIONS,
) -> Document:
    """The content of ``certificate.json`` with more certificates, ``instead_of`` those of some
    names and of groups.

    By default these are all about the predictions, so the certificates of a fit remain.
    """
    kept = [
        item
        for item in before["certificates"]
        if item["name"] not in instead_of and not item.get("group")
    ]
    return certificate_document([*kept, *(item.as_dict() for item in certificates)])
