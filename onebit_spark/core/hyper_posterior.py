"""What the rows' normal priors are made of, and how far the posterior has moved from it: KL(ρ‖π).

``HierarchicalPrior`` is the paper's: scales γ_k under a Gamma or inverse-Gamma prior, updated after every iteration.
``FixedPrior`` is a normal prior of each row that was settled before: a learnt one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.losses import PriorLines, RowPrior, Side
from onebit_spark.core.priors import ScalePosterior, ScalePrior
from onebit_spark.core.statistics import SideMoments, SideStatistics

P = TypeVar("P")  # a posterior of a side, in the engine's own form

INTERCEPT_MEAN_VARIANCE = 1.0  # σ0², the prior variance of μ


class Hierarchy(Protocol[P]):
    """The driver's share of the posterior. Unless it says otherwise, nothing in it is learnt from features."""

    def row_prior(self, side: Side) -> RowPrior | PriorLines[P]:
        """The normal prior of the rows of one side."""

    def updated(self, rows: SideStatistics, cols: SideStatistics) -> tuple[Self, float]:
        """The hierarchy after both sides moved, and KL(ρ‖π) with it."""

    @property
    def coef_grams(self) -> dict[Side, NDArray[np.float64]] | None:
        """The Gram matrices of [w z d], both sides' weights for the other side, if they are remembered."""
        return None

    def with_grams(
        self, coef_grams: dict[Side, NDArray[np.float64]], mean_grams: dict[Side, NDArray[np.float64]]
    ) -> Self:
        """The same, with these Gram matrices of the implicit weights, and of the prior means that follow from them.

        A fit that is resumed needs the first to the bit. Ids without ratings are predicted from the second.
        """
        return self

    @property
    def feature_coef(self) -> Mapping[Side, NDArray[np.float64]]:
        """W of the sides that have side features."""
        return {}

    def with_feature_coef(self, feature_coef: Mapping[Side, NDArray[np.float64]]) -> Self:
        """The same, with these weights of the side features."""
        return self


# Field of ``Moments`` ─► its key in metadata.json.
STORED_NAMES = {
    "row_coef_gram": "row_weights", "col_coef_gram": "col_weights", "row_implicit": "row_told",
    "col_implicit": "col_told",
}  # fmt: skip


