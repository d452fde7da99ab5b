"""Whether a model has seen the ratings that are to certify it (docs/MATH.md, §9.6)."""

from __future__ import annotations

from onebit_spark.data.hashes import ENOUGH, CellSketch
from onebit_spark.errors import RequestError
from onebit_spark.records import Record

Freshness = Record  # ``checked``, a ``reason`` and figures: see ``Certificate.inputs``

KEPT_OUT: Freshness = {
    "checked": True,
    "by_coin": True,
    "reason": "a coin for every cell kept these ratings out of this very fit",
}
NOT_KNOWN: Freshness = {
    "checked": False,
    "reason": "the model does not record which ratings it was fitted on",
}


def fresh_to(known: CellSketch | None, asked: CellSketch | None) -> Freshness:
    """How ratings compare with those of a fit, for a certificate.

    Refuses those that the model was fitted on.

    ``checked`` is false, with a ``reason``, where it could not be seen.
    """
    if known is None or asked is None:
        return NOT_KNOWN
    compared = known.compared(asked)
    if compared.stale:
        raise RequestError(
            f"these ratings certify nothing: {compared.share:.1%} of them are of cells that the "
            "model was fitted on, "
            f"and of fresh ratings about {compared.expected:.1%} would be ({compared.looked_at:,} "
            "were compared). "
            "Give ratings that it has not seen, or hold some out of the fit"
        )
    figures = {name: getattr(compared, name) for name in ("share", "expected", "looked_at")}
    if not known.complete:
        reason = "the model records only some of the ratings that it was fitted on"
    elif compared.looked_at < ENOUGH:
        reason = f"only {compared.looked_at} of the ratings can be compared with those of the fit"
    elif not compared.conclusive:
        reason = (
            f"cells are rated so often that {compared.expected:.1%} of fresh ratings are "
            "of cells of the fit"
        )
    else:
        return {"checked": True, **figures}
    return {"checked": False, "reason": reason, **figures}


def seen_in_fit(known: CellSketch | None, asked: CellSketch) -> str | None:
    """A warning if the model was fitted on these ratings, in whole or in part."""
    if known is None or not (compared := known.compared(asked)).stale:
        return None
    return (
        f"the model was fitted on some of these ratings ({compared.share:.1%} of them are of "
        "fitted cells; of fresh "
        f"ratings about {compared.expected:.1%} would be), so the figures are too good"
    )
