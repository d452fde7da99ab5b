"""Which certificates are wanted of a model's predictions, and what speaks against them.

Ratings that certify a model must be fresh: their sketch is compared with that of the cells that it was fitted on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onebit_spark.certificate.certificates import Certificate, certificate_document
from onebit_spark.certificate.held_out import request_problems
from onebit_spark.core.config import Terms
from onebit_spark.core.hashes import ENOUGH, CellSketch, Comparison
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.settings import param_names
from onebit_spark.errors import RequestError

KEPT_OUT = {"checked": True, "reason": "a coin for every cell kept these ratings out of this very fit"}
NOT_KNOWN = {"checked": False, "reason": "the model does not say which ratings it was fitted on"}


def fresh_to(known: CellSketch | None, asked: CellSketch) -> dict[str, Any]:
    """How ratings compare with those of a fit, for a certificate. Refuses those that the model was fitted on.

    ``checked`` is false, with a ``reason``, where it could not be seen.
    """
    if known is None:
        return NOT_KNOWN
    compared = known.compared(asked)
    if compared.stale:
        raise RequestError(
            f"these ratings certify nothing: {compared.share:.1%} of them are of cells that the model was fitted on, "
            f"and of fresh ratings about {compared.expected:.1%} would be ({compared.looked_at:,} were looked at). "
            "Give ratings that it has not seen, or hold some out of the fit"
        )
    figures: dict[str, Any] = {name: getattr(compared, name) for name in ("share", "expected", "looked_at")}
    reason = _doubt(known, compared)
    return {"checked": True, **figures} if reason is None else {"checked": False, "reason": reason, **figures}


def seen_in_fit(known: CellSketch | None, asked: CellSketch) -> str | None:
    """A warning if the model was fitted on these ratings, in whole or in part."""
    if known is None or not (compared := known.compared(asked)).stale:
        return None
    return (
        f"the model was fitted on some of these ratings ({compared.share:.1%} of them are of fitted cells; of fresh "
        f"ratings about {compared.expected:.1%} would be), so the figures are too good"
    )


def _doubt(known: CellSketch, compared: Comparison) -> str | None:
    """Why it cannot be said that the ratings are fresh."""
    if not known.complete:
        return "the model does not say all that it was fitted on"
    if compared.looked_at < ENOUGH:
        return f"only {compared.looked_at} of the ratings can be compared with those of the fit"
    if not compared.conclusive:
        return f"cells are rated so often that {compared.expected:.1%} of fresh ratings are of cells of the fit"
    return None


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

    def problems(self, info: ModelInfo, names: Mapping[str, str] | None = None) -> list[str]:
        """Why a model cannot be certified like this, before any rating is scored.

        ``names`` are those of the arguments in the messages. Default: the names of the Params.
        """
        names = {**param_names(Terms), "max_error": "maxError"} if names is None else names
        problems = [problem.in_words(names) for problem in self.terms.problems()]
        problems += [f"{names.get('max_error', 'max_error')} {problem}" for problem in request_problems(self.max_error)]
        if self.max_error and info.confidence_thresholds is None:
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
    return certificate_document([*kept, *(item.as_dict() for item in certificates)])
