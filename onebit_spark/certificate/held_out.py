"""The certificates that held-out ratings give: of all predictions, within groups, and of those that are sure enough.

The last is the selective certificate (docs/MATH.md, §10): on which pairs is the error rate at most r, and how many are
they?

Level t answers a pair if its confidence |z| is at least the threshold of the level. R(t) is the error rate
among the answered pairs. Of the n_t held-out ratings that level t answers, k_t are wrong. No threshold depends on these
ratings, so given n_t, k_t is Binomial(n_t, R(t)). R(t) ≤ r holds with confidence 1 − δ if P(Binomial(n_t, r) ≤ k_t) ≤
δ.

Fixed-sequence test: begin at a high level, go down one by one, stop at the first that fails, keep the last that passed.
The result is wrong only if the *first* level of the sequence with R(t) > r passes. This has probability δ at most. So
one δ is enough for all levels, for any shape of R(t). Several requests and groups share δ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from onebit_spark.certificate.certificates import MEAN, UNSEEN, Certificate, holdout_certificate
from onebit_spark.core.config import Terms
from onebit_spark.core.prediction import ConfidenceThresholds
from onebit_spark.errors import RequestError

SELECTIVE = "selective"
ANSWERED = "mean predictor: the sign of the score, where the confidence reaches the threshold (column `answered`)"
START = 10.0  # the first level of the test should answer so many times the least number that can pass
HINTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)


@dataclass(frozen=True)
class Group:
    """Ratings that share a value of a column; None is null."""

    column: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.column} is missing" if self.value is None else f"{self.column} is {self.value}"


@dataclass(frozen=True)
class HeldOut:
    """Counts of held-out ratings per confidence level."""

    answered: NDArray[np.int64]  # n_t, the ratings that each level answers
    wrong: NDArray[np.int64]  # k_t, the wrong ones among them
    majority_error: float  # of always predicting the majority class of the training data

    @classmethod
    def counted(cls, level: NDArray[Any], n: Any, wrong: Any, off_majority: Any, levels: int) -> HeldOut:
        """Count lines of n ratings, of which the highest of ``levels`` that answers them, the wrong predictions, and
        the labels that are not the majority class are given.
        """
        total, off = np.sum(np.broadcast_to(n, level.shape)), np.sum(off_majority)
        by_level = (np.bincount(level, np.broadcast_to(each, level.shape), levels) for each in (n, wrong))
        answered, errors = (np.cumsum(each[::-1])[::-1].astype(np.int64) for each in by_level)
        return cls(answered, errors, float(off / total))

    @property
    def n(self) -> int:
        return int(self.answered[0])

    @property
    def errors(self) -> int:
        return int(self.wrong[0])


def fewest_answered(request: float, delta: float) -> int:
    """The smallest number of answered ratings that can pass, without any error: (1 − r)^n ≤ δ."""
    return math.ceil(math.log(delta) / math.log1p(-request) - 1e-9)


def request_problems(requests: Iterable[Any]) -> list[str]:
    """All problems with the requested error rates, in words."""
    return [
        f"must hold error rates strictly between 0 and 0.5, not {request!r}"
        for request in requests
        if not (isinstance(request, (int, float)) and not isinstance(request, bool) and 0 < request < 0.5)
    ]


def first_level(shares: Sequence[float], n: int, request: float, delta: float) -> int | None:
    """The level where the test on n ratings begins, from the shares of the fitted ratings. None if n is too small.

    It is the highest level that should answer min(10·fewest, √(n·fewest)) ratings. With five times ``fewest``, the test
    fails by chance too often: if R(t) = r/2 there, it passes in 70% of the cases, and in 93% with ten times. The model
    is also less confident on held-out ratings than on fitted ones, so fewer are answered than expected.
    """
    fewest = fewest_answered(request, delta)
    if n < fewest:
        return None
    wanted = min(START * fewest, math.sqrt(n * fewest))
    return int(np.flatnonzero(n * np.asarray(shares) >= wanted)[-1])


def last_passed(shares: Sequence[float], held: HeldOut, request: float, delta: float) -> int | None:
    """The last level that passes the fixed-sequence test; None if the first one fails."""
    start = first_level(shares, held.n, request, delta)
    if start is None:
        return None
    down = slice(start, None, -1)
    k, n = held.wrong[down], held.answered[down]
    # P(at most k of n wrong), if each is wrong with probability r: I_{1−r}(n − k, k + 1)
    passing = np.where(k >= n, 1.0, betainc(np.maximum(n - k, 1), k + 1, 1.0 - request)) <= delta
    failed = np.flatnonzero(~passing)
    steps = int(failed[0]) if len(failed) else len(passing)
    return start - steps + 1 if steps else None


def selective_certificates(
    thresholds: ConfidenceThresholds,
    held: HeldOut,
    terms: Terms,
    requests: Sequence[float],
    groups: int = 1,
    group: Group | None = None,
) -> list[Certificate]:
    """One certificate per request. Requests, groups and compared settings share δ."""
    requests = list(dict.fromkeys(requests))
    sharing = len(requests) * groups
    return [_certificate(thresholds, held, terms, request, sharing, group) for request in requests]


def _certificate(
    thresholds: ConfidenceThresholds, held: HeldOut, terms: Terms, request: float, sharing: int, group: Group | None
) -> Certificate:
    share = terms.delta / (terms.grid * sharing)
    level = last_passed(thresholds.shares, held, request, share)
    n_answered, errors = (0, 0) if level is None else (int(held.answered[level]), int(held.wrong[level]))
    inputs = {
        "request": request,
        "requests": sharing,
        "threshold": None if level is None else thresholds.values[level],
        "answered_share": n_answered / held.n,
        "n_answered": n_answered,
        "errors": errors,
        "group": None if group is None else asdict(group),
        "delta_share": share,
        "grid": terms.grid,
    }
    if level is None:
        # The smallest larger request that would pass. It is chosen on these ratings, so it is not a certificate.
        larger = (other for other in HINTS if other > request)
        passing = (other for other in larger if last_passed(thresholds.shares, held, other, share) is not None)
        inputs["hint"] = next(passing, None)
    bare = Certificate(
        name=SELECTIVE,
        bound=1.0 if level is None else request,
        bounds=ANSWERED,
        over=UNSEEN,
        delta=terms.delta,
        n=held.n,
        majority_error=held.majority_error,
        statement="",
        inputs=inputs,
    )
    text = _unmet(bare, share) if level is None else _met(bare)
    return replace(bare, statement=text if group is None else f"Where {group}: {text[0].lower()}{text[1:]}")


def _met(item: Certificate) -> str:
    """The sentence of a request that was met. It names the threshold of a group: the model does not apply that."""
    inputs = item.inputs
    if inputs["group"] is None:
        which, share = "that it answers", f"it answered {inputs['answered_share']:.1%} of {item.n:,}"
    else:
        which = f"with a confidence of {inputs['threshold']:.4g} or more"
        share = f"it had this confidence on {inputs['answered_share']:.1%} of {item.n:,}"
    wrong = inputs["errors"] / inputs["n_answered"]
    text = (
        f"With {_percent(1 - item.delta)} confidence, at most {_percent(inputs['request'])} of the predictions {which} "
        f"are wrong, on ratings like those that were kept out; {share}, and {wrong:.1%} of these were wrong."
    )
    if item.vacuous:
        text += f" This limit is not informative: the majority class is wrong on {item.majority_error:.1%}."
    if inputs["requests"] > 1:
        several = f"{inputs['requests']} requests{' of groups' if inputs['group'] else ''}"
        text += f" The {_percent(1 - item.delta)} is for all {several} together, met or not."
    return text


def _unmet(item: Certificate, share: float) -> str:
    inputs = item.inputs
    text = f"An error of at most {_percent(inputs['request'])} could not be certified"
    fewest = fewest_answered(inputs["request"], share)
    if item.n < fewest:
        text += f": {item.n:,} ratings are too few, at least {fewest:,} are needed"
    text += "." if inputs["group"] else "; so nothing is answered."
    if inputs["hint"] is not None:
        met = f"A request of {_percent(inputs['hint'])} might be met"
        text += f" {met} (a hint, not a certificate: it was found on the same ratings)."
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


# ---- which pairs a model answers, by its certificate.json ------------------------------------------------------------


def ungrouped_certificates(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    """The selective certificates that are not about a group, in the order of the requests."""
    return [item for item in certificate["certificates"] if item["name"] == SELECTIVE and not item["group"]]


def answering_threshold(certificate: dict[str, Any], max_error: float | None) -> float:
    """The confidence from which on the model answers, by its ``certificate.json``. ∞ if the request could not be met.

    ``max_error`` says which of the certified error rates is meant. Default: the first.
    """
    answering = ungrouped_certificates(certificate)
    if not answering:
        raise RequestError("no error rate was certified for this model: call certifySelective with fresh ratings first")
    if max_error is not None:
        certified = ", ".join(f"{item['request']:g}" for item in answering)
        answering = [item for item in answering if math.isclose(item["request"], max_error, rel_tol=1e-9)]
        if not answering:
            raise RequestError(f"maxError {max_error:g} was not certified for this model: choose one of {certified}")
    threshold = answering[0]["threshold"]
    return math.inf if threshold is None else float(threshold)


# ---- all certificates ------------------------------------------------------------------------------------------------

MOST_GROUPS = 1000
COIN = 0.5  # a group must be large enough for a holdout bound below this


@dataclass(frozen=True)
class HeldOutCounts:
    """Counts of held-out ratings per confidence level: of all, and of each group."""

    whole: HeldOut
    groups: Mapping[Group, HeldOut] = field(default_factory=dict)

    @classmethod
    def of(
        cls, thresholds: ConfidenceThresholds, level: NDArray[Any], n: Any, wrong: NDArray[Any],
        off_majority: NDArray[Any], groups: Iterable[tuple[Group, NDArray[np.bool_]]] = (),
    ) -> HeldOutCounts:  # fmt: skip
        """Count lines as ``HeldOut.counted``; ``groups`` yields each group with its lines."""
        n, levels = np.broadcast_to(n, level.shape), len(thresholds.values)
        whole = HeldOut.counted(level, n, wrong, off_majority, levels)
        parts = {
            group: HeldOut.counted(level[inside], n[inside], wrong[inside], off_majority[inside], levels)
            for group, inside in groups
        }
        return cls(whole, parts)


def held_out_certificates(
    thresholds: ConfidenceThresholds, counts: HeldOutCounts, terms: Terms, requests: Sequence[float] = ()
) -> list[Certificate]:
    """``holdout``, and ``selective`` for each request; then both for each group (docs/MATH.md, §10.4).

    The counts are of ratings that the model has not seen. ``requests`` are error rates among the answered pairs. The
    groups share δ, separately for the two names. A group that is too small is left out. This is decided by its number
    of ratings, never by its errors.
    """
    whole, sizes = counts.whole, {group: held.n for group, held in counts.groups.items()}
    certificates = [holdout_certificate(whole.errors, whole.n, terms, whole.majority_error)]
    certificates += selective_certificates(thresholds, whole, terms, requests)
    names = {"holdout": (COIN, 1)}
    if requests:
        names[SELECTIVE] = max(requests), len(set(requests))
    for name, (rate, sharing) in names.items():
        share = terms.delta / terms.grid / sharing
        kept = certifiable(sizes, rate, share)
        for group, held in counts.groups.items():
            if group not in kept:
                needed = fewest_answered(rate, share / max(1, len(kept)))
                certificates.append(_too_small(name, group, held, terms, needed))
            elif name == SELECTIVE:
                certificates += selective_certificates(thresholds, held, terms, requests, len(kept), group)
            else:
                certificates.append(_holdout_within(group, held, terms, len(kept)))
    return certificates


def certifiable(sizes: Mapping[Group, int], rate: float, delta: float) -> set[Group]:
    """The largest groups, as many as can each be certified at δ divided by their number."""
    ordered = sorted(sizes, key=lambda group: -sizes[group])
    for number in range(len(ordered), 0, -1):
        if sizes[ordered[number - 1]] >= fewest_answered(rate, delta / number):
            return set(ordered[:number])
    return set()


def _holdout_within(group: Group, held: HeldOut, terms: Terms, groups: int) -> Certificate:
    """``holdout`` for a group, at its share of δ."""
    part = holdout_certificate(held.errors, held.n, replace(terms, grid=terms.grid * groups), held.majority_error)
    text = f"Where {group}: {part.statement[0].lower()}{part.statement[1:]}"
    share = terms.delta / (terms.grid * groups)
    inputs = {"errors": held.errors, "group": asdict(group), "delta_share": share, "grid": terms.grid}
    return replace(part, statement=text, inputs=inputs)


def _too_small(name: str, group: Group, held: HeldOut, terms: Terms, fewest: int) -> Certificate:
    nothing = {"request": None, "threshold": None, "answered_share": 0.0, "n_answered": 0} if name == SELECTIVE else {}
    return Certificate(
        name=name, bound=1.0, bounds=MEAN, over=UNSEEN, delta=terms.delta, n=held.n, majority_error=held.majority_error,
        statement=f"Where {group}: {held.n:,} held-out ratings are too few to certify, at least {fewest:,} are needed.",
        inputs={"group": asdict(group), **nothing},
    )  # fmt: skip
