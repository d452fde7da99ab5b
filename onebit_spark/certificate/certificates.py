"""The certificates: every bound that applies, with its inputs and a sentence for people.

Of a fit: ``gibbs_certificates``, ``theorem1_certificate``, ``prior_split_certificate``. Of held-out ratings:
``held_out_certificates``, for all predictions, for those that are sure enough, and within groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from onebit_spark.certificate import bounds
from onebit_spark.core.config import Terms
from onebit_spark.core.prediction import ConfidenceThresholds
from onebit_spark.core.randomness import Draws, GibbsErrors
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import RequestError

NARROWING = 64**-0.5  # t^{−½}: spreads of a learnt prior divided by those of its fit (``certified_fit``)
DRAWS_SHARE = 0.2  # the share of δ for the draws that estimate the Gibbs risk: .05 is .04 + .01
HEADLINES = ("holdout", "prior_split", "seeger")  # the headline is the first of these that was asked for
OF_PREDICTIONS = ("holdout", "selective")  # these bound the errors of ``prediction``, the others the errors of draws

GIBBS = "Gibbs: the sign of a fresh random draw of the score, as `sample` makes it"
MEAN = "mean predictor: the sign of the score, as `prediction` gives it"
SAMPLED = "ratings sampled like those of the fit (training cells included), not all cells of the matrix"
REST = (
    "ratings sampled like those that the prior was not learnt from (where no cell is rated twice: of cells other than "
    "the prior's), not all cells of the matrix"
)
UNSEEN = "ratings sampled like the ones that were kept out, not all cells of the matrix"
KEPT_CELLS = "ratings of the cells that a coin kept out of the fit, sampled like those, not all cells of the matrix"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One upper limit on the error rate."""

    name: str  # "holdout", "selective", "seeger", "catoni", "theorem1" or "prior_split"
    bound: float  # the limit
    bounds: str  # the predictor whose errors are limited, in words
    over: str  # the distribution of ratings that it is about, in words
    delta: float  # δ; the limit holds with probability 1 − δ
    n: int  # ratings that it was computed from
    majority_error: float  # error rate of always predicting the majority class
    statement: str  # the certificate as a sentence
    inputs: Mapping[str, Any] = field(default_factory=dict)  # what the bound was computed from, by name

    @property
    def vacuous(self) -> bool:
        """Whether a coin or the majority class is as good as the bound (docs/MATH.md, §9.8)."""
        return not self.bound < min(0.5, self.majority_error)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "bound": self.bound,
            "vacuous": self.vacuous,
            "statement": self.statement,
            "bounds": self.bounds,
            "over": self.over,
            "delta": self.delta,
            "n": self.n,
            "majority_error": self.majority_error,
            **self.inputs,
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Certificate:
        own = {item.name for item in fields(cls)} - {"inputs"}
        inputs = {name: value for name, value in entry.items() if name not in own and name != "vacuous"}
        return cls(**{name: entry[name] for name in own}, inputs=inputs)


