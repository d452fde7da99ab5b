"""Every compiled row kernel against its readable twin, and the parts that kernels are made of.

Losses come from the registry, their variants from the options that each declares: a new loss is
tested here by being registered, and fails until it has a twin in ``TWINS``.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support import readable
from support.readable import tau
from support.variants import VARIANTS, half_of, half_step, key, make_posterior, make_prior, name

from onebit_spark.core.batched_solve import (
    LANES,
    cholesky,
    cholesky_solve,
    half_log_det_inverse,
    sweep_all,
    sweep_arrays,
)
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES, RowPrior
from onebit_spark.core.losses.hinge import floors
from onebit_spark.core.losses.logistic import softplus_sum, tau_weights
from onebit_spark.core.posterior import RowPosterior

# 256 is a kernel's chunk; 700 are three, the last one partly filled
ROW_LENGTHS = (
    0,
    1,
    3,
    255,
    256,
    257,
    700,
)
COLUMNS = 40  # so a row of 255 ratings rates every column several times


MOVES = [(loss, move) for loss in VARIANTS for move in loss.plan() if move.side == "rows"]


def hinge_mm(row, mean, scale, step, dtype):
    return readable.hinge_row(
        row, mean, *floors(step.iteration), storage=dtype, relaxation=step.relaxation
    )


def hinge_gradient(row, mean, scale, step, dtype):
    if not step.move_means:
        return readable.hinge_spread_row(row, mean)
    rate = 1.0 / np.sqrt(1.0 + step.iteration) / (step.kappa * step.ratings_per_row)
    return readable.hinge_gradient_row(row, mean, scale, rate)


TWINS = {
    ("hinge", "mm"): hinge_mm,
    ("hinge", "gradient"): hinge_gradient,
    ("logistic", "full"): lambda row, mean, scale, step, dtype: readable.logistic_row(
        row, mean, scale, step.relaxation
    ),
    ("logistic", "diagonal"): lambda row, mean, scale, step, dtype: readable.logistic_row_diagonal(
        row, mean, scale, step.relaxation
    ),
}


def move_name(pair):
    loss, move = pair
    return name(loss) + "-means" * move.means + "-spreads" * move.covariances


def make_block(rng, weighted=False):
    rows = np.repeat(np.arange(len(ROW_LENGTHS)), ROW_LENGTHS)
    cols = rng.integers(COLUMNS - 1, size=len(rows))  # the last column stays empty
    positive = rng.random(len(rows)) < 0.6
    shape = (len(ROW_LENGTHS), COLUMNS)
    weights = rng.uniform(0.01, 3.0, len(rows)).astype(np.float32) if weighted else None
    return RatingBlock.from_coordinates(rows, cols, positive, shape, weights)


def row_problem(block, i, partners, prior, kappa):
    """The i-th row of a block as its readable twin sees it."""
    here = slice(block.row_pointers[i], block.row_pointers[i + 1])
    codes = block.codes[here]
    mean = partners.location.astype(float)
    covariance = partners.covariance.astype(float)
    if partners.has_intercept:
        mean = np.insert(mean, 1, 1.0, axis=1)
        covariance = np.insert(np.insert(covariance, 1, 0.0, axis=1), 1, 0.0, axis=2)
    return readable.RowProblem(
        labels=2.0 * (codes & 1) - 1,
        partner_mean=mean[codes >> 1],
        partner_covariance=covariance[codes >> 1],
        prior_mean=prior.mean[i if len(prior.mean) > 1 else 0],
        precision=prior.precision[i if len(prior.precision) > 1 else 0],
        kappa=kappa,
        rating_weights=None if block.weights is None else block.weights[here],
        coupling=prior.coupling,
    )


@pytest.mark.parametrize(
    ("precision_lines", "mean_lines", "dtype"),
    half_of(["one", "per row"], ["one", "per row"], [np.float64, np.float32]),
)
@pytest.mark.parametrize(("kappa", "relaxation"), [(0.3, 1.0), (1.0, 1.7), (8.0, 1.4)])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_kernel_agrees_with_its_twin(
    move, intercepts, kappa, relaxation, mean_lines, precision_lines, dtype
):
    check_kernel(
        make_block, move, intercepts, kappa, relaxation, mean_lines, precision_lines, dtype
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_weighted_kernel_agrees_with_its_twin(move, intercepts, dtype):
    check_kernel(
        partial(make_block, weighted=True), move, intercepts, 0.7, 1.4, "per row", "one", dtype
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mean_lines", ["one", "per row"])
@pytest.mark.parametrize("intercepts", [False, True])
def test_a_prior_with_correlations(intercepts, mean_lines, dtype):
    """Of rows that wait for a map. Only covariances do."""
    loss = LOSSES["logistic"]()
    check_kernel(
        make_block, (loss, loss.plan()[0]), intercepts, 0.7, 1.4, mean_lines, "matrix", dtype
    )


def check_kernel(make, move, intercepts, kappa, relaxation, mean_lines, precision_lines, dtype):
    loss, move = move
    rng = np.random.default_rng(1)
    by_row = make(rng)
    sides = {"rows": by_row, "cols": by_row.transpose()}
    posteriors = {
        side: make_posterior(rng, b.n_rows, loss.kind, intercepts, dtype)
        for side, b in sides.items()
    }
    # Tables and results are stored in float32: half a unit in the last place is 6e−8 of a value,
    # and a system of condition ~100 (κ = 8, 700 ratings) passes 1e−5 of it on.
    tolerance = 1e-10 if dtype == np.float64 else 3e-5
    for side, block in sides.items():
        other = posteriors["cols" if side == "rows" else "rows"]
        before = posteriors[side]
        after = posteriors[side].copy()
        prior = make_prior(rng, block.n_rows, before.dimension, mean_lines, precision_lines)
        # A plan asks in its last move
        step = half_step(side, kappa, prior, move, move.covariances, relaxation)
        sums = loss.update_rows(block, 0, block.n_rows, loss.other_lines(other), after, step)

        log_volume = data = 0.0
        mean = before.location.astype(float)
        scale = _scale(before)
        for i in np.flatnonzero(block.row_counts):
            problem = row_problem(block, i, other, prior, kappa)
            updated = TWINS[key(loss)](problem, mean[i].copy(), scale[i].copy(), step, dtype)
            mean[i] = updated.mean
            scale[i] = updated.scale
            log_volume += updated.log_volume
            data += updated.data
        np.testing.assert_allclose(after.location, mean, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            _scale(after), scale, rtol=tolerance, atol=tolerance * scale.max()
        )
        assert sums.log_volume == pytest.approx(log_volume, rel=tolerance)
        assert sums.data == (pytest.approx(data, rel=tolerance) if step.want_data else 0.0)
        # The step did something, and left the rows without ratings alone.
        moved = np.any(after.location != before.location, axis=1) | np.any(
            after.scale != before.scale, axis=1
        )
        np.testing.assert_array_equal(moved, block.row_counts > 0)
        assert np.array_equal(after.location, before.location) == (not move.means)
        assert np.array_equal(after.scale, before.scale) == (not move.covariances)


def _scale(posterior):
    """Standard deviations, or covariance matrices, in float64."""
    return (posterior.scale if posterior.kind == "spread" else posterior.covariance).astype(float)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_rows_updated_in_pieces_are_rows_updated_at_once(loss, intercepts, weighted):
    """A row's update reads nothing of the other rows: same bits, and sums that add up."""
    rng = np.random.default_rng(2)
    block = make_block(rng, weighted)
    other = make_posterior(rng, block.n_columns, loss.kind, intercepts, np.float64)
    whole = make_posterior(rng, block.n_rows, loss.kind, intercepts, np.float64)
    pieces = whole.copy()
    prior = make_prior(rng, block.n_rows, whole.dimension, "per row", "per row")
    step = half_step("rows", 1.0, prior, loss.plan()[0])
    partners = loss.other_lines(other)
    sums = loss.update_rows(block, 0, block.n_rows, partners, whole, step)
    parts = []
    for lo, hi in ((3, 7), (0, 1), (1, 1), (1, 3)):
        untouched = np.delete(pieces.location, np.s_[lo:hi], axis=0)
        parts.append(loss.update_rows(block, lo, hi, partners, pieces, step))
        np.testing.assert_array_equal(np.delete(pieces.location, np.s_[lo:hi], axis=0), untouched)
    np.testing.assert_array_equal(pieces.location, whole.location)
    np.testing.assert_array_equal(pieces.scale, whole.scale)
    np.testing.assert_allclose(np.sum(parts, axis=0), sums, rtol=1e-13)


