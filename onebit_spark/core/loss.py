"""The contract of a loss: how the posterior of a side's rows is updated, given the other side.

Coordinates. A row has D free coordinates, ``[b_i, L_i1 … L_iK]`` with intercepts or ``[L_i1 …
L_iK]`` without. With intercepts the score b_i + d_j + L_i·R_j is the product of two augmented
vectors of length D + 1::

    the row being updated    [ 1 , b_i, L_i1 … L_iK ]    its first coordinate is 1, with variance 0
    the other side           [ d_j, 1 , R_j1 … R_jK ]

An update of the other side exchanges the roles, so one kernel serves both sides. Without intercepts
nothing is fixed, and the augmented vectors are the plain ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from onebit_spark.core.arrays import DoubleArray, FloatArray, IntArray
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.posterior import Kind, RowMap, RowPosterior
from onebit_spark.kernels.jit import CACHE_LINE
from onebit_spark.registry import name_of

Side = Literal["rows", "cols"]
SIDES: tuple[Side, Side] = ("rows", "cols")
OTHER: dict[Side, Side] = {"rows": "cols", "cols": "rows"}
Symmetry = Literal["linear", "scaling"]


@dataclass(frozen=True)
class RowPrior:
    """x_i ~ N(mean_i, (diag precision_i + coupling)⁻¹): one line for all rows of the side, or one
    line per row.
    """

    # (1, D) or (rows, D): E[μ] for intercepts and 0 for factors, plus ``explained``. After a fit,
    # ``new_ratings.update_prior`` takes the means and inverse variances of known rows from their
    # posterior.
    mean: DoubleArray
    precision: DoubleArray  # (1, D): g = E[1/γ]; or (rows, D)
    # (rows, D): the part of ``mean`` that features explain (docs/MATH.md, §13 and §15)
    explained: DoubleArray | None = None
    implicit_mean: DoubleArray | None = (
        None  # (rows, K): the part of it that implicit features explain
    )
    coupling: DoubleArray | None = (
        None  # (D, D), 0 on its diagonal: couples coordinates after ``before``
    )

    @classmethod
    def at(cls, lines: RowPosterior) -> RowPrior:
        return cls(lines.location.astype(np.float64), lines.std.astype(np.float64) ** -2)

    def take(self, index: IntArray | slice) -> RowPrior:
        mean, precision = (
            lines if len(lines) == 1 else lines[index] for lines in (self.mean, self.precision)
        )
        explained, implicit = (
            None if part is None else part[index] for part in (self.explained, self.implicit_mean)
        )
        return RowPrior(mean, precision, explained, implicit, self.coupling)

    def shifted_by(
        self, explained: DoubleArray, implicit_mean: DoubleArray | None = None
    ) -> RowPrior:
        """The prior with ``explained`` (D columns) and ``implicit_mean`` (K columns) added to the
        means of all rows.
        """
        if implicit_mean is not None:
            explained = explained.copy()
            explained[:, -implicit_mean.shape[1] :] += implicit_mean
        return replace(
            self, mean=self.mean + explained, explained=explained, implicit_mean=implicit_mean
        )

    def before(self, by: RowMap) -> RowPrior:
        """The prior before the pending map x ─► xT + t: mean (p − t)T⁻¹, precision T diag(g) Tᵀ."""
        joint = (by.matrix * self.precision) @ by.matrix.T
        diagonal = np.diag(joint)
        mean = np.asarray(np.linalg.solve(by.matrix.T, (self.mean - by.shift).T).T, np.float64)
        return RowPrior(mean, diagonal[None, :].copy(), coupling=joint - np.diag(diagonal))


@dataclass(frozen=True)
class HalfStep:
    """An update of one side: which parameters move, and under which prior."""

    side: Side  # the side that moves
    iteration: int  # number of the iteration, from 0
    kappa: float  # κ, the weight of one rating
    prior: RowPrior  # prior of the rows of this side
    ratings_per_row: float  # 2n/m, the scale of a gradient step; with weights n is their sum
    move_means: bool = True
    move_covariances: bool = True
    want_data: bool = False  # whether to compute the objective's data term at the new state
    # ω in [1, 2): means move ω times the way to the minimum of their majoriser (docs/MATH.md, §7.3)
    relaxation: float = 1.0
    curvature: bool = (
        False  # the logistic loss only: its own curvature E σ'(u) instead of its bound's (§17)
    )
    # W, (p, D): a row with the side features f has the prior mean Wᵀf (docs/MATH.md, §15)
    feature_coef: DoubleArray | None = None

    def before(self, by: RowMap) -> HalfStep:
        """The same step before the pending map ``by`` of its rows.

        The map of the other side is pending as well.
        """
        learnt = self.feature_coef
        learnt = (
            None
            if learnt is None
            else np.asarray(np.linalg.solve(by.matrix.T, learnt.T).T, np.float64)
        )
        return replace(self, prior=self.prior.before(by), feature_coef=learnt)


class Move(NamedTuple):
    """An update within an iteration: its side, and which parameters move."""

    side: Side
    means: bool
    covariances: bool


class RowSums(NamedTuple):
    """The sums of a row kernel over rows with ratings."""

    log_volume: float = 0.0  # Σ_i Σ_k log s_ik, or ½ Σ_i log det V_i
    data: float = 0.0  # the objective's data term, 0 without ``want_data``

    @classmethod
    def total(cls, parts: Iterable[RowSums]) -> RowSums:
        return cls(*(sum(part) for part in zip(*parts, strict=True)))


OtherLines = FloatArray  # one line for each row of the other side: all that a rating reads


class Loss(ABC):
    """A convex surrogate of the 0-1 loss with its row update. It has no state but its options."""

    name: ClassVar[str]  # that of its module, in flags and in Params
    default_kappa: ClassVar[float]  # κ where none is given or chosen
    chooses_kappa: ClassVar[bool] = (
        False  # whether κ is chosen on a part of the ratings where none is given
    )
    start_std: ClassVar[float]  # standard deviation of every coordinate at the start
    start_shrinkage: ClassVar[float]  # the spectral start's factor in a model with intercepts
    has_curvature: ClassVar[bool] = False  # whether ``HalfStep.curvature`` is possible
    # c: ``probability`` is an increasing function of score/√(c + variance)
    score_noise: ClassVar[float]

    def __init_subclass__(cls) -> None:
        cls.name = name_of(cls.__module__)

    @classmethod
    def from_options(cls, solver: str, covariance: str) -> Loss:
        """The loss with the options that concern it."""
        return cls()

    @staticmethod
    @abstractmethod
    def probability(scores: FloatArray, variances: FloatArray) -> DoubleArray:
        """P(+) from the posterior mean and variance of the score."""

    @staticmethod
    @abstractmethod
    def held_out(scores: FloatArray, variances: FloatArray, signs: FloatArray) -> DoubleArray:
        """The loss of ratings that were not fitted, for labels ±1."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Whether a row has a covariance or standard deviations."""

    @property
    def symmetry(self) -> Symmetry | None:
        """The maps L ─► LA, R ─► RA⁻ᵀ that leave the data term unchanged: any A, or diagonal ones.

        None if the fit must not use them (``gauge``).
        """
        return "linear" if self.kind == "covariance" else "scaling"

    def plan(self) -> list[Move]:
        return [
            Move("rows", means=True, covariances=True),
            Move("cols", means=True, covariances=True),
        ]

    @abstractmethod
    def other_lines(self, posterior: RowPosterior) -> OtherLines:
        """The table of the other side that the kernel reads, in its augmented layout."""

    @abstractmethod
    def update_rows(
        self,
        block: RatingBlock,
        lo: int,
        hi: int,
        others: OtherLines,
        rows: RowPosterior,
        step: HalfStep,
    ) -> RowSums:
        """Update rows lo … hi−1 of ``rows`` in place from the ratings of ``block`` (same
        numbering).

        Rows without ratings do not change. ``step.prior`` is the prior of all rows of the block.
        """


