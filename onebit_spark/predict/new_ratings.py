"""New ratings of a fitted model, without a refit: fold-in (docs/MATH.md, §8.3) and update (§8.6).

    fold-in    new rows of one side, given the other side
    update     the rows and columns of the new ratings, known and new, in turn

Both repeat the row update until the means stop changing. The scales γ do not change, nor does any
row without a new rating. So the cost depends only on the number of new ratings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.certify.certificates import ungrouped_certificates
from onebit_spark.certify.requests import Document
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.confidences import TOWARDS
from onebit_spark.core.features import newcomer_means
from onebit_spark.core.hyper_posterior import Moments
from onebit_spark.core.loss import OtherLines
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, Loss, RowPrior, Side
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import FloatArray, RowPosterior
from onebit_spark.core.setup import kappa_of, loss_of
from onebit_spark.core.work import MeasureSpreads, PlacedBlock, numbers_of
from onebit_spark.errors import counted
from onebit_spark.model_info import PARTNER, SIDE_OF, IdLines, ModelInfo
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.sides import ModelSide
from onebit_spark.predict.top_n import Numbers
from onebit_spark.settings import Who

log = logging.getLogger("onebit_spark")

# The largest number of rounds. They end when no mean changes by more than this, relative to the
# larger of 1 and itself.
FOLD_IN_ROUNDS = 500
FOLD_IN_CHANGE = 1e-5
UPDATE_ROUNDS = 30
UPDATE_CHANGE = 1e-3


@dataclass(frozen=True)
class FoldIn:
    loss: Loss  # computes the row update
    side: Side  # side of the new rows
    kappa: float  # κ
    prior: RowPrior  # prior of the new rows, one line
    moments: Moments  # of the rows of the fit: what implicit features explain on average
    axes: Axes | None = None  # of positions

    @classmethod
    def of(cls, info: ModelInfo, side: Side) -> FoldIn:
        config = info.config
        loss = loss_of(replace(config, solver="mm"))  # the steps of "gradient" do not converge
        return cls(
            loss,
            side,
            kappa_of(config),
            info.scales.row_prior(side),
            info.moments,
            info.position_axes,
        )

    def fold(
        self,
        ids: pa.Array,
        partners: Numbers,
        lines: RowPosterior,
        positive: NDArray[np.bool_],
        weights: NDArray[np.floating] | None = None,
        explained: IdLines | None = None,
    ) -> tuple[pa.Array, RowPosterior, FloatArray | None]:
        """The different ids of ratings, their rows, and what these ratings leave open.

        ``partners`` are positions in ``lines``; ``explained`` are the means that side features of
        the ids explain.
        """
        encoded = ids.dictionary_encode()
        different = encoded.dictionary
        rated, columns = np.unique(partners, return_inverse=True)
        rows = encoded.indices.to_numpy().astype(np.int64)
        shape = len(different), len(rated)
        block = RatingBlock.from_coordinates(rows, columns, positive, shape, weights)
        means = None if explained is None else explained.at(different)
        posterior = lines.take(rated)
        folded = self.rows(block, posterior, means)
        return different, folded, self.measured(block, folded, posterior)

    def rows(
        self,
        block: RatingBlock,
        partners: RowPosterior,
        explained: NDArray[np.float64] | None = None,
    ) -> RowPosterior:
        """The rows of a block, given the posterior of its columns. Their implicit weights are 0.

        ``explained`` are the means that side features explain (rows × D).
        """
        prior = self.priors(block, partners, explained)
        rows = converged_rows(self.loss, block, partners, self.side, self.kappa, prior)
        return rows if partners.implicit is None else rows.with_implicit()

    def measured(
        self, block: RatingBlock, rows: RowPosterior, partners: RowPosterior
    ) -> FloatArray | None:
        """The numbers of ``MeasureSpreads`` of these rows; None if the model has no axes."""
        if self.axes is None:
            return None
        placed = PlacedBlock(0, np.arange(block.n_rows), np.arange(block.n_columns), block)
        work = MeasureSpreads(self.loss, self.side, self.prior, self.axes)
        return numbers_of(work.on_block(placed, {"rows": rows}, partners)[0])

    def priors(
        self,
        block: RatingBlock,
        partners: RowPosterior,
        explained: NDArray[np.float64] | None = None,
    ) -> RowPrior:
        if explained is None:
            explained = np.zeros((block.n_rows, partners.dimension))
        if partners.implicit is None:
            return self.prior.shifted_by(explained)
        average = self.moments.implicit_moments(self.side)
        assert average is not None, "every fit with implicit features has them"
        implicit = newcomer_means(block, partners, average[0], self.moments.typical(self.side))
        return self.prior.shifted_by(explained, implicit)


def converged_rows(
    loss: Loss,
    block: RatingBlock,
    partners: RowPosterior,
    side: Side,
    kappa: float,
    prior: RowPrior,
) -> RowPosterior:
    """The posterior of every row of ``block``, given the posterior of its columns: the row update
    from the prior.

    Given the other side, the objective of a row has one minimum, so the start hardly matters. The
    hinge loss is an exception: its update keeps a mean that it cannot improve, and at a kink the
    objective may stay a few thousandths above the minimum. ``prior`` has one line, or one mean per
    row.
    """
    start = np.empty((block.n_rows, partners.dimension), partners.location.dtype)
    start[:] = prior.mean
    rows = RowPosterior.isotropic(
        start, 1.0 / np.sqrt(prior.precision[0]), partners.kind, partners.has_intercept
    )
    table = loss.other_lines(partners)
    for number in range(FOLD_IN_ROUNDS):
        step = HalfStep(side, number, kappa, prior, ratings_per_row=1.0)
        if _largest_change(loss, block, table, rows, step) <= FOLD_IN_CHANGE:
            break
    return rows


def _largest_change(
    loss: Loss, block: RatingBlock, partners: OtherLines, rows: RowPosterior, step: HalfStep
) -> float:
    """Update every row in place. Returns the largest change of a mean."""
    before = rows.location.copy()
    loss.update_rows(block, 0, block.n_rows, partners, rows, step)
    change = np.abs(rows.location - before) / np.maximum(1.0, np.abs(before))
    return float(np.max(change, initial=0.0))


def fold_in(
    factors: Factors,
    who: Who,
    ids: pa.Array,
    partners: Numbers,
    positive: NDArray[np.bool_],
    weights: NDArray[np.floating] | None = None,
    explained: IdLines | None = None,
) -> tuple[pa.Array, RowPosterior, FloatArray | None]:
    """The different ids of ratings, the rows that follow, and their numbers of ``MeasureSpreads``.

    ``partners`` are positions of the other side; ratings of an unknown one, −1, are ignored.
    """
    known = partners >= 0
    kept = ids.filter(pa.array(known))
    given = None if weights is None else weights[known]
    lines = factors.side(PARTNER[who]).known
    task = FoldIn.of(factors.info, SIDE_OF[who])
    folded = task.fold(kept, partners[known], lines, positive[known], given, explained)
    warn_left_out(who, len(ids.unique()), len(folded[0]))
    return folded


def unrated_spreads(info: ModelInfo, who: Who, rows: RowPosterior) -> FloatArray | None:
    """The numbers of ``MeasureSpreads`` of ids without ratings."""
    axes = info.position_axes
    return None if axes is None else np.insert(axes.spreads(SIDE_OF[who], rows), 0, 0.0, axis=1)


def warn_left_out(who: Who, given: int, folded: int) -> None:
    """Warn if some of the given users (or items) have only ratings with unknown partners."""
    if folded < given:
        log.warning(
            f"{given - folded:,} of {given:,} {who}s are not folded in: all their ratings are "
            f"with {PARTNER[who]}s "
            "that the model does not know"
        )


def warn_dropped(certificate: Document, who: Who, added: int) -> None:
    """Warn if a model with these certificates loses them, because ids are added that it predicted
    from the prior.
    """
    if not (names := dict.fromkeys(item["name"] for item in certificate["certificates"])):
        return
    calls = [call for call in TOWARDS if ungrouped_certificates(certificate, call)]
    columns = f" and the column{'s' if len(calls) > 1 else ''} {', '.join(calls)}" if calls else ""
    log.warning(
        f"the model predicts {counted(added, f'more {who}')} from features. Its certificates were "
        "about predictions "
        f"without these features, so it drops them ({', '.join(names)}){columns}: certify it on "
        "fresh ratings"
    )


# ---- update ------------------------------------------------------------------------------------


def updated_rows(
    info: ModelInfo,
    sides: Mapping[Who, ModelSide],
    ids: Mapping[Who, pa.Array],
    positive: NDArray[np.bool_],
    weights: NDArray[np.floating] | None = None,
    explained: Mapping[Who, IdLines] | None = None,
) -> dict[Who, tuple[pa.Array, RowPosterior]]:
    """The different users and the different items of new ratings, and their posterior after these
    ratings.

    Rating l is of the user ``ids["user"][l]`` and the item ``ids["item"][l]``. ``explained`` are
    the means that side features of new ids explain.
    """
    encoded = {who: ids[who].cast(side.ids.type).dictionary_encode() for who, side in sides.items()}
    before: dict[Side, Before] = {}
    for who, side in sides.items():
        different = encoded[who].dictionary
        positions = side.positions(different)
        means = explained[who].at(different) if explained is not None and who in explained else None
        before[SIDE_OF[who]] = Before(side.at(positions, implicit=True), positions < 0, means)
    rows, cols = (encoded[who].indices.to_numpy().astype(np.int64) for who in SIDE_OF)
    shape = len(encoded["user"].dictionary), len(encoded["item"].dictionary)
    after = updated_sides(
        info, RatingBlock.from_coordinates(rows, cols, positive, shape, weights), before
    )
    return {who: (each.dictionary, after[SIDE_OF[who]]) for who, each in encoded.items()}


@dataclass(frozen=True)
class Before:
    posterior: RowPosterior  # of a row that the model does not know, only ``implicit`` is used
    new: NDArray[np.bool_]  # which rows the model does not know
    explained: NDArray[np.float64] | None = (
        None  # (rows, D): the means that side features of the new rows explain
    )


def updated_sides(
    info: ModelInfo, block: RatingBlock, before: dict[Side, Before]
) -> dict[Side, RowPosterior]:
    """The posterior of both sides of ``block``, which has the new ratings alone.

    No row and no column is empty.

    The old posterior is the new prior (docs/MATH.md, §8.6). A new row has the prior of a fold-in,
    and its implicit weights are 0. Then the two sides are updated in turn, as in a fit. ``before``
    has the order of the block.
    """
    blocks: dict[Side, RatingBlock] = {"rows": block, "cols": block.transpose()}
    fold_in = {side: FoldIn.of(info, side) for side in SIDES}
    priors = {
        side: update_prior(fold_in[side], blocks[side], before[side], before[OTHER[side]])
        for side in SIDES
    }
    now: dict[Side, RowPosterior] = {}
    for side in SIDES:  # a new row begins at its prior
        now[side], new = before[side].posterior.copy(), before[side].new
        form = now[side].kind, now[side].has_intercept
        mean = priors[side].mean[new].astype(now[side].location.dtype)
        now[side].put(new, RowPosterior.isotropic(mean, priors[side].precision[new] ** -0.5, *form))
    for number in range(UPDATE_ROUNDS):
        largest = 0.0
        for side in SIDES:
            loss = fold_in[side].loss
            step = HalfStep(side, number, fold_in[side].kappa, priors[side], ratings_per_row=1)
            change = _largest_change(
                loss, blocks[side], loss.other_lines(now[OTHER[side]]), now[side], step
            )
            largest = max(largest, change)
        if largest <= UPDATE_CHANGE:
            break
    return now


def update_prior(fold_in: FoldIn, block: RatingBlock, own: Before, partners: Before) -> RowPrior:
    """The prior of every row: the old posterior of a known row, the prior of a fold-in of a new
    one.
    """
    fresh = fold_in.priors(block, partners.posterior, own.explained)
    old = RowPrior.at(own.posterior)
    new = own.new[:, None]
    return RowPrior(
        np.where(new, fresh.mean, old.mean), np.where(new, fresh.precision, old.precision)
    )
