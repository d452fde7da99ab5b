"""All certificates that held-out ratings give: for all of them, and within each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebit_spark.certificate.certificates import MEAN, UNSEEN, Certificate, Terms, holdout_certificate
from onebit_spark.certificate.selective import SELECTIVE, Group, HeldOut, least, selective_certificates
from onebit_spark.core.confidence import Ladder

MOST_GROUPS = 1000
COIN = 0.5  # a group must be large enough for a holdout bound below this


@dataclass(frozen=True)
class HeldOutCounts:
    """Counts of held-out ratings per rung of a ladder: of all, and of each group."""

    whole: HeldOut
    groups: Mapping[Group, HeldOut] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ladder: Ladder, rung: NDArray[Any], n: Any, wrong: NDArray[Any], off_majority: NDArray[Any],
        groups: Iterable[tuple[Group, NDArray[np.bool_]]] = (),
    ) -> HeldOutCounts:  # fmt: skip
        """Count lines as ``HeldOut.counted``; ``groups`` yields each group with its lines."""
        n, rungs = np.broadcast_to(n, rung.shape), len(ladder.thresholds)
        whole = HeldOut.counted(rung, n, wrong, off_majority, rungs)
        parts = {
            group: HeldOut.counted(rung[inside], n[inside], wrong[inside], off_majority[inside], rungs)
            for group, inside in groups
        }
        return cls(whole, parts)


def held_out_certificates(
    ladder: Ladder, counts: HeldOutCounts, terms: Terms, requests: Sequence[float] = ()
) -> list[Certificate]:
    """All certificates of a model's predictions: ``holdout`` first, then the ``further_certificates``.

    The counts are of ratings that the model has not seen. ``requests`` are error rates among the answered pairs.
    """
    whole = counts.whole
    first = holdout_certificate(whole.errors, whole.n, terms, whole.majority_error)
    return [first, *further_certificates(ladder, whole, counts.groups, terms, requests)]


def further_certificates(
    ladder: Ladder, whole: HeldOut, groups: Mapping[Group, HeldOut], terms: Terms, requests: Sequence[float]
) -> list[Certificate]:
    """``selective`` for each request; then ``holdout`` and ``selective`` for each group (docs/MATH.md, §10.4).

    The groups share δ, separately for the two names. A group that is too small is left out. This is decided by its
    number of ratings, never by its errors.
    """
    certificates = selective_certificates(ladder, whole, terms, requests) if requests else []
    sizes, share = {group: held.n for group, held in groups.items()}, terms.delta / terms.grid
    kept = certifiable(sizes, COIN, share)
    for group, held in groups.items():
        if group in kept:
            certificates.append(_holdout_within(group, held, terms, len(kept)))
        else:
            certificates.append(_too_small("holdout", group, held, terms, least(COIN, share / max(1, len(kept)))))
    if not requests:
        return certificates
    easiest, share = max(requests), share / len(set(requests))
    kept = certifiable(sizes, easiest, share)
    for group, held in groups.items():
        if group in kept:
            certificates += selective_certificates(ladder, held, terms, requests, len(kept), group)
        else:
            certificates.append(_too_small(SELECTIVE, group, held, terms, least(easiest, share / max(1, len(kept)))))
    return certificates


def certifiable(sizes: Mapping[Group, int], rate: float, delta: float) -> set[Group]:
    """The largest groups, as many as can each be certified at δ divided by their number."""
    ordered = sorted(sizes, key=lambda group: -sizes[group])
    for number in range(len(ordered), 0, -1):
        if sizes[ordered[number - 1]] >= least(rate, delta / number):
            return set(ordered[:number])
    return set()


def _holdout_within(group: Group, held: HeldOut, terms: Terms, groups: int) -> Certificate:
    """``holdout`` for a group, at its share of δ."""
    part = holdout_certificate(held.errors, held.n, replace(terms, grid=terms.grid * groups), held.majority_error)
    text = f"Where {group}: {part.statement[0].lower()}{part.statement[1:]}"
    share = terms.delta / (terms.grid * groups)
    inputs = {"errors": held.errors, "group": group.as_dict(), "delta_share": share, "grid": terms.grid}
    return replace(part, statement=text, inputs=inputs)


def _too_small(name: str, group: Group, held: HeldOut, terms: Terms, fewest: int) -> Certificate:
    """A certificate which says that the group is too small."""
    nothing = {"request": None, "threshold": None, "answered_share": 0.0, "n_answered": 0} if name == SELECTIVE else {}
    return Certificate(
        name=name, bound=1.0, bounds=MEAN, over=UNSEEN, delta=terms.delta, n=held.n, majority_error=held.majority_error,
        statement=f"Where {group}: {held.n:,} held-out ratings are too few to certify, at least {fewest:,} are needed.",
        inputs={"group": group.as_dict(), **nothing},
    )  # fmt: skip
