"""Scores, draws and confidences of cells, against Monte Carlo and the plain formulas."""

import numpy as np
import pytest
from scipy import stats
from support.fitting import random_posterior
from support.variants import make_posterior

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.confidences import (
    EVERYTHING,
    HISTOGRAM_BINS,
    LEVEL_STEP,
    LOWEST_OCTAVE,
    PER_OCTAVE,
    TOWARDS,
    ConfidenceThresholds,
    bin_of,
    count_confidences,
    thresholds_of,
)
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.posterior import Form, RowPosterior
from onebit_spark.core.randomness import STEP, Draws, Split, count_errors, stream, uniform
from onebit_spark.core.scores import (
    LARGEST,
    compute_confidences,
    compute_probabilities,
    compute_scores,
    compute_variances,
)


def pairs(kind, intercepts, n=6, seed=0):
    rng = np.random.default_rng(seed)
    return [make_posterior(rng, n, kind, intercepts, np.float64) for _ in range(2)]


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("kind", ["spread", "covariance"])
def test_moments_against_monte_carlo(kind, intercepts):
    """200,000 draws of each pair: standard error of the mean std/450, of the variance about 1% of
    it.
    """
    rows, cols = pairs(kind, intercepts)
    rng = np.random.default_rng(1)
    draws = 200_000
    mean = compute_scores(rows, cols)
    variance = compute_variances(rows, cols)
    for i in range(rows.n_rows):
        x, z = (
            rng.multivariate_normal(s.location[i], s.covariance[i], draws) for s in (rows, cols)
        )
        u = (
            x[:, 0] + z[:, 0] + np.sum(x[:, 1:] * z[:, 1:], axis=1)
            if intercepts
            else np.sum(x * z, axis=1)
        )
        assert mean[i] == pytest.approx(u.mean(), abs=5 * u.std() / np.sqrt(draws))
        assert variance[i] == pytest.approx(u.var(), rel=0.04)