@pytest.mark.parametrize("loss", VARIANTS, ids=name)
def test_the_data_term_is_asked_for(loss):
    """Without it the update is the same and the data term 0."""
    rng = np.random.default_rng(3)
    block = make_block(rng)
    other = make_posterior(rng, block.n_columns, loss.kind, True, np.float64)
    asked = make_posterior(rng, block.n_rows, loss.kind, True, np.float64)
    silent = asked.copy()
    prior = make_prior(rng, block.n_rows, asked.dimension, "one", "one")
    for move in loss.plan():
        if move.side == "rows":
            partners = loss.other_lines(other)
            with_data = loss.update_rows(
                block, 0, block.n_rows, partners, asked, half_step("rows", 1.0, prior, move)
            )
            quiet = half_step("rows", 1.0, prior, move, want_data=False)
            without_data = loss.update_rows(block, 0, block.n_rows, partners, silent, quiet)
            np.testing.assert_array_equal(asked.location, silent.location)
            np.testing.assert_array_equal(asked.scale, silent.scale)
            assert (without_data.data, without_data.log_volume) == (0.0, with_data.log_volume)
            assert with_data.data > 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_the_data_term_is_that_of_the_new_state(move, weighted):
    """``HalfStep.want_data`` promises it in every move, also in one that no plan asks today."""
    loss, move = move
    rng = np.random.default_rng(5)
    block = make_block(rng, weighted)
    other = make_posterior(rng, block.n_columns, loss.kind, True, np.float64)
    state = make_posterior(rng, block.n_rows, loss.kind, True, np.float64)
    prior = make_prior(rng, block.n_rows, state.dimension, "one", "one")
    step = half_step("rows", 1.0, prior, move)
    mean = state.location.copy()
    scale = _scale(state)
    sums = loss.update_rows(block, 0, block.n_rows, loss.other_lines(other), state, step)
    data = sum(
        TWINS[key(loss)](
            row_problem(block, i, other, prior, 1.0), mean[i], scale[i], step, np.float64
        ).data
        for i in np.flatnonzero(block.row_counts)
    )
    assert sums.data == pytest.approx(data, rel=1e-10)


