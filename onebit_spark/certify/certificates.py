"""The certificates: every bound that applies, with its inputs and a sentence for people.

Of a fit: ``gibbs_certificates``, ``theorem1_certificate``. Of held-out ratings:
``held_out_certificates``, for all predictions, for those that are sure enough, for the pairs that
are called positive or negative, and within groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from onebit_spark.certify import bounds
from onebit_spark.core.confidences import Call, ConfidenceThresholds, Thresholds
from onebit_spark.core.randomness import Draws, GibbsErrors
from onebit_spark.core.solver import Iteration
from onebit_spark.errors import RequestError, refuse
from onebit_spark.records import Fields, Record
from onebit_spark.settings import Terms, is_number

DRAWS_SHARE = 0.2  # the share of δ for the draws that estimate the Gibbs risk: .05 is .04 + .01
HEADLINES = ("holdout", "seeger")  # the headline is the first of these that was asked for
# These are about the predictions; the others are about draws.
OF_PREDICTIONS = (
    "holdout",
    "selective",
    "precision",
)
SKEWED = 0.15  # below this error of the majority class, the headline is not the error rate alone

GIBBS = "Gibbs: the sign of a fresh random draw of the score, as `sample` makes it"
MEAN = "mean predictor: the sign of the score, as `prediction` gives it"
SAMPLED = (
    "ratings sampled like those of the fit (training cells included), not all cells of the matrix"
)
UNSEEN = "ratings sampled like the ones that were kept out, not all cells of the matrix"
KNOWN = (
    "ratings of users and items that the model knows, sampled like the ones that were kept out, "
    "not all cells of the "
    "matrix"
)
KEPT_CELLS = (
    "ratings of the cells that a coin kept out of the fit, sampled like those, not all "
    "cells of the matrix"
)
NEW_CELLS = (
    "ratings of the cells that a coin kept out of the fit and that the initial model was not "
    "fitted on, sampled like "
    "those, not all cells of the matrix"
)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """One upper limit on the error rate, or one lower limit on the precision."""

    name: str  # "holdout", "selective", "precision", "seeger", "catoni" or "theorem1"
    bound: float  # the limit
    bounds: str  # the predictor whose errors are limited, in words
    over: str  # the distribution of ratings that it is about, in words
    delta: float  # δ; the limit holds with probability 1 − δ
    n: int  # ratings that it was computed from
    majority_error: float  # error rate of always predicting the majority class
    statement: str  # the certificate as a sentence
    inputs: Record = field(default_factory=dict)  # what the bound was computed from, by name

    @property
    def vacuous(self) -> bool:
        """Whether a coin or the majority class is as good as the bound (docs/MATH.md, §9.7); or
        calling every pair.
        """
        if self.name == PRECISION:
            return not self.bound > self.inputs["class_share"]
        return not self.bound < min(0.5, self.majority_error)

    def as_dict(self) -> Fields:
        own = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name != "inputs"
        }
        return {**own, "vacuous": self.vacuous, **self.inputs}

    @classmethod
    def from_dict(cls, entry: Record) -> Certificate:
        own = {item.name for item in fields(cls)} - {"inputs"}
        inputs = {
            name: value for name, value in entry.items() if name not in own and name != "vacuous"
        }
        return cls(**{name: entry[name] for name in own}, inputs=inputs)


def certificate_document(certificates: Iterable[Record]) -> Fields:
    """The content of ``certificate.json``.

    The headline is chosen by name: choosing the smallest bound would cost δ.

    It is never about a group.
    """
    items = [dict(item) for item in certificates]
    names = {item["name"] for item in items if not item.get("group")}
    return {
        "headline": next((name for name in HEADLINES if name in names), None),
        "certificates": items,
    }


def headlines(content: Record) -> list[Record]:
    """The certificates of the headline, from the content of ``certificate.json``.

    Where one class is rare, an error rate says little: certified precisions are then part of the
    headline.
    """
    whole = [item for item in content["certificates"] if not item.get("group")]
    first = [item for item in whole if item["name"] == content["headline"]][:1]
    skewed = first and first[0].get("majority_error", 1.0) < SKEWED
    return [*first, *(item for item in whole if skewed and item["name"] == PRECISION)]


def headline_of(content: Record) -> str | None:
    return " ".join(item["statement"] for item in headlines(content)) or None


def theorem1_certificate(
    last: Iteration,
    n: int,
    lam: float,
    terms: Terms,
    majority_error: float,
    cost: float = 0.0,
    weights: int = 1,
) -> Certificate:
    """The paper's Theorem 1, for the hinge loss and ratings without weights: else the objective is
    not λ·AVB (§16).

    ``cost`` is what the default α adds to the divergence (``prior_cost``). The theorem holds for
    one λ = κn, so it pays for all κ that might have been chosen; ``weights`` counts them.
    """
    kl = max(last.divergence, 0.0)  # rounding gives < 0
    bound = bounds.theorem1(
        (last.objective + cost) / lam, n, lam, terms.delta / terms.grid / weights
    )
    inputs = {
        "avb": last.objective / lam,
        "lambda": lam,
        "kl": kl,
        "prior_cost": cost,
        "grid": terms.grid * weights,
    }
    return _stated(
        None,
        name="theorem1",
        bound=bound,
        bounds=GIBBS,
        over=SAMPLED,
        delta=terms.delta,
        n=n,
        majority_error=majority_error,
        inputs=inputs,
    )


def gibbs_certificates(
    last: Iteration,
    counted: GibbsErrors,
    draws: Draws,
    terms: Terms,
    majority_error: float,
    cost: float = 0.0,
) -> list[Certificate]:
    """Catoni's and Seeger's, under a prior that does not depend on the labels; ``cost`` is
    ``prior_cost``.
    """
    n = counted.ratings
    kl = max(last.divergence, 0.0)
    gibbs, inputs = _gibbs(counted, draws, terms)
    own = {**inputs, "kl": kl, "prior_cost": cost}
    common = {
        "bounds": GIBBS,
        "over": SAMPLED,
        "delta": terms.delta,
        "n": n,
        "majority_error": majority_error,
    }
    left = (1 - DRAWS_SHARE) * (terms.delta / terms.grid)
    bound, best = bounds.catoni_over_grid(gibbs, kl + cost, n, left)
    grid = {"lambda": best, "lambda_grid": len(bounds.CATONI_GRID)}
    catoni = _stated(None, name="catoni", bound=bound, inputs={**own, **grid}, **common)
    bound = bounds.seeger(gibbs, kl + cost, n, left)
    return [catoni, _stated(inputs["gibbs_risk"], name="seeger", bound=bound, inputs=own, **common)]


def holdout_certificate(
    errors: int, n: int, terms: Terms, majority_error: float, over: str = UNSEEN
) -> Certificate:
    return _stated(
        errors / n,
        name="holdout",
        bound=bounds.holdout(errors, n, terms.delta / terms.grid),
        bounds=MEAN,
        over=over,
        delta=terms.delta,
        n=n,
        majority_error=majority_error,
        inputs={"errors": errors, "grid": terms.grid},
    )


def kept_by_coin(item: Certificate, repeated: bool, left_out: int = 0) -> Certificate:
    """The certificate for ratings that were held out by a coin per cell; ``repeated``: some share a
    cell (§9.2).

    ``left_out`` others do not count, because the initial model of the fit was fitted on their
    cells.
    """
    note = ""
    if left_out:
        note += (
            f" Of the ratings that the coin kept out, {left_out:,} did not count, because the "
            "initial model was fitted "
            "on their cells."
        )
    if repeated:
        note += (
            " Cells are rated repeatedly here: this is about the cells that were kept out, "
            "not about new ones."
        )
    return replace(
        item, over=NEW_CELLS if left_out else KEPT_CELLS, statement=item.statement + note
    )


def with_freshness(item: Certificate, freshness: Record) -> Certificate:
    """The certificate with how its ratings compare with those of the fit (§9.6).

    ``freshness`` has ``checked``, and a ``reason`` where this could not be seen. Then the sentence
    says so.
    """
    note = ""
    if not freshness["checked"]:
        note = (
            " Whether the model has seen these ratings could not be checked: "
            f"{freshness['reason']}."
        )
        note += " This holds only if it has not."
    return replace(
        item, statement=item.statement + note, inputs={**item.inputs, "freshness": dict(freshness)}
    )


def _gibbs(counted: GibbsErrors, draws: Draws, terms: Terms) -> tuple[float, Fields]:
    trials = counted.ratings * draws.per_rating
    share = terms.delta / terms.grid
    limit = bounds.gibbs_limit(counted.errors, trials, DRAWS_SHARE * share)
    return limit, {
        "gibbs_risk": counted.errors / trials,
        "gibbs_risk_limit": limit,
        "draws_per_rating": draws.per_rating,
        "delta_split": {
            "bound": (1 - DRAWS_SHARE) * terms.delta,
            "draws": DRAWS_SHARE * terms.delta,
        },
        "grid": terms.grid,
    }


def _stated(seen: float | None, **fields: Any) -> Certificate:
    """A certificate with its sentence.

    ``seen`` is the error rate on its own ratings, if the sentence states it.
    """
    item = Certificate(statement="", **fields)
    who = (
        "the model's predictions"
        if item.bounds == MEAN
        else "random draws from the model (`sample`)"
    )
    places = {
        UNSEEN: "those that were kept out",
        KNOWN: "those that were kept out, of users and items that the model knows",
    }
    where = places.get(item.over, "these")
    limit = f"at most {min(item.bound, 1):.1%} of ratings like {where}"
    text = f"With {100 * (1 - item.delta):.6g}% confidence, {who} are wrong on {limit}"
    if seen is not None:
        text += f"; they were wrong on {seen:.1%} of {item.n:,}"
    majority = f"The majority class is wrong on {item.majority_error:.1%}."
    if item.vacuous:
        majority = (
            "This limit is not informative: a coin is wrong on 50%, the majority class "
            f"on {item.majority_error:.1%}."
        )
    return replace(item, statement=f"{text}. {majority}")


# ---- held-out ratings: a fixed sequence of thresholds ------------------------------------------

# Selective certificates and certified precisions: on which pairs is at most a share r of the calls
# wrong? Of the n_t held-out ratings that level t calls, k_t are wrong (docs/MATH.md, §10.3 and
# §10.6).

SELECTIVE = "selective"
PRECISION = "precision"
# In a certificate: the ratings that the model does not predict, if it leaves any out
UNKNOWN = "unknown_left_out"
ANSWERED = (
    "mean predictor: the sign of the score, where the confidence reaches the threshold "
    "(column `answered`)"
)
CALLED = "the class, where the signed confidence reaches the threshold (column `{}`)"
START = 10.0  # the first level of the test should call so many times the least number that can pass
HINTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
MORE_HINTS = (*HINTS, 0.5, 0.6, 0.7, 0.8, 0.9)  # for a precision
MORE_RATINGS = 1.25 ** np.arange(1, 21)  # so many times the held-out ratings might be enough
# A precision strictly between 0 and 1
PRECISE = re.compile(r"(?:(positive|negative):)?(0?\.\d*[1-9]\d*)")


@dataclass(frozen=True)
class CallRequest:
    call: Call
    value: float

    @property
    def name(self) -> str:
        return SELECTIVE if self.call == "answered" else PRECISION

    @property
    def error(self) -> float:
        """r, the largest share of wrong calls."""
        return self.value if self.call == "answered" else 1.0 - self.value

    def __str__(self) -> str:
        return f"negative:{self.value:g}" if self.call == "negative" else f"{self.value:g}"


@dataclass(frozen=True)
class Group:
    """Ratings that share a value of a column; None is null."""

    column: str
    value: str | None

    def __str__(self) -> str:
        return (
            f"{self.column} is missing" if self.value is None else f"{self.column} is {self.value}"
        )


@dataclass(frozen=True)
class HeldOut:
    answered: NDArray[np.int64]  # n_t, the ratings that each level calls
    wrong: NDArray[np.int64]  # k_t, the wrong ones among them
    majority_error: float  # of always predicting the majority class of the training data
    unknown: int | None = (
        None  # ratings of unknown users or items, if these are not predicted: no level calls them
    )
    unknown_wrong: int = 0  # those of them for which the call would be wrong

    @classmethod
    def counted(
        cls,
        level: NDArray[Any],
        n: Any,
        wrong: Any,
        off_majority: Any,
        levels: int,
        unknown: NDArray[np.bool_] | None = None,
    ) -> HeldOut:
        """Count lines of ``n`` ratings each, by the highest of the ``levels`` that calls them.

        ``unknown`` are the lines that the model does not predict. Default: it predicts all.
        """
        n, wrong, off_majority = (
            np.broadcast_to(each, level.shape) for each in (n, wrong, off_majority)
        )
        known = np.full(level.shape, True) if unknown is None else ~unknown
        by_level = (np.bincount(level[known], each[known], levels) for each in (n, wrong))
        answered, errors = (np.cumsum(each[::-1])[::-1].astype(np.int64) for each in by_level)
        off = float(np.sum(off_majority[known]) / max(answered[0], 1))
        left_out = None if unknown is None else int(np.sum(n[unknown]))
        return cls(answered, errors, off, left_out, int(np.sum(wrong[~known])))

    @property
    def n(self) -> int:
        """The ratings that the model predicts."""
        return int(self.answered[0])

    @property
    def errors(self) -> int:
        return int(self.wrong[0])

    @property
    def of_class(self) -> int:
        """The ratings of the class of the call, among those that the model predicts."""
        return self.n - self.errors

    @property
    def unknown_of_class(self) -> int:
        return (self.unknown or 0) - self.unknown_wrong

    @property
    def asked(self) -> int:
        """All ratings."""
        return self.n + (self.unknown or 0)

    def named(self, item: Certificate) -> Certificate:
        """A certificate of these ratings, which says what became of those that the model does not
        predict.
        """
        if self.unknown is None:
            return item
        count = {
            SELECTIVE: " and count as not answered",
            PRECISION: " and count as not called",
        }.get(item.name, "")
        note = (
            " Pairs with a user or an item that the model does not know are not "
            f"predicted{count}: {self.unknown:,} of "
            f"the {self.asked:,} ratings."
        )
        return replace(
            item, statement=item.statement + note, inputs={**item.inputs, UNKNOWN: self.unknown}
        )

    def times(self, factor: float) -> HeldOut:
        return replace(
            self,
            answered=(factor * self.answered).astype(int),
            wrong=(factor * self.wrong).astype(int),
        )


def fewest_answered(request: float, delta: float) -> int:
    """The smallest number of called ratings that can pass, without any error: (1 − r)^n ≤ δ."""
    return math.ceil(math.log(delta) / math.log1p(-request) - 1e-9)


def precision_requests(given: ArrayLike) -> list[CallRequest]:
    """The precisions in 0.9, in "0.9,negative:0.99" or in a sequence of such; without a class, of
    positives.

    >>> precision_requests([0.9, "negative:0.99"])
    [CallRequest(call='positive', value=0.9), CallRequest(call='negative', value=0.99)]
    """
    found = (PRECISE.fullmatch(text) for text in _texts(given))
    return [
        CallRequest("negative" if one[1] == "negative" else "positive", float(one[2]))
        for one in found
        if one
    ]


def precision_problems(given: ArrayLike) -> list[str]:
    must = "must hold precisions strictly between 0 and 1, such as 0.9 or negative:0.99"
    return [f"{must}, not {text!r}" for text in _texts(given) if not PRECISE.fullmatch(text)]


def _texts(given: ArrayLike) -> list[str]:
    joined = given if isinstance(given, str) else ",".join(map(str, np.atleast_1d(given)))
    return [text.strip() for text in joined.split(",") if text.strip()]


def request_problems(requests: Iterable[Any]) -> list[str]:
    return [
        f"must hold error rates strictly between 0 and 0.5, not {request!r}"
        for request in requests
        if not (is_number(request) and 0 < request < 0.5)
    ]


def first_level(
    shares: Sequence[float], n: int, request: float, delta: float, class_share: float = 1.0
) -> int | None:
    """The level where the test on n ratings begins, from the shares of the fitted ratings.

    None if n is too small.

    It is the highest level that should call min(10·fewest, √(n·class_share·fewest)) ratings. With
    five times ``fewest``, the test fails by chance too often: if R(t) = r/2 there, it passes in 70%
    of the cases, and in 93% with ten times. Of a rare class, only about n·class_share calls can be
    right.
    """
    fewest = fewest_answered(request, delta)
    wanted = max(fewest, min(START * fewest, math.sqrt(n * class_share * fewest)))
    levels = np.flatnonzero(n * np.asarray(shares) >= wanted)
    return int(levels[-1]) if len(levels) else None


def last_passed(
    shares: Sequence[float], held: HeldOut, request: float, delta: float, class_share: float = 1.0
) -> int | None:
    """The last level that passes the fixed-sequence test of the error rate ``request``; None if the
    first one fails.
    """
    start = first_level(shares, held.n, request, delta, class_share)
    if start is None:
        return None
    down = slice(start, None, -1)
    k = held.wrong[down]
    n = held.answered[down]
    # P(at most k of n wrong), if each is wrong with probability r: I_{1−r}(n − k, k + 1)
    passing = np.where(k >= n, 1.0, betainc(np.maximum(n - k, 1), k + 1, 1.0 - request)) <= delta
    failed = np.flatnonzero(~passing)
    steps = int(failed[0]) if len(failed) else len(passing)
    return start - steps + 1 if steps else None


def found_limit(found: int, n: int, delta: float) -> float:
    """A lower limit of the share of a class that is called, at all thresholds at once, for δ ≤ ½
    (MATH.md, §10.6).
    """
    return max(found / n - math.sqrt(-math.log(delta) / (2 * n)), 0.0) if n else 0.0


def call_certificates(
    thresholds: Thresholds,
    held: Mapping[Call, HeldOut],
    terms: Terms,
    requests: Sequence[CallRequest],
    groups: int = 1,
    group: Group | None = None,
) -> list[Certificate]:
    """One certificate per request. Requests, groups and compared settings share δ."""
    requests = list(dict.fromkeys(requests))
    sharing = len(requests) * groups
    return [
        _certificate(thresholds[asked.call], held[asked.call], terms, asked, sharing, group)
        for asked in requests
    ]


def _certificate(
    thresholds: ConfidenceThresholds,
    held: HeldOut,
    terms: Terms,
    asked: CallRequest,
    sharing: int,
    group: Group | None,
) -> Certificate:
    """The certificate of a request, met or not, which shares δ with ``sharing`` − 1 others."""
    test = CallTest(thresholds, held, asked, terms.delta / (terms.grid * sharing))
    met = test.level is not None
    precise = asked.name == PRECISION
    inputs: Fields = {
        **test.inputs(),
        "requests": sharing,
        "group": None if group is None else asdict(group),
        "grid": terms.grid,
    }
    nothing = 0.0 if precise else 1.0  # the limit of a request that is not met
    item = Certificate(
        name=asked.name,
        bound=asked.value if met else nothing,
        bounds=CALLED.format(asked.call) if precise else ANSWERED,
        over=UNSEEN,
        delta=terms.delta,
        n=held.asked,
        majority_error=held.majority_error,
        statement="",
        inputs=inputs,
    )
    fewest = fewest_answered(asked.error, test.tested)
    text = _met(item, held) if met else _unmet(item, held, fewest)
    if group is not None:
        text = f"Where {group}: {text[0].lower()}{text[1:]}"
    return held.named(replace(item, statement=text))


@dataclass(frozen=True)
class CallTest:
    """The fixed-sequence test of a request on held-out ratings."""

    thresholds: ConfidenceThresholds
    held: HeldOut
    asked: CallRequest
    share: float  # of δ

    @property
    def precise(self) -> bool:
        return self.asked.name == PRECISION

    @property
    def tested(self) -> float:
        """The δ of the test. For a precision the other half is for the share that is found."""
        return self.share / 2 if self.precise else self.share

    def passed(self, error: float, held: HeldOut) -> int | None:
        """The last level at which at most this share of the calls is wrong."""
        return last_passed(
            self.thresholds.shares, held, error, self.tested, self.thresholds.class_share
        )

    @cached_property
    def level(self) -> int | None:
        return self.passed(self.asked.error, self.held)

    def inputs(self) -> Fields:
        held = self.held
        level = self.level
        n_answered = 0 if level is None else int(held.answered[level])
        errors = 0 if level is None else int(held.wrong[level])
        inputs = {
            "request": self.asked.value,
            "threshold": None if level is None else self.thresholds.values[level],
            "answered_share": n_answered / held.asked,
            "n_answered": n_answered,
            "errors": errors,
            "delta_share": self.share,
        }
        if self.precise:
            inputs |= self.found(n_answered - errors)
        if level is None:
            inputs |= self.hints()
        return inputs

    def found(self, found: int) -> Fields:
        """How much of the class is called."""
        n_class = self.held.of_class + self.held.unknown_of_class
        return {
            "class": self.asked.call,
            "n_class": n_class,
            "class_share": self.held.of_class / self.held.n,
            "found_share": found / max(n_class, 1),
            "found_limit": found_limit(found, n_class, self.share / 2),
        }

    def hints(self) -> Fields:
        """What might be met. It is chosen on these ratings, so it is not a certificate."""
        if not self.precise:
            return {"hint": self.next_error(HINTS)}
        class_share = self.held.of_class / self.held.n
        error = self.next_error(error for error in MORE_HINTS if error < 1 - class_share)
        n_class = self.held.of_class + self.held.unknown_of_class
        enough = (
            times
            for times in MORE_RATINGS
            if self.passed(self.asked.error, self.held.times(times)) is not None
        )
        return {
            "hint": None if error is None else round(1 - error, 2),
            "more_needed": next((math.ceil((times - 1) * n_class) for times in enough), None),
        }

    def next_error(self, rates: Iterable[float]) -> float | None:
        """The smallest larger error rate that would pass."""
        larger = (error for error in rates if error > self.asked.error + 1e-9)
        return next((error for error in larger if self.passed(error, self.held) is not None), None)


def _met(item: Certificate, held: HeldOut) -> str:
    """The sentence of a request that was met.

    It names the threshold of a group: the model does not apply that.
    """
    inputs = item.inputs
    name = item.inputs.get("class")
    share = f"{inputs['answered_share']:.1%} of {item.n:,}"
    wrong = inputs["errors"] / inputs["n_answered"]
    if inputs["group"] is not None:
        which = f"with a confidence of {inputs['threshold']:.4g} or more"
        seen = f"it had this confidence on {share}"
        which = which if name is None else f"{which} for {name}"
    elif name is None:
        which = "that it answers"
        seen = f"it answered {share}"
    else:
        which = f"that it calls {name}"
        seen = f"it called {share} {name}"
    text = f"With {_percent(1 - item.delta)} confidence, at "
    if name is None:
        text += (
            f"most {_percent(inputs['request'])} of the predictions {which} are wrong, on ratings "
            "like those that were "
            f"kept out; {seen}, and {wrong:.1%} of these were wrong."
        )
        useless = f"the majority class is wrong on {item.majority_error:.1%}"
    else:
        text += (
            f"least {_percent(inputs['request'])} of the pairs {which} are {name}, and these are "
            "at least "
            f"{inputs['found_limit']:.1%} of all {name}s, on ratings like those that were kept "
            f"out; {seen}, "
            f"{1 - wrong:.1%} of these were {name}, and they were {inputs['found_share']:.1%} of "
            f"{inputs['n_class']:,} "
            f"{name}s. Each of the two limits has half of the {_percent(item.delta)}."
        )
        which = "all ratings" if held.unknown is None else "the ratings that it predicts"
        useless = f"{inputs['class_share']:.1%} of {which} are {name}"
    if item.vacuous:
        text += f" This limit is not informative: {useless}."
    if inputs["requests"] > 1:
        several = f"{inputs['requests']} requests{' of groups' if inputs['group'] else ''}"
        text += f" The {_percent(1 - item.delta)} is for all {several} together, met or not."
    return text


def _unmet(item: Certificate, held: HeldOut, fewest: int) -> str:
    """The sentence of a request that was not met.

    At least ``fewest`` ratings must be called without an error.
    """
    inputs = item.inputs
    name = item.inputs.get("class")
    asked = _percent(item.inputs["request"])
    wanted = f"An error of at most {asked}"
    n = held.n
    what = "ratings"
    nothing = "nothing is answered"
    if name is not None:
        wanted = f"A precision of at least {asked} for {name}s"
        n = held.of_class
        what = f"held-out {name}s"
        nothing = f"no pair is called {name}"
    text = f"{wanted} could not be certified"
    if n < fewest:
        text += f": {n:,} {what} are too few, at least {fewest:,} are needed"
    text += "." if inputs["group"] else f"; so {nothing}."
    if inputs["hint"] is not None:
        met = f"A request of {_percent(inputs['hint'])} might be met"
        text += f" {met} (a hint, not a certificate: it was found on the same ratings)."
    if inputs.get("more_needed"):
        text += (
            f" This one might be met with about {inputs['more_needed']:,} more {what} (a "
            "hint, too)."
        )
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


# ---- which pairs a model calls, by its certificate.json ----------------------------------------


class Wording(NamedTuple):
    """How messages name the requests, and what certifies them."""

    max_error: str
    min_precision: str
    how_to_answer: str
    how_to_call: str


IN_PARAMS = Wording(
    "maxError",
    "minPrecision",
    "call certifySelective with fresh ratings",
    "call certify with minPrecision",
)
IN_ARGUMENTS = Wording(
    "max_error",
    "min_precision",
    "give the certificates of certify(…, max_error=0.1) to with_certificates",
    "give the certificates of certify(…, min_precision=0.9) to with_certificates",
)


def ungrouped_certificates(certificate: Record, call: Call = "answered") -> list[Fields]:
    """The certificates of a call that are not about a group, in the order of the requests."""
    name = SELECTIVE if call == "answered" else PRECISION
    found = (
        item for item in certificate["certificates"] if item["name"] == name and not item["group"]
    )
    return [item for item in found if item.get("class", "answered") == call]


def calls_unknown(certificate: Fields, call: Call) -> bool:
    """Whether the certificates of a call are also about pairs with an unknown user or item."""
    return not any(UNKNOWN in item for item in ungrouped_certificates(certificate, call))


def calling_threshold(
    certificate: Record,
    call: Call,
    max_error: float | None = None,
    min_precision: str | None = None,
    words: Wording = IN_PARAMS,
) -> float:
    """The confidence from which on the model makes a call, by its ``certificate.json``.

    ∞ if the request was not met.

    ``max_error`` and ``min_precision`` (such as "0.8,negative:0.99") say which of the requests is
    meant. Default: the first of the call.
    """
    items = ungrouped_certificates(certificate, call)
    own = words.min_precision
    what = "precision"
    how = words.how_to_call
    wanted = [one for one in precision_requests(min_precision or ()) if one.call == call]
    if call == "answered":
        own = words.max_error
        what = "error rate"
        how = words.how_to_answer
        wanted = [] if max_error is None else [CallRequest(call, max_error)]
    if not items:
        raise RequestError(f"no {what} was certified for this model: {how} first")
    refuse(
        [f"{words.min_precision} {problem}" for problem in precision_problems(min_precision or ())]
    )
    for one in wanted[:1]:
        certified = ", ".join(
            dict.fromkeys(str(CallRequest(call, item["request"])) for item in items)
        )
        items = [item for item in items if math.isclose(item["request"], one.value, rel_tol=1e-9)]
        if not items:
            raise RequestError(
                f"{own} {one} was not certified for this model: choose one of {certified}"
            )
    threshold = items[0]["threshold"]
    return math.inf if threshold is None else float(threshold)


# ---- all certificates --------------------------------------------------------------------------

MOST_GROUPS = 1000
COIN = 0.5  # a group must be large enough for a holdout bound below this


@dataclass(frozen=True)
class HeldOutCounts:
    """Counts of held-out ratings per level of every call: of all, and of each group."""

    whole: Mapping[Call, HeldOut]
    groups: Mapping[Group, Mapping[Call, HeldOut]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        thresholds: Thresholds,
        lines: Mapping[str, NDArray[Any]],
        majority: int,
        groups: Iterable[tuple[Group, NDArray[np.bool_]]] = (),
        predicts_unknown: bool = True,
    ) -> HeldOutCounts:
        """Count lines of ``n`` ratings, of which ``n_wrong`` are predicted wrongly, ``n_positive``
        are positive, and the highest level that calls them is ``level_answered``, …; ``groups``
        yields each group with its lines. The model need not predict lines with an ``unknown`` user
        or item.
        """
        n = lines["n"]
        positives = lines["n_positive"]
        unknown = lines["unknown"]
        wrong: dict[Call, Any] = {
            "answered": lines["n_wrong"],
            "positive": n - positives,
            "negative": positives,
        }
        off_majority = wrong["positive" if majority > 0 else "negative"]

        def counted(inside: Any) -> dict[Call, HeldOut]:
            return {
                call: HeldOut.counted(
                    lines[f"level_{call}"][inside],
                    n[inside],
                    wrong[call][inside],
                    off_majority[inside],
                    len(known.values),
                    None if predicts_unknown else unknown[inside],
                )
                for call, known in thresholds.items()
            }

        return cls(counted(slice(None)), {group: counted(inside) for group, inside in groups})


def held_out_certificates(
    thresholds: Thresholds,
    counts: HeldOutCounts,
    terms: Terms,
    requests: Sequence[CallRequest] = (),
) -> list[Certificate]:
    """``holdout``, then ``selective`` and ``precision`` for each request; then all for each group
    (MATH.md, §10.4).

    The groups share δ, separately for the three names. A group that is too small is left out. This
    is decided by its number of ratings, never by its errors.
    """
    whole = counts.whole["answered"]
    if not whole.n:
        raise RequestError(
            "these ratings certify nothing: each is of a user or an item that the model does not "
            "know, and it does not "
            "predict these. Give ratings of users and items that it knows, or let it predict the "
            "others from the prior"
        )
    certificates = [whole.named(_holdout(whole, terms))]
    names: dict[str, list[CallRequest]] = {"holdout": []}
    for asked in dict.fromkeys(requests):
        names.setdefault(asked.name, []).append(asked)
    for several in names.values():
        certificates += call_certificates(thresholds, counts.whole, terms, several)
    for name, several in names.items():
        rate = max((asked.error for asked in several), default=COIN)
        share = terms.delta / terms.grid / max(1, len(several)) / (2 if name == PRECISION else 1)
        in_class = min((thresholds[asked.call].class_share for asked in several), default=1.0)
        sizes = {group: int(in_class * held["answered"].n) for group, held in counts.groups.items()}
        kept = certifiable(sizes, rate, share)
        for group, held in counts.groups.items():
            if group not in kept:
                needed = math.ceil(fewest_answered(rate, share / max(1, len(kept))) / in_class)
                certificates.append(_too_small(name, group, held["answered"], terms, needed))
            elif several:
                certificates += call_certificates(
                    thresholds, held, terms, several, len(kept), group
                )
            else:
                certificates.append(_holdout_within(group, held["answered"], terms, len(kept)))
    return certificates


def certifiable(sizes: Mapping[Group, int], rate: float, delta: float) -> set[Group]:
    """The largest groups, as many as can each be certified at δ divided by their number."""
    ordered = sorted(sizes, key=lambda group: -sizes[group])
    for number in range(len(ordered), 0, -1):
        if sizes[ordered[number - 1]] >= fewest_answered(rate, delta / number):
            return set(ordered[:number])
    return set()


def _holdout(held: HeldOut, terms: Terms) -> Certificate:
    over = UNSEEN if held.unknown is None else KNOWN
    return holdout_certificate(held.errors, held.n, terms, held.majority_error, over)


def _holdout_within(group: Group, held: HeldOut, terms: Terms, groups: int) -> Certificate:
    part = _holdout(held, replace(terms, grid=terms.grid * groups))
    text = f"Where {group}: {part.statement[0].lower()}{part.statement[1:]}"
    share = terms.delta / (terms.grid * groups)
    inputs = {
        "errors": held.errors,
        "group": asdict(group),
        "delta_share": share,
        "grid": terms.grid,
    }
    return held.named(replace(part, statement=text, inputs=inputs))


def _too_small(name: str, group: Group, held: HeldOut, terms: Terms, fewest: int) -> Certificate:
    nothing = {"request": None, "threshold": None, "answered_share": 0.0, "n_answered": 0}
    of_class = {"class": None, "class_share": 0.0, "found_share": 0.0, "found_limit": 0.0}
    more = {SELECTIVE: nothing, PRECISION: {**nothing, **of_class}}.get(name, {})
    item = Certificate(
        name=name,
        bound=0.0 if name == PRECISION else 1.0,
        bounds=MEAN,
        over=UNSEEN,
        delta=terms.delta,
        n=held.n,
        majority_error=held.majority_error,
        statement=f"Where {group}: {held.n:,} held-out ratings are too few to certify, at least "
        f"{fewest:,} are needed.",
        inputs={"group": asdict(group), **more},
    )
    return held.named(item)
