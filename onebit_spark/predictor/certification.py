"""Which certificates are wanted of a model's predictions, and what speaks against them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onebit_spark.certificate.certificates import Certificate, Terms, document
from onebit_spark.certificate.selective import request_problems
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.settings import param_names


@dataclass(frozen=True)
class CertificateRequest:
    """Which certificates are wanted."""

    terms: Terms
    max_error: Sequence[float] = ()  # requested error rates among the answered pairs
    by: str | None = None  # a column of the ratings: certify within each of its groups as well

    @classmethod
    def of(cls, maxError: float | Sequence[float], delta: float, by: str | None, grid: int) -> CertificateRequest:
        """From the arguments of a model's method."""
        rates = [maxError] if isinstance(maxError, int | float) else list(maxError)
        return cls(Terms(delta=delta, grid=grid), rates, by)

    def problems(self, info: ModelInfo) -> list[str]:
        """Why a model cannot be certified like this, before any rating is scored."""
        problems = [problem.told(param_names(Terms)) for problem in self.terms.problems()]
        problems += [f"maxError {problem}" for problem in request_problems(self.max_error)]
        if self.max_error and info.ladder is None:
            problems.append("the model was saved by a version that kept no confidences of its ratings: fit it again")
        return problems


def with_certificates(
    before: Mapping[str, Any], certificates: Sequence[Certificate], instead_of: Collection[str] = ()
) -> dict[str, Any]:
    """The content of ``certificate.json`` with more certificates, without those of some names; then also without
    those of groups."""
    kept = [
        item
        for item in before["certificates"]
        if not instead_of or (item["name"] not in instead_of and not item.get("group"))
    ]
    return document([*kept, *(item.as_dict() for item in certificates)])