def kernel_arguments(
    block: RatingBlock, rows: RowPosterior, step: HalfStep
) -> tuple[Any, Any, Any]:
    """Ratings, rows and prior as every row kernel takes them: pointers, codes and weights;
    location, scale and the number of fixed coordinates, 1 with intercepts; mean, precision and
    coupling. Arrays of one layout, so that a kernel is compiled once.
    """
    prior = step.prior
    size = rows.dimension
    coupling = np.zeros((size, size)) if prior.coupling is None else prior.coupling
    return (
        (block.row_pointers, block.codes, block.weights),
        (rows.location, rows.scale, int(rows.has_intercept)),
        (np.ascontiguousarray(prior.mean), np.ascontiguousarray(prior.precision), coupling),
    )


def other_location(posterior: RowPosterior) -> FloatArray:
    """[d_j, 1, R_j] with intercepts, R_j without (m × augmented)."""
    return (
        np.insert(posterior.location, 1, 1, axis=1)
        if posterior.has_intercept
        else posterior.location
    )


def other_std(posterior: RowPosterior) -> FloatArray:
    """The standard deviations in the same layout: [s_dj, 0, s_j]."""
    return np.insert(posterior.std, 1, 0, axis=1) if posterior.has_intercept else posterior.std


def aligned_table(rows: int, columns: int, dtype: np.dtype[np.floating]) -> FloatArray:
    """An empty table that begins at a cache line, so that rows of whole cache lines touch no
    others.
    """
    size = rows * columns * dtype.itemsize
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(rows, columns)


def side_by_side(left: FloatArray, right: FloatArray) -> FloatArray:
    """Two tables of the same shape in one, so that a rating reads a single line."""
    out = aligned_table(len(left), 2 * left.shape[1], left.dtype)
    return np.concatenate([left, right], axis=1, out=out)
