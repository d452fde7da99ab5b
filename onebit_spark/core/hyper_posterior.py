"""The prior of the rows (``HyperPosterior``), and KL(ρ‖π) under it.

It is hierarchical, as in the paper: the scales γ_k have a Gamma or inverse-Gamma prior, and q(γ) is
updated after every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from onebit_spark.core.arrays import DoubleArray, IntArray
from onebit_spark.core.losses import RowPrior, Side
from onebit_spark.core.prior import ScalePosterior, ScalePrior
from onebit_spark.core.statistics import SideMoments
from onebit_spark.records import Fields, Record

INTERCEPT_MEAN_VARIANCE = 1.0  # σ0², the prior variance of μ


Matrices = Mapping[Side, DoubleArray]


@dataclass(frozen=True)
class Moments:
    """The moments that determine q(γ), and moments of what implicit features explain."""

    # (K,): S_k, the second moments of the factors of all m1 + m2 rows and columns (docs/MATH.md,
    # §2.1)
    factor: DoubleArray
    row_intercept: float  # S_b of the m1 rows, S_d of the m2 columns
    col_intercept: float
    rows: int  # m1 and m2, the numbers of rows and columns with ratings
    cols: int
    # (3K, 3K): The Gram matrix of [w z d], the implicit coefficients that the rows have for the
    # columns with their directions, and the columns for the rows (§13); in a model (K, K), of the
    # coefficients alone
    row_coef_gram: DoubleArray | None = None
    col_coef_gram: DoubleArray | None = None
    # (2, K): Mean and variance, over the ratings, of the prior means that implicit features
    # explain, of the rows and of the columns
    row_implicit: DoubleArray | None = None
    col_implicit: DoubleArray | None = None
    ratings: float = 0.0  # the number of rated cells

    def implicit_moments(self, side: Side) -> DoubleArray | None:
        return self.row_implicit if side == "rows" else self.col_implicit

    def typical(self, side: Side) -> float:
        return self.ratings / (self.rows if side == "rows" else self.cols)

    def as_dict(self) -> Fields:
        return {
            n: value.tolist() if isinstance(value, np.ndarray) else value
            for n, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, fields: Record) -> Moments:
        arrays: Fields = {n: np.array(v) if isinstance(v, list) else v for n, v in fields.items()}
        return cls(**arrays)


@dataclass(frozen=True)
class HyperPosterior:
    """The posterior of all that rows share: q(γ), q(μ) = N(m_μ, v_μ) and W. The defaults are those
    before a fit.
    """

    prior: ScalePrior  # π^γ, the prior of the scales of the factors
    intercept_prior: ScalePrior | None  # the prior of γ_b and γ_d; None without intercepts
    factor: DoubleArray  # g_k = E[1/γ_k] of the K factors
    row_intercept: float = 1.0  # E[1/γ_b] and E[1/γ_d] of the intercepts
    col_intercept: float = 1.0
    mean: float = 0.0  # m_μ and v_μ: the mean of the rows' intercepts
    mean_variance: float = INTERCEPT_MEAN_VARIANCE
    moments: Moments | None = None  # what determines q(γ); None before the first γ step
    # W (p × D), the coefficients of the side features (§15)
    features: Matrices = field(default_factory=dict)

    @property
    def intercepts(self) -> bool:
        return self.intercept_prior is not None

    def row_prior(self, side: Side) -> RowPrior:
        """The normal prior of the rows of one side."""
        if not self.intercepts:
            return RowPrior(np.zeros((1, len(self.factor))), self.factor[None, :])
        own = self.row_intercept if side == "rows" else self.col_intercept
        mean = np.zeros((1, len(self.factor) + 1))
        mean[0, 0] = self.mean if side == "rows" else 0.0
        return RowPrior(mean, np.concatenate([[own], self.factor])[None, :])

    def unseen(self, side: Side) -> RowPrior:
        """The prior of a row without ratings, with the mean and the variance of the unknown p_i
        (docs/MATH.md, §13).
        """
        prior = self.row_prior(side)
        explained = None if self.moments is None else self.moments.implicit_moments(side)
        if explained is None:
            return prior
        mean = prior.mean.copy()
        variance = 1.0 / prior.precision
        mean[:, -len(self.factor) :] += explained[0]
        variance[:, -len(self.factor) :] += explained[1]
        return RowPrior(mean, 1.0 / variance)

    def of_factors(self, index: IntArray) -> HyperPosterior:
        """The same for other factors: ``index`` has positions of the present ones, and −1 for a new
        factor.
        """

        def placed(table: DoubleArray, axes: tuple[int, ...], first: int = 0) -> DoubleArray:
            """The entries of the factors along some axes, 0 for new ones; the ``first`` entries
            stay.
            """
            for axis in axes:
                whole = np.concatenate([np.arange(first), np.where(index < 0, -1, index + first)])
                blank = np.zeros_like(table.take([0], axis))
                table = np.concatenate([table, blank], axis).take(whole, axis)
            return table

        moments = self.moments
        if moments is not None:
            axes = {"factor": (0,), "row_implicit": (1,), "col_implicit": (1,)}
            tables: Fields = {name: getattr(moments, name) for name in axes}
            tables = {
                name: None if table is None else placed(table, axes[name])
                for name, table in tables.items()
            }
            for name in ("row_coef_gram", "col_coef_gram"):
                gram = getattr(moments, name)
                if gram is not None:
                    n = len(gram) // len(self.factor)
                    old = len(self.factor)
                    new = len(index)
                    blocks = placed(gram.reshape(n, old, n, old), (1, 3))
                    tables[name] = blocks.reshape(n * new, n * new)
            moments = replace(moments, **tables)
        features = {
            side: placed(coef, (1,), int(self.intercepts)) for side, coef in self.features.items()
        }
        factor = np.where(index < 0, 1.0, placed(self.factor, (0,)))
        return replace(self, factor=factor, moments=moments, features=features)

    def without_directions(self) -> HyperPosterior:
        """The same with the implicit coefficients, but without directions for their next step."""
        rank = len(self.factor)
        moments = self.moments
        if moments is None or moments.row_coef_gram is None or moments.col_coef_gram is None:
            return self
        rows, cols = (gram[:rank, :rank] for gram in (moments.row_coef_gram, moments.col_coef_gram))
        return replace(self, moments=replace(moments, row_coef_gram=rows, col_coef_gram=cols))

    def without_feature_coef(self) -> HyperPosterior:
        """The same without the coefficients of features and their Gram matrices, which belong to
        one fit.
        """
        moments = self.moments
        if moments is not None:
            moments = replace(
                moments,
                row_coef_gram=None,
                col_coef_gram=None,
                row_implicit=None,
                col_implicit=None,
            )
        return replace(self, moments=moments, features={})

    @property
    def coef_grams(self) -> dict[Side, DoubleArray] | None:
        """The Gram matrices of [w z d], the implicit coefficients of each side for the other, if
        known.
        """
        moments = self.moments
        if moments is None or moments.row_coef_gram is None or moments.col_coef_gram is None:
            return None

        def whole(gram: DoubleArray) -> DoubleArray:
            return np.pad(gram, (0, 3 * len(self.factor) - len(gram)))

        return {"rows": whole(moments.row_coef_gram), "cols": whole(moments.col_coef_gram)}

    def with_coef(self, coef_grams: Matrices, mean_grams: Matrices, features: Matrices) -> Self:
        """The same with W, and Gram matrices of the implicit coefficients and of the means that
        they explain.

        A resumed fit needs the first to the last bit. Ids without ratings are predicted from the
        second.
        """
        assert self.moments is not None
        moments = replace(
            self.moments,
            row_coef_gram=coef_grams["rows"] if len(coef_grams["rows"]) else None,
            col_coef_gram=coef_grams["cols"] if len(coef_grams["cols"]) else None,
            row_implicit=mean_and_variance(mean_grams["rows"]),
            col_implicit=mean_and_variance(mean_grams["cols"]),
            ratings=float(mean_grams["rows"][0, 0]),
        )
        return replace(self, moments=moments, features=features)

    def at(self, rows: SideMoments, cols: SideMoments) -> tuple[Self, float]:
        """The γ step (with μ before γ_b), and KL(ρ‖π) right after it, from the moments of both
        sides (§2.2, §6.3).
        """
        prior = self.prior
        second_moment = np.diag(rows.factors) + np.diag(cols.factors)
        factors = prior.posterior(second_moment, rows.count + cols.count)
        moments = Moments(second_moment, 0.0, 0.0, rows.count, cols.count)
        divergence = -rows.log_volume - cols.log_volume - _log_evidence(factors)
        if self.intercept_prior is None:
            return replace(self, factor=factors.inverse_mean, moments=moments), float(divergence)
        variance = 1.0 / (1.0 / INTERCEPT_MEAN_VARIANCE + rows.count * self.row_intercept)
        total = rows.second[0, 1]
        squares = rows.second[1, 1]  # Σ E b, Σ E[b²]
        mean = variance * self.row_intercept * total
        about_mean = squares - 2 * mean * total + rows.count * mean**2
        row_gamma = self.intercept_prior.posterior(about_mean + rows.count * variance, rows.count)
        col_gamma = self.intercept_prior.posterior(cols.second[1, 1], cols.count)
        ratio = variance / INTERCEPT_MEAN_VARIANCE
        divergence += 0.5 * (ratio + mean**2 / INTERCEPT_MEAN_VARIANCE - 1 - np.log(ratio))
        divergence -= _log_evidence(row_gamma) + _log_evidence(col_gamma)
        reached = replace(
            self,
            factor=factors.inverse_mean,
            row_intercept=float(row_gamma.inverse_mean),
            col_intercept=float(col_gamma.inverse_mean),
            mean=float(mean),
            mean_variance=float(variance),
            moments=replace(
                moments,
                row_intercept=float(row_gamma.second_moment),
                col_intercept=float(col_gamma.second_moment),
            ),
        )
        return reached, float(divergence)


def mean_and_variance(gram: DoubleArray) -> DoubleArray:
    """Mean and variance of p_ik, from Σ_i n_i [1, p_i][1, p_i]ᵀ with weights n_i (2 × K)."""
    mean = gram[0, 1:] / gram[0, 0]
    return np.stack([mean, np.maximum(np.diag(gram)[1:] / gram[0, 0] - mean**2, 0.0)])


def _log_evidence(gamma: ScalePosterior) -> float:
    """Σ_k (log Z_k + m_k/2)."""
    return float(np.sum(gamma.log_normaliser + 0.5 * gamma.count))
