"""The certificates: every bound that applies, with its inputs and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from onebit_spark.certificate import bounds
from onebit_spark.certificate.learnt_prior import NARROWING
from onebit_spark.core.config import Terms
from onebit_spark.core.randomness import Draws, GibbsErrors
from onebit_spark.core.solver import Iteration

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
