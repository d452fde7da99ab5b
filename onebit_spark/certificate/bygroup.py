"""All certificates that held-out ratings give: of the whole, and within each group of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onebit_spark.certificate.certified import MEAN, UNSEEN, Certificate, Terms, holdout_certificate
from onebit_spark.certificate.selective import SELECTIVE, Group, HeldOut, least, selective_certificates
from onebit_spark.core.confidence import Ladder

MOST_GROUPS = 1000
COIN = 0.5  # a holdout bound that cannot go below this says nothing


def further_certificates(
    ladder: Ladder, whole: HeldOut, groups: Mapping[Group, HeldOut], terms: Terms, requests: Sequence[float]
) -> list[Certificate]:
    """``selective`` for every request; then, by group, ``holdout`` and ``selective``.

    The groups share δ, for each name anew. They are counted, and left out as too small, by their numbers of ratings.
    """
    found = selective_certificates(ladder, whole, terms, requests) if requests else []
    share = terms.delta / terms.grid
    kept = certifiable({group: held.n for group, held in groups.items()}, COIN, share)
    for group, held in groups.items():
        if group in kept:
            found.append(_holdout_within(group, held, terms, len(kept)))
        else:
            found.append(_too_small("holdout", group, held, terms, least(COIN, share / max(1, len(kept)))))
    if not requests:
        return found
    easiest, share = max(requests), share / len(set(requests))
    kept = certifiable({group: held.n for group, held in groups.items()}, easiest, share)
    for group, held in groups.items():
        if group in kept:
            found += selective_certificates(ladder, held, terms, requests, len(kept), group)
        else:
            found.append(_too_small(SELECTIVE, group, held, terms, least(easiest, share / max(1, len(kept)))))
    return found


def certifiable(sizes: Mapping[Group, int], rate: float, delta: float) -> set[Group]:
    """As many groups, the largest first, as can each be certified at δ over their number."""
    ordered = sorted(sizes, key=lambda group: -sizes[group])
    for number in range(len(ordered), 0, -1):
        if sizes[ordered[number - 1]] >= least(rate, delta / number):
            return set(ordered[:number])
    return set()


def _holdout_within(group: Group, held: HeldOut, terms: Terms, groups: int) -> Certificate:
    """``holdout`` at the group's part of δ."""
    part = holdout_certificate(held.errors, held.n, replace(terms, grid=terms.grid * groups), held.majority_error)
    text = f"Where {group}: {part.statement[0].lower()}{part.statement[1:]}"
    told = {"errors": held.errors, "group": group.as_dict(), "delta_share": terms.delta / (terms.grid * groups)}
    return replace(part, statement=text, inputs={**told, "grid": terms.grid})


def _too_small(name: str, group: Group, held: HeldOut, terms: Terms, fewest: int) -> Certificate:
    """A group that nothing can be said of, named for it."""
    told = {"request": None, "threshold": None, "answered_share": 0.0, "n_answered": 0} if name == SELECTIVE else {}
    return Certificate(
        name=name, bound=1.0, bounds=MEAN, over=UNSEEN, delta=terms.delta, n=held.n, majority_error=held.majority_error,
        statement=f"Where {group}: too few to certify: {held.n:,} held-out ratings, at least {fewest:,} are needed.",
        inputs={"group": group.as_dict(), **told},
    )  # fmt: skip