def certificate_document(certificates: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of ``certificate.json``. The headline is chosen by name: choosing the smallest bound would cost δ.

    It is never about a group.
    """
    items = [dict(item) for item in certificates]
    names = {item["name"] for item in items if not item.get("group")}
    return {"headline": next((name for name in HEADLINES if name in names), None), "certificates": items}


def headline_of(content: Mapping[str, Any]) -> str | None:
    """The sentence of the headline, from the content of ``certificate.json``."""
    whole = (item for item in content["certificates"] if not item.get("group"))
    return next((item["statement"] for item in whole if item["name"] == content["headline"]), None)


def theorem1_certificate(
    last: Iteration, n: int, lam: float, terms: Terms, majority_error: float, cost: float = 0.0, weights: int = 1
) -> Certificate:
    """The paper's Theorem 1, for the hinge loss and ratings without weights: else the objective is not λ·AVB (§16).

    ``cost`` is what the default α adds to the divergence (``prior_cost``). The theorem holds for one λ = κn, so it pays
    for all κ that might have been chosen; ``weights`` counts them.
    """
    kl = max(last.divergence, 0.0)  # rounding gives < 0
    bound = bounds.theorem1((last.objective + cost) / lam, n, lam, terms.delta / terms.grid / weights)
    inputs = {
        "avb": last.objective / lam, "lambda": lam, "kl": kl, "prior_cost": cost, "grid": terms.grid * weights
    }  # fmt: skip
    return _stated(
        None, name="theorem1", bound=bound, bounds=GIBBS, over=SAMPLED, delta=terms.delta, n=n,
        majority_error=majority_error, inputs=inputs,
    )  # fmt: skip


def gibbs_certificates(
    last: Iteration, counted: GibbsErrors, draws: Draws, terms: Terms, majority_error: float, cost: float = 0.0
) -> list[Certificate]:
    """Catoni's and Seeger's, under a prior that does not depend on the labels. They hold for all posteriors.

    ``cost`` is what the default α adds to the divergence (``prior_cost``).
    """
    n, kl = counted.ratings, max(last.divergence, 0.0)
    gibbs, inputs = _gibbs(counted, draws, terms)
    own = {**inputs, "kl": kl, "prior_cost": cost}
    common = {"bounds": GIBBS, "over": SAMPLED, "delta": terms.delta, "n": n, "majority_error": majority_error}
    left = (1 - DRAWS_SHARE) * (terms.delta / terms.grid)
    bound, best = bounds.catoni_over_grid(gibbs, kl + cost, n, left)
    grid = {"lambda": best, "lambda_grid": len(bounds.CATONI_GRID)}
    catoni = _stated(None, name="catoni", bound=bound, inputs={**own, **grid}, **common)
    bound = bounds.seeger(gibbs, kl + cost, n, left)
    return [catoni, _stated(inputs["gibbs_risk"], name="seeger", bound=bound, inputs=own, **common)]


def prior_split_certificate(
    kl: float, counted: GibbsErrors, draws: Draws, terms: Terms, majority_error: float
) -> Certificate:
    """Seeger's with a prior that was learnt from the ratings A, on the n other ratings B (docs/MATH.md, §9.5).

    Given A, the prior is fixed and B is an independent i.i.d. sample. ρ may depend on A and B, because the bound holds
    for all ρ at once. So the Gibbs risk is that of draws on B, and KL is the divergence from the learnt prior. Anything
    may be tuned on A. The size of A is declared in advance.
    """
    if draws.unseen_by is None:
        raise ValueError(
            "a learnt prior can only be certified on ratings that it has not seen: draw with unseen_by=its split"
        )
    if counted.ratings == 0:
        raise ValueError("the prior has seen all ratings, so none is left to certify with: choose a smaller fraction")
    gibbs, inputs = _gibbs(counted, draws, terms)
    bound = bounds.seeger(gibbs, kl, counted.ratings, (1 - DRAWS_SHARE) * terms.delta / terms.grid)
    return _stated(
        inputs["gibbs_risk"], name="prior_split", bound=bound, bounds=GIBBS, over=REST, delta=terms.delta,
        n=counted.ratings, majority_error=majority_error,
        inputs={**inputs, "kl": kl, "prior_fraction": draws.unseen_by.fraction, "spread_factor": NARROWING},
    )  # fmt: skip


def holdout_certificate(errors: int, n: int, terms: Terms, majority_error: float) -> Certificate:
    """The certificate of the predictions, from ratings that the model has never seen."""
    return _stated(
        errors / n, name="holdout", bound=bounds.holdout(errors, n, terms.delta / terms.grid), bounds=MEAN, over=UNSEEN,
        delta=terms.delta, n=n, majority_error=majority_error, inputs={"errors": errors, "grid": terms.grid},
    )  # fmt: skip


def kept_by_coin(item: Certificate, repeated: bool) -> Certificate:
    """The certificate for ratings that were held out by a coin per cell (docs/MATH.md, §9.2).

    It is about the ratings of the held-out cells. If cells are rated more than once (``repeated``), popular cells weigh
    more, and the ratings of other cells may be different. Then the sentence says so.
    """
    note = " Cells are rated repeatedly here: this is about the cells that were kept out, not about new ones."
    return replace(item, over=KEPT_CELLS, statement=item.statement + (note if repeated else ""))


def with_freshness(item: Certificate, freshness: Mapping[str, Any]) -> Certificate:
    """The certificate with how its ratings compare with those of the fit (§9.7).

    ``freshness`` has ``checked``, and a ``reason`` where this could not be seen. Then the sentence says so.
    """
    note = ""
    if not freshness["checked"]:
        note = f" Whether the model has seen these ratings could not be checked: {freshness['reason']}."
        note += " This holds only if it has not."
    return replace(item, statement=item.statement + note, inputs={**item.inputs, "freshness": dict(freshness)})


def _gibbs(counted: GibbsErrors, draws: Draws, terms: Terms) -> tuple[float, dict[str, Any]]:
    """The upper limit of the Gibbs risk on the ratings, and its inputs."""
    trials = counted.ratings * draws.per_rating
    share = terms.delta / terms.grid
    limit = bounds.gibbs_limit(counted.errors, trials, DRAWS_SHARE * share)
    return limit, {
        "gibbs_risk": counted.errors / trials,
        "gibbs_risk_limit": limit,
        "draws_per_rating": draws.per_rating,
        "delta_split": {"bound": (1 - DRAWS_SHARE) * terms.delta, "draws": DRAWS_SHARE * terms.delta},
        "grid": terms.grid,
    }


def _stated(seen: float | None, **fields: Any) -> Certificate:
    """A certificate with its sentence. ``seen`` is the error rate on its own ratings, if the sentence states it."""
    item = Certificate(statement="", **fields)
    who = "the model's predictions" if item.bounds == MEAN else "random draws from the model (`sample`)"
    places = {UNSEEN: "those that were kept out", REST: "those that its prior was not learnt from"}
    where = places.get(item.over, "these")
    limit = f"at most {min(item.bound, 1):.1%} of ratings like {where}"
    text = f"With {100 * (1 - item.delta):.6g}% confidence, {who} are wrong on {limit}"
    if seen is not None:
        text += f"; they were wrong on {seen:.1%} of {item.n:,}"
    majority = f"The majority class is wrong on {item.majority_error:.1%}."
    if item.vacuous:
        majority = (
            f"This limit is not informative: a coin is wrong on 50%, the majority class on {item.majority_error:.1%}."
        )
    return replace(item, statement=f"{text}. {majority}")


# ---- held-out ratings: the selective certificate ---------------------------------------------------------------------

# The selective certificate (docs/MATH.md, §10): on which pairs is the error rate at most r, and how many are they?
#
# Level t answers a pair if its confidence |z| is at least the threshold of the level. R(t) is the error rate among the
# answered pairs. Of the n_t held-out ratings that level t answers, k_t are wrong. No threshold depends on these
# ratings, so given n_t, k_t is Binomial(n_t, R(t)). R(t) ≤ r holds with confidence 1 − δ if
# P(Binomial(n_t, r) ≤ k_t) ≤ δ.
#
# Fixed-sequence test: begin at a high level, go down one by one, stop at the first that fails, keep the last that
# passed. The result is wrong only if the *first* level of the sequence with R(t) > r passes. This has probability δ at
# most. So one δ is enough for all levels, for any shape of R(t). Several requests and groups share δ.

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
