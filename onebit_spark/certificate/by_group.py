"""All certificates that held-out ratings give: for all of them, and within each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onebit_spark.certificate.certificates import MEAN, UNSEEN, Certificate, Terms, holdout_certificate
from onebit_spark.certificate.selective import SELECTIVE, Group, HeldOut, least, selective_certificates
from onebit_spark.core.confidence import Ladder

MOST_GROUPS = 1000
COIN = 0.5  # a group must be large enough for a holdout bound below this


def further_certificates(
    ladder: Ladder, whole: HeldOut, groups: Mapping[Group, HeldOut], terms: Terms, requests: Sequence[float]
) -> list[Certificate]:
    """``selective`` for each request; then ``holdout`` and ``selective`` for each group (docs/MATH.md, §10.4).

    The groups share δ, separately for the two names. A group that is too small is left out. This is decided by its
    number of ratings, never by its errors.

    Parameters
    ----------
    ladder : Ladder
        Candidate thresholds.
    whole : HeldOut
        Counts of all held-out ratings.
    groups : mapping of Group to HeldOut
        Counts of each group.
    terms : Terms
        δ, and the number of settings that were compared.
    requests : sequence of float
        The requested error rates.
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
    told = {"errors": held.errors, "group": group.as_dict(), "delta_share": terms.delta / (terms.grid * groups)}
    return replace(part, statement=text, inputs={**told, "grid": terms.grid})


def _too_small(name: str, group: Group, held: HeldOut, terms: Terms, fewest: int) -> Certificate:
    """A certificate which says that the group is too small."""
    told = {"request": None, "threshold": None, "answered_share": 0.0, "n_answered": 0} if name == SELECTIVE else {}
    return Certificate(
        name=name, bound=1.0, bounds=MEAN, over=UNSEEN, delta=terms.delta, n=held.n, majority_error=held.majority_error,
        statement=f"Where {group}: {held.n:,} held-out ratings are too few to certify, at least {fewest:,} are needed.",
        inputs={"group": group.as_dict(), **told},
    )  # fmt: skip