@dataclass(frozen=True)
class Moments:
    """What q(γ) follows from, and what implicit features say on average."""

    # (K,): S_k, the second moments of the factors of all m1 + m2 rows and columns (docs/MATH.md, §2.1)
    factor: NDArray[np.float64]
    row_intercept: float  # s_b of the m1 rows, S_d of the m2 columns
    col_intercept: float
    rows: int  # m1 and m2: rows and columns with ratings
    cols: int
    # (3K, 3K): The Gram matrix of [w z d], the implicit weights that the rows have for the columns with their
    # directions, and the columns for the rows (§13); in a model (K, K), of the weights alone
    row_coef_gram: NDArray[np.float64] | None = None
    col_coef_gram: NDArray[np.float64] | None = None
    # (2, K): Mean and variance, over the ratings, of the prior means that follow from them for the rows and for the
    # columns
    row_implicit: NDArray[np.float64] | None = None
    col_implicit: NDArray[np.float64] | None = None
    ratings: float = 0.0  # the number of rated cells

    def implicit_moments(self, side: Side) -> NDArray[np.float64] | None:
        """``row_implicit`` or ``col_implicit``."""
        return self.row_implicit if side == "rows" else self.col_implicit

    def typical(self, side: Side) -> float:
        """The mean number of partners that a row has rated."""
        return self.ratings / (self.rows if side == "rows" else self.cols)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        plain = {n: value.tolist() if isinstance(value, np.ndarray) else value for n, value in vars(self).items()}
        return {STORED_NAMES.get(name, name): value for name, value in plain.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Moments:
        """The inverse of ``as_dict``."""
        names = {stored: name for name, stored in STORED_NAMES.items()}
        arrays: dict[str, Any] = {n: np.array(v) if isinstance(v, list) else v for n, v in fields.items()}
        return cls(**{names.get(name, name): value for name, value in arrays.items()})


@dataclass(frozen=True)
class HyperPosterior:
    """The driver's share of the posterior: q(γ), q(μ) = N(m_μ, v_μ) and W.

    Parameters
    ----------
    factor : array of shape (K,)
        g_k = E[1/γ_k] of the factors.
    row_intercept, col_intercept : float
        E[1/γ_b] and E[1/γ_d] of the intercepts.
    mean, mean_variance : float
        m_μ and v_μ: the mean of the rows' intercepts.
    moments : Moments, optional
        What q(γ) follows from. None before the first γ step.
    features : mapping of side to array of shape (p, D)
        W, the weights of the side features (docs/MATH.md, §15).
    """

    factor: NDArray[np.float64]
    row_intercept: float = 1.0
    col_intercept: float = 1.0
    mean: float = 0.0
    mean_variance: float = INTERCEPT_MEAN_VARIANCE
    moments: Moments | None = None
    features: Mapping[Side, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def at_start(cls, rank: int) -> HyperPosterior:
        return cls(np.ones(rank))

    def unseen(self, side: Side, intercepts: bool) -> RowPrior:
        """The prior of an id without ratings.

        Implicit features give each rated row a prior mean p_i. What they would say of this id is not known. So it gets
        the mean of the p_i, and their variance beside γ, both over the ratings (docs/MATH.md, §13).
        """
        prior = self.prior(side, intercepts)
        explained = None if self.moments is None else self.moments.implicit_moments(side)
        if explained is None:
            return prior
        mean, variance = prior.mean.copy(), 1.0 / prior.precision
        mean[:, -len(self.factor) :] += explained[0]
        variance[:, -len(self.factor) :] += explained[1]
        return RowPrior(mean, 1.0 / variance)

    def of_factors(self, index: NDArray[np.integer], intercepts: bool) -> HyperPosterior:
        """The same of other factors: ``index`` are numbers of these ones, −1 is a new factor."""

        def placed(table: NDArray[np.float64], axes: tuple[int, ...], first: int = 0) -> NDArray[np.float64]:
            """The entries of the factors along some axes, 0 for new ones; the ``first`` entries stay."""
            for axis in axes:
                whole = np.concatenate([np.arange(first), np.where(index < 0, -1, index + first)])
                blank = np.zeros_like(table.take([0], axis))
                table = np.concatenate([table, blank], axis).take(whole, axis)
            return table

        moments = self.moments
        if moments is not None:
            axes = {"factor": (0,), "row_implicit": (1,), "col_implicit": (1,)}
            tables: dict[str, Any] = {name: getattr(moments, name) for name in axes}
            tables = {name: None if table is None else placed(table, axes[name]) for name, table in tables.items()}
            for name in ("row_coef_gram", "col_coef_gram"):
                gram = getattr(moments, name)
                if gram is not None:
                    n, old, new = len(gram) // len(self.factor), len(self.factor), len(index)
                    blocks = placed(gram.reshape(n, old, n, old), (1, 3))
                    tables[name] = blocks.reshape(n * new, n * new)
            moments = replace(moments, **tables)
        features = {side: placed(weights, (1,), int(intercepts)) for side, weights in self.features.items()}
        factor = np.where(index < 0, 1.0, placed(self.factor, (0,)))
        return replace(self, factor=factor, moments=moments, features=features)

    def without_directions(self) -> HyperPosterior:
        """The same with the implicit weights, and no direction for them."""
        rank, moments = len(self.factor), self.moments
        if moments is None or moments.row_coef_gram is None or moments.col_coef_gram is None:
            return self
        rows, cols = (gram[:rank, :rank] for gram in (moments.row_coef_gram, moments.col_coef_gram))
        return replace(self, moments=replace(moments, row_coef_gram=rows, col_coef_gram=cols))

    def without_feature_coef(self) -> HyperPosterior:
        """The same without the weights of features, and without their Gram matrices: they belong to one fit."""
        if self.moments is None:
            return replace(self, features={})
        alone = replace(self.moments, row_coef_gram=None, col_coef_gram=None, row_implicit=None, col_implicit=None)
        return replace(self, moments=alone, features={})

    def prior(self, side: Side, intercepts: bool) -> RowPrior:
        """The normal prior of one side's rows under q(γ), q(μ)."""
        if not intercepts:
            return RowPrior(np.zeros((1, len(self.factor))), self.factor[None, :])
        own = self.row_intercept if side == "rows" else self.col_intercept
        mean = np.zeros((1, len(self.factor) + 1))
        mean[0, 0] = self.mean if side == "rows" else 0.0
        return RowPrior(mean, np.concatenate([[own], self.factor])[None, :])


@dataclass(frozen=True)
class HierarchicalPrior(Hierarchy[Any]):
    """The hierarchical prior of the rows: q(γ) and q(μ) under the prior π^γ."""

    scales: HyperPosterior
    prior: ScalePrior
    intercepts: bool

    def row_prior(self, side: Side) -> RowPrior:
        return self.scales.prior(side, self.intercepts)

    def unseen(self, side: Side) -> RowPrior:
        """The prior of the rows without ratings."""
        return self.scales.unseen(side, self.intercepts)

    def updated(self, rows: SideStatistics, cols: SideStatistics) -> tuple[Self, float]:
        return self.at(rows.moments, cols.moments)

    @property
    def coef_grams(self) -> dict[Side, NDArray[np.float64]] | None:
        moments = self.scales.moments
        if moments is None or moments.row_coef_gram is None or moments.col_coef_gram is None:
            return None
        rank = len(self.scales.factor)

        def whole(gram: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.pad(gram, (0, 3 * rank - len(gram)))

        return {"rows": whole(moments.row_coef_gram), "cols": whole(moments.col_coef_gram)}

    def with_grams(
        self, coef_grams: dict[Side, NDArray[np.float64]], mean_grams: dict[Side, NDArray[np.float64]]
    ) -> Self:
        assert self.scales.moments is not None
        moments = replace(
            self.scales.moments,
            row_coef_gram=coef_grams["rows"] if len(coef_grams["rows"]) else None,
            col_coef_gram=coef_grams["cols"] if len(coef_grams["cols"]) else None,
            row_implicit=mean_and_variance(mean_grams["rows"]),
            col_implicit=mean_and_variance(mean_grams["cols"]),
            ratings=float(mean_grams["rows"][0, 0]),
        )
        return replace(self, scales=replace(self.scales, moments=moments))

    @property
    def feature_coef(self) -> Mapping[Side, NDArray[np.float64]]:
        return self.scales.features

    def with_feature_coef(self, feature_coef: Mapping[Side, NDArray[np.float64]]) -> Self:
        return replace(self, scales=replace(self.scales, features=feature_coef))

    def at(self, rows: SideMoments, cols: SideMoments) -> tuple[Self, float]:
        """The hierarchy after the γ step, and KL(ρ‖π) with it, from the moments of both sides."""
        scales, divergence = update_scales(self.scales, rows, cols, self.prior, self.intercepts)
        return replace(self, scales=scales), divergence


@dataclass(frozen=True)
class FixedPrior(Hierarchy[P]):
    """A normal prior of every row, one line per row on each side."""

    rows: PriorLines[P]
    cols: PriorLines[P]

    def row_prior(self, side: Side) -> PriorLines[P]:
        return self.rows if side == "rows" else self.cols

    def updated(self, rows: SideStatistics, cols: SideStatistics) -> tuple[Self, float]:
        """KL(ρ‖π) = ½ Σ_ik [g_ik((E x_ik − p_ik)² + var x_ik) − 1 − log g_ik] − Σ log s, over both sides."""
        divergence = 0.5 * (rows.prior_distance + cols.prior_distance) - rows.log_volume - cols.log_volume
        return self, divergence


def update_scales(
    scales: HyperPosterior, rows: SideMoments, cols: SideMoments, prior: ScalePrior, intercepts: bool
) -> tuple[HyperPosterior, float]:
    """The γ step (and μ before γ_b), and KL(ρ‖π) right after it.

    With every γ at its optimum, KL(ρ‖π) = −Σ log s − Σ_k (log Z_k + m_k/2) + KL(q(μ)‖π(μ)), free of cancellation.
    """
    second_moment = np.diag(rows.factors) + np.diag(cols.factors)
    factors = prior.posterior(second_moment, rows.count + cols.count)
    moments = Moments(second_moment, 0.0, 0.0, rows.count, cols.count)
    divergence = -rows.log_volume - cols.log_volume - _log_evidence(factors)
    if intercepts:
        variance = 1.0 / (1.0 / INTERCEPT_MEAN_VARIANCE + rows.count * scales.row_intercept)
        total, squares = rows.second[0, 1], rows.second[1, 1]  # Σ E b, Σ E[b²]
        mean = variance * scales.row_intercept * total
        about_mean = squares - 2 * mean * total + rows.count * mean**2
        row_gamma = prior.posterior(about_mean + rows.count * variance, rows.count)
        col_gamma = prior.posterior(cols.second[1, 1], cols.count)
        moments = replace(
            moments, row_intercept=float(row_gamma.second_moment), col_intercept=float(col_gamma.second_moment)
        )
        scales = replace(
            scales,
            row_intercept=float(row_gamma.inverse_mean),
            col_intercept=float(col_gamma.inverse_mean),
            mean=float(mean),
            mean_variance=float(variance),
        )
        ratio = variance / INTERCEPT_MEAN_VARIANCE
        divergence += 0.5 * (ratio + mean**2 / INTERCEPT_MEAN_VARIANCE - 1 - np.log(ratio))
        divergence -= _log_evidence(row_gamma) + _log_evidence(col_gamma)
    return replace(scales, factor=factors.inverse_mean, moments=moments), float(divergence)


def mean_and_variance(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean and variance of p_ik, from Σ_i n_i [1, p_i][1, p_i]ᵀ with weights n_i (2 × K)."""
    mean = gram[0, 1:] / gram[0, 0]
    return np.stack([mean, np.maximum(np.diag(gram)[1:] / gram[0, 0] - mean**2, 0.0)])


def _log_evidence(gamma: ScalePosterior) -> float:
    """Σ_k (log Z_k + m_k/2)."""
    return float(np.sum(gamma.log_normaliser + 0.5 * gamma.count))