def test_mm_halves_a_step_that_climbs_and_then_keeps_the_mean():
    """Near a kink the floor makes the majoriser loose: short rows meet every end of the line
    search.

    200 rows of three ratings, 12 iterations from 0, each step held against the twin: full, halved
    or no step at all. Tolerance: where a step of 1e−8 changes F by 1e−16, rounding decides whether
    it is taken.
    """
    rng = np.random.default_rng(4)
    rows = np.repeat(np.arange(200), 3)
    cols = rng.integers(30, size=600)
    block = RatingBlock.from_coordinates(rows, cols, rng.random(600) < 0.5, (200, 30))
    loss = LOSSES["hinge"]()
    ends = {"full": 0, "halved": 0, "kept": 0}
    other = RowPosterior.isotropic(rng.normal(size=(30, 2)), 1e-3, "spread", False)
    state = RowPosterior.isotropic(np.zeros((200, 2)), 0.1, "spread", False)
    prior = RowPrior(np.zeros((1, 2)), np.full((1, 2), 0.1))
    for t in range(12):
        step = replace(half_step("rows", 2.0, prior, loss.plan()[0]), iteration=t)
        old = state.location.copy()
        loss.update_rows(block, 0, 200, loss.other_lines(other), state, step)
        for i in range(200):
            problem = row_problem(block, i, other, prior, 2.0)
            new = readable.hinge_row(problem, old[i], *floors(t)).mean
            np.testing.assert_allclose(state.location[i], new, atol=1e-7)
            full = readable.hinge_row(problem, old[i], *floors(t), halvings=0).mean
            ends[
                "full" if np.any(full != old[i]) else "halved" if np.any(new != old[i]) else "kept"
            ] += 1
    assert min(ends.values()) >= 5