def test_logistic_probability_against_quadrature():
    """∫ σ(u) N(u; m, v) du: MacKay's σ(m/√(1 + πv/8)) is within .02 of it, and right about its
    side.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for mean in (-3.0, -0.4, 0.0, 1.0, 4.0):
        for variance in (0.0, 0.5, 4.0):
            exact = (
                weights @ (1 / (1 + np.exp(-(mean + np.sqrt(variance) * nodes)))) / weights.sum()
            )
            found = float(compute_probabilities("logistic", np.array(mean), np.array(variance)))
            assert found == pytest.approx(exact, abs=0.02)
            assert found == pytest.approx(
                1 / (1 + np.exp(-mean / np.sqrt(1 + np.pi * variance / 8))), rel=1e-14
            )


def test_hinge_probability_is_that_of_a_positive_sign():
    scores = np.array([-1.0, 0.0, 0.3, 2.0])
    variances = np.array([0.25, 1.0, 4.0, 0.01])
    expected = stats.norm.sf(0, loc=scores, scale=np.sqrt(variances))
    np.testing.assert_allclose(
        compute_probabilities("hinge", scores, variances), expected, rtol=1e-12
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities_are_probabilities(loss):
    """Also without spread, where the hinge's tends to a step, and far out, where nothing may
    overflow.
    """
    scores = np.array([-1e6, -1.0, 0.0, 1.0, 1e6])
    for variance in (0.0, 1e-12, 1.0, 1e12):
        found = compute_probabilities(loss, scores, np.full(5, variance))
        assert np.all((found >= 0) & (found <= 1))
        assert np.all(np.diff(found) >= 0)
        assert found[2] == 0.5
        np.testing.assert_allclose(found + found[::-1], 1.0, rtol=1e-12)


M1 = 12
M2 = 9
D = 4


def posterior(rng, n, kind, has_intercept):
    return random_posterior(rng, n, Form(D, kind, has_intercept, "float64"))


def ratings(rng, n=60):
    rows = rng.integers(M1, size=n)
    cols = rng.integers(M2, size=n)
    return rows, cols, rng.random(n) < 0.5


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("has_intercept", [False, True])
def test_the_gibbs_risk_against_plain_monte_carlo(kind, has_intercept):
    """20,000 pairs (L_i, R_j) for each of 60 ratings, drawn by numpy from the full covariances."""
    rng = np.random.default_rng(3)
    rows = posterior(rng, M1, kind, has_intercept)
    cols = posterior(rng, M2, kind, has_intercept)
    i, j, positive = ratings(rng)
    expected = []
    for a, b, up in zip(i, j, positive, strict=True):
        x = rng.multivariate_normal(rows.location[a], rows.covariance[a], 20_000)
        z = rng.multivariate_normal(cols.location[b], cols.covariance[b], 20_000)
        u = (
            x[:, 0] + z[:, 0] + np.sum(x[:, 1:] * z[:, 1:], axis=1)
            if has_intercept
            else np.sum(x * z, axis=1)
        )
        expected.append(np.mean((u > 0) != up))
    block = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    counted = count_errors(block, 0, M1, np.arange(M1), rows, cols, Draws(5, 20_000))
    assert counted / (60 * 20_000) == pytest.approx(
        np.mean(expected), abs=5 * 0.5 / np.sqrt(60 * 20_000)
    )


def test_draws_do_not_depend_on_blocks_or_ranges():
    rng = np.random.default_rng(0)
    rows = posterior(rng, M1, "spread", True)
    cols = posterior(rng, M2, "spread", True)
    i, j, positive = ratings(rng)
    whole = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    draws = Draws(1, 50)
    expected = count_errors(whole, 0, M1, np.arange(M1), rows, cols, draws)
    parts = [
        count_errors(whole, lo, hi, np.arange(M1), rows, cols, draws)
        for lo, hi in ((0, 5), (5, M1))
    ]
    assert sum(parts) == expected
    members = rng.permutation(M1)[:7]  # a block of some rows in another order
    found = 0
    for some in (members, np.setdiff1d(np.arange(M1), members)):
        inside = np.isin(i, some)
        local = np.full(M1, -1)
        local[some] = np.arange(len(some))
        block = RatingBlock.from_coordinates(
            local[i[inside]], j[inside], positive[inside], (len(some), M2)
        )
        found += count_errors(
            block, 0, len(some), some.astype(np.int64), rows.take(some), cols, draws
        )
    assert found == expected
    assert count_errors(whole, 0, M1, np.arange(M1), rows, cols, Draws(2, 50)) != expected


def test_the_split_is_a_fair_coin_that_no_label_moves():
    rng = np.random.default_rng(1)
    n = 20_000
    split = Split(11, 0.3)
    i = rng.integers(M1, size=n)
    j = rng.integers(40_000, size=n)
    blocks = [
        RatingBlock.from_coordinates(i, j, labels, (M1, 40_000))
        for labels in (rng.random(n) < 0.5, np.zeros(n) > 0)
    ]
    chosen = [split.part_of(block, np.arange(M1), np.arange(40_000)) for block in blocks]
    np.testing.assert_array_equal(chosen[0].row_pointers, chosen[1].row_pointers)
    assert chosen[0].n_ratings / n == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / n))
    others = split.part_of(blocks[0], np.arange(M1), np.arange(40_000), those=False)
    assert chosen[0].n_ratings + others.n_ratings == n
    with pytest.raises(ValueError, match="fraction"):
        Split(0, 1.0)


def first(row, position):
    """A stream's first state; compiled functions hand 64-bit integers back as Python's own."""
    return np.uint64(stream(7, row, position))


def fill_normals(state, out):
    """Overwrite ``out`` with the standard normals of one stream (Box and Muller, 1958); return the
    state after them.
    """
    with np.errstate(over="ignore"):
        for k in range(0, len(out), 2):
            radius = np.sqrt(-2 * np.log(uniform(state)))
            angle = 2 * np.pi * uniform(state + STEP)
            state = state + STEP + STEP
            out[k : k + 2] = [radius * np.cos(angle), radius * np.sin(angle)][: len(out) - k]
    return state


def test_streams_are_uniform_normal_and_unrelated():
    firsts = np.array(
        [[uniform(first(row, position)) for position in range(200)] for row in range(200)]
    )
    n = firsts.size
    assert firsts.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / n))
    assert firsts.var() == pytest.approx(1 / 12, rel=0.05)
    for a, b in ((firsts[1:], firsts[:-1]), (firsts[:, 1:], firsts[:, :-1]), (firsts, firsts.T)):
        keep = a != b
        assert abs(np.corrcoef(a[keep], b[keep])[0, 1]) < 5 / np.sqrt(n)
    normals = np.empty(100_001)
    fill_normals(first(0, 0), normals)
    assert normals.mean() == pytest.approx(0, abs=5 / np.sqrt(normals.size))
    assert normals.var() == pytest.approx(1, abs=5 * np.sqrt(2 / normals.size))
    assert np.mean(np.abs(normals) < 1.959964) == pytest.approx(
        0.95, abs=5 * np.sqrt(0.05 * 0.95 / normals.size)
    )
    assert abs(np.corrcoef(normals[1:], normals[:-1])[0, 1]) < 5 / np.sqrt(normals.size)


def histogram(z):
    """Of signed confidences, in ascending bins."""
    inside = np.floor((np.log2(np.maximum(np.abs(z), 1e-300)) - LOWEST_OCTAVE) * PER_OCTAVE)
    inside = np.clip(inside, 0, HISTOGRAM_BINS - 1).astype(int)
    place = np.where(z < 0, HISTOGRAM_BINS - 1 - inside, HISTOGRAM_BINS + inside)
    return np.bincount(place, minlength=2 * HISTOGRAM_BINS)


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("has_intercept", [False, True])
@pytest.mark.parametrize("noise", [0.0, 8 / np.pi])
def test_the_kernel_against_prediction(kind, has_intercept, noise):
    rng = np.random.default_rng(4)
    rows = posterior(rng, M1, kind, has_intercept)
    cols = posterior(rng, M2, kind, has_intercept)
    i, j, positive = ratings(rng, 500)
    block = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    pairs = rows.take(i), cols.take(j)
    z = compute_scores(*pairs) / np.sqrt(noise + compute_variances(*pairs))
    np.testing.assert_array_equal(
        count_confidences(block, 0, M1, np.arange(M1), rows, cols, noise), histogram(z)
    )
    np.testing.assert_allclose(
        compute_confidences(compute_scores(*pairs), np.sqrt(compute_variances(*pairs)), noise),
        z,
        rtol=1e-12,
    )


@pytest.mark.parametrize("stride", [1, 3, 50])
def test_the_counts_do_not_depend_on_blocks_or_ranges(stride):
    rng = np.random.default_rng(0)
    rows = posterior(rng, M1, "covariance", True)
    cols = posterior(rng, M2, "covariance", True)
    i, j, positive = ratings(rng)
    whole = RatingBlock.from_coordinates(i, j, positive, (M1, M2))
    numbers = np.arange(M1)
    expected = count_confidences(whole, 0, M1, numbers, rows, cols, 1.0, stride)
    assert abs(expected.sum() - len(i) / stride) <= (0 if stride == 1 else M1)
    parts = [
        count_confidences(whole, lo, hi, numbers, rows, cols, 1.0, stride)
        for lo, hi in ((0, 5), (5, M1))
    ]
    np.testing.assert_array_equal(sum(parts), expected)
    some = rng.permutation(M1)
    local = np.argsort(some)
    block = RatingBlock.from_coordinates(local[i], j, positive, (M1, M2))
    found = count_confidences(block, 0, M1, some, rows.take(some), cols, 1.0, stride)
    np.testing.assert_array_equal(found, expected)


def test_every_third_rating_of_a_row():
    """Row i begins at the position −i modulo 3."""
    rng = np.random.default_rng(5)
    rows = posterior(rng, 4, "spread", True)
    cols = posterior(rng, M2, "spread", True)
    i = np.repeat(np.arange(4), 8)
    j = np.tile(np.arange(8), 4)
    block = RatingBlock.from_coordinates(i, j, np.ones(32, bool), (4, M2))
    here = (i + j) % 3 == 0
    pairs = rows.take(i[here]), cols.take(j[here])
    z = compute_scores(*pairs) / np.sqrt(1.0 + compute_variances(*pairs))
    np.testing.assert_array_equal(
        count_confidences(block, 0, 4, np.arange(4), rows, cols, 1.0, 3), histogram(z)
    )


def test_without_spread_or_noise_a_score_is_certain_unless_it_is_zero():
    exact = [
        RowPosterior(np.array(x)[:, None], np.zeros((2, 1)), "spread", False)
        for x in ([1.0, 0.0], [3.0, -2.0])
    ]
    block = RatingBlock.from_coordinates(
        np.array([0, 0, 1]), np.array([0, 1, 0]), np.ones(3, bool), (2, 2)
    )
    counts = count_confidences(block, 0, 2, np.arange(2), *exact, 0.0)
    assert (counts[0], counts[HISTOGRAM_BINS], counts[-1]) == (1, 1, 1)
    assert compute_confidences(np.array([3.0, 0.0, -3.0]), np.zeros(3), 0.0).tolist() == [
        LARGEST,
        0.0,
        -LARGEST,
    ]


def test_bins_are_where_they_say():
    z = np.array([0.0, 2.0**LOWEST_OCTAVE, 1.0, 1e300, np.inf])
    assert bin_of(z).tolist() == [
        0,
        0,
        -LOWEST_OCTAVE * PER_OCTAVE,
        HISTOGRAM_BINS - 1,
        HISTOGRAM_BINS - 1,
    ]


@pytest.mark.parametrize("call", TOWARDS)
def test_each_level_calls_two_percent_more(call):
    rng = np.random.default_rng(2)
    z = rng.gamma(1.5, size=200_000) * np.where(rng.random(200_000) < 0.02, 1.0, -1.5)
    thresholds = thresholds_of(histogram(z))[call]
    z = TOWARDS[call](z)
    answered = np.array([np.mean(z >= t) for t in thresholds.values])
    np.testing.assert_allclose(answered, thresholds.shares, atol=2e-5)
    assert thresholds.shares[0] == 1
    few = np.searchsorted(-answered, -0.001)  # above, single ratings count
    assert np.all(answered[:few] / answered[1 : few + 1] < LEVEL_STEP * 1.02)
    assert thresholds.shares[-1] < 2e-4
    levels = thresholds.level(z[:1000])
    for j in (0, 5, 100):
        np.testing.assert_array_equal(levels >= j, z[:1000] >= thresholds.values[j])
    assert ConfidenceThresholds.from_dict(thresholds.as_dict()) == thresholds
    assert np.all(
        thresholds.level(np.array([-LARGEST, -1.0, 0.0]) if call != "answered" else np.zeros(1))
        >= 0
    )


def test_ties_and_few_ratings_make_a_short_ladder():
    counts = np.zeros(2 * HISTOGRAM_BINS, np.int64)
    counts[[HISTOGRAM_BINS - 1 - 100, HISTOGRAM_BINS + 900]] = 70, 30
    found = thresholds_of(counts)
    assert [found[call].shares for call in TOWARDS] == [
        (1.0, 1.0, 0.3),
        (1.0, 1.0, 0.3),
        (1.0, 1.0, 0.7),
    ]
    assert EVERYTHING.level(np.array([0.0, 5.0])).tolist() == [0, 0]
    for shares, thresholds in (
        ((0.9,), (0.0,)),
        ((1.0,), (0.1,)),
        ((1.0, 0.5), (0.0, 0.0)),
        ((1.0,), (0.0, 1.0)),
    ):
        with pytest.raises(ValueError, match="confidence threshold"):
            ConfidenceThresholds(shares, thresholds)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_fit_keeps_the_ladder_of_its_own_ratings(loss):
    rng = np.random.default_rng(1)
    i = rng.integers(30, size=900)
    j = rng.integers(20, size=900)
    labels = np.where(
        rng.normal(size=30)[i] * rng.normal(size=20)[j] + rng.normal(size=900) > 0, 1, -1
    )
    fit = fit_arrays(i, j, labels, FitConfig(loss=loss, rank=2, max_iter=5, tol=0), shape=(33, 21))
    z = fit.confidence(i, j)
    signed = z * np.sign(fit.score(i, j))
    thresholds = fit.info.thresholds
    answered = thresholds["answered"]
    assert len(answered.shares) > 50
    np.testing.assert_allclose(
        [np.mean(z >= t) for t in answered.values], answered.shares, atol=2 / 900
    )
    assert thresholds["positive"].class_share == pytest.approx(np.mean(labels > 0))
    for call, sign in (("positive", 1), ("negative", -1)):
        called = [np.mean(sign * signed >= t) for t in thresholds[call].values]
        np.testing.assert_allclose(called, thresholds[call].shares, atol=2 / 900)