def systems(rng, size):
    root = rng.normal(size=(LANES, size, size))
    return root @ root.transpose(0, 2, 1) + 0.1 * np.eye(size)


def solved(matrices, right):
    """Solutions by Cholesky's method and by sweeps, packed inverses and ½ log det of the inverses,
    lane by lane.
    """
    size = matrices.shape[1]
    i, j = np.tril_indices(size)
    c = matrices[:, i, j].T.copy()
    b = right.T.copy()
    cholesky(c, size)
    cholesky_solve(c, b, size)
    system, pivots, scratch = sweep_arrays(size)
    system[: len(i)] = matrices[:, i, j].T
    system[len(i) : -1] = right.T
    sweep_all(system, pivots, scratch, size)
    log_volume = np.array([half_log_det_inverse(pivots, lane) for lane in range(LANES)])
    return b.T, system[len(i) : -1].T, -system[: len(i)].T, log_volume


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 33])
def test_eight_systems_at_once(size):
    rng = np.random.default_rng(size)
    matrices = systems(rng, size)
    right = rng.normal(size=(LANES, size))
    solution, swept, packed, log_volume = solved(matrices, right)
    i, j = np.tril_indices(size)
    expected = np.linalg.inv(matrices)
    for found in (solution, swept):
        np.testing.assert_allclose(
            found, np.einsum("bij,bj->bi", expected, right), rtol=1e-7, atol=1e-9
        )
    np.testing.assert_allclose(packed, expected[:, i, j], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        log_volume, -0.5 * np.linalg.slogdet(matrices)[1], rtol=1e-10, atol=1e-12
    )


def test_a_row_does_not_see_its_neighbours():
    """The same system in every lane, beside others, even beside one that is not positive definite:
    the same bits.
    """
    rng = np.random.default_rng(1)
    matrices = systems(rng, 11)
    right = rng.normal(size=(LANES, 11))
    alone = solved(matrices, right)
    order = np.roll(np.arange(LANES), 3)
    beside = matrices[order]
    beside[0] = -np.eye(11)
    others = solved(beside, right[order])
    for lane in range(1, LANES):
        for new, old in zip(others, alone, strict=True):
            np.testing.assert_array_equal(new[lane], old[order[lane]])


def test_the_bound_of_the_logistic_loss():
    xi = np.concatenate([[0.0], np.logspace(-12, 3, 200)])
    weights = xi**2
    tau_weights(weights, len(weights), 2.0, None, 0)
    np.testing.assert_allclose(weights, 2.0 * tau(xi), rtol=1e-13, atol=0)
    for value in xi:
        expected = np.logaddexp(0.0, -value) + 0.5 * value
        assert softplus_sum(np.array([value**2]), 1, None, 0) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_rating_reads_one_line_that_begins_at_a_cache_line(loss, intercepts, structure):
    chosen = LOSSES[loss].from_options("mm", structure)
    posterior = RowPosterior.isotropic(
        np.ones((7, 10 + intercepts), np.float32), 0.5, chosen.kind, intercepts
    )
    table = chosen.other_lines(posterior)
    assert table.flags.c_contiguous
    assert table.ctypes.data % 64 == 0
