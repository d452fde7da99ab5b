"""More factors, and fewer: posteriors, scales and the directions of what is not yet explained, by brute force."""

from itertools import product

import numpy as np
import pytest
from fitting import simulated

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import SIDES
from onebit_spark.core.posterior import Form, factors_in_use
from onebit_spark.core.solver import Start, solve
from onebit_spark.engines.threads import GROWN_MARGIN, ResidualTables, local_engine

SHAPE = (120, 90)
PRIOR = FitConfig().make_prior(sum(SHAPE))


def some_posterior(kind, intercept, implicit, rank=3, rows=7, precision="float64"):
    rng = np.random.default_rng(0)
    form = Form(rank + intercept, kind, intercept, precision, 6 if implicit else 0)
    return form.unpacked(rng.gamma(2.0, 1.0, (rows, form.width)).astype(precision))


FORMS = pytest.mark.parametrize(
    ("kind", "intercept", "implicit"),
    list(product(("spread", "covariance"), (True, False), (True, False))),
)


@FORMS
def test_with_factors(kind, intercept, implicit):
    """V becomes block-diagonal, and all that was said of the old factors stays."""
    old, factors = some_posterior(kind, intercept, implicit), np.random.default_rng(1).normal(size=(7, 2))
    new = old.with_factors(factors, 0.3)
    assert (new.kind, new.has_intercept, new.rank) == (kind, intercept, 5)
    np.testing.assert_array_equal(new.location, np.hstack([old.location, factors]))
    expected = np.zeros((7, old.dimension + 2, old.dimension + 2))
    expected[:, : old.dimension, : old.dimension] = old.covariance
    expected[:, -2:, -2:] = 0.09 * np.eye(2)
    np.testing.assert_allclose(new.covariance, expected, rtol=1e-12)
    if implicit:  # six vectors, each of the K factors
        halves, wider = np.split(old.implicit, 6, axis=1), np.split(new.implicit, 6, axis=1)
        for half, wide in zip(halves, wider, strict=True):
            np.testing.assert_array_equal(wide, np.hstack([half, np.zeros((7, 2))]))
    else:
        assert new.implicit is None


@FORMS
@pytest.mark.parametrize("factors", [[0, 2], [2, 0], [1]])
def test_keeping(kind, intercept, implicit, factors):
    """Rows and columns of V in the order asked for; dropping added factors gives back what was there."""
    old, factors = some_posterior(kind, intercept, implicit), np.array(factors)
    new, kept = old.with_only(factors), np.concatenate([np.arange(int(intercept)), factors + intercept])
    np.testing.assert_array_equal(new.location, old.location[:, kept])
    np.testing.assert_array_equal(new.covariance, old.covariance[:, kept][:, :, kept])
    if implicit:
        for half, wide in zip(np.split(new.implicit, 6, axis=1), np.split(old.implicit, 6, axis=1), strict=True):
            np.testing.assert_array_equal(half, wide[:, factors])
    back = old.with_factors(np.ones((7, 2)), 1.0).with_only(np.arange(3))
    np.testing.assert_array_equal(back.packed(), old.packed())


def test_scales_of_other_factors():
    rng = np.random.default_rng(3)
    told = {side: rng.random((2, 3)) for side in ("row_implicit", "col_implicit")}
    grams = {side: rng.random((9, 9)) for side in ("row_coef_gram", "col_coef_gram")}  # of three vectors each
    moments = Moments(rng.random(3), 0.5, 0.7, 9, 8, **grams, **told, ratings=44.0)
    features = {"rows": rng.random((5, 4))}
    scales = HyperPosterior(PRIOR, True, rng.random(3), 2.0, 3.0, 0.1, 0.2, moments, features)
    new = scales.of_factors(np.array([2, -1, 0]))
    np.testing.assert_array_equal(new.factor, [scales.factor[2], 1.0, scales.factor[0]])
    np.testing.assert_array_equal(new.moments.factor, [moments.factor[2], 0.0, moments.factor[0]])
    for name, gram in grams.items():
        expected = np.zeros((9, 9))
        there, here = [0, 2, 3, 5, 6, 8], [2, 0, 5, 3, 8, 6]
        expected[np.ix_(there, there)] = gram[np.ix_(here, here)]
        np.testing.assert_array_equal(getattr(new.moments, name), expected)
    for name, lines in told.items():
        np.testing.assert_array_equal(getattr(new.moments, name), np.stack([lines[:, 2], [0, 0], lines[:, 0]], axis=1))
    weights = features["rows"]
    expected = np.stack([weights[:, 0], weights[:, 3], np.zeros(5), weights[:, 1]], axis=1)  # the intercept stays first
    np.testing.assert_array_equal(new.features["rows"], expected)
    for name in ("row_intercept", "col_intercept", "mean", "mean_variance"):
        assert getattr(new, name) == getattr(scales, name)
    assert (new.moments.rows, new.moments.cols, new.moments.ratings) == (9, 8, 44.0)
    assert HyperPosterior(PRIOR, False, np.ones(2)).of_factors(np.array([0, 1, -1])).moments is None


def test_factors_in_use():
    rows, cols = np.array([3.0, 1e-3, 2.0, 0.04]), np.array([2.0, 1.0, 4.0, 1.0])
    np.testing.assert_array_equal(factors_in_use(rows, cols, 4, 1), [0, 2])
    assert len(factors_in_use(rows * 1e-3, cols * 1e-3, 4, 1)) == 0


# ---- new factors from what is not yet explained ----------------------------------------------------------------------


def fitted(weighted=False, **choices):
    """An engine after some iterations at rank 2 on labels of rank 5."""
    rows, cols, labels = simulated("B1", rank=5, shape=SHAPE, fraction=0.6, seed=4)
    weights = np.random.default_rng(0).gamma(2.0, 0.5, len(rows)).astype(np.float32) if weighted else None
    engine = local_engine(RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE, weights), threads=2)
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=8, tol=0, **choices)
    solve(engine, config)
    return engine, config, (rows, cols, labels.astype(float), np.ones(len(rows)) if weights is None else weights)


def scores_of(engine_or_posteriors):
    """E[b_i] + E[d_j] + E[L_i]·E[R_j] of all cells."""
    left, right = (engine_or_posteriors[side] for side in SIDES)
    scores = left.mean.astype(float) @ right.mean.T.astype(float)
    return scores + left.intercept[:, None] + right.intercept[None, :] if left.has_intercept else scores


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("choices", [{}, {"intercepts": False, "implicit_features": False}], ids=["default", "plain"])
def test_new_factors_are_singular_vectors_of_the_residuals(weighted, choices, monkeypatch):
    """ΔL ΔRᵀ ∝ D_r^{−½} U F Σ Vᵀ D_c^{−½} of D_r^{−½} E D_c^{−½}, E_ij = Σ w y σ(−y u); Σ w·residual·Δu = .003 Σ w."""
    monkeypatch.setattr("onebit_spark.core.spectral.OVERSAMPLING", 87)  # the whole space: no error but rounding
    engine, config, (rows, cols, labels, weights) = fitted(weighted, **choices)
    before = {side: engine.posterior(side) for side in SIDES}
    residuals = weights * labels / (1 + np.exp(labels * scores_of(before)[rows, cols]))
    matrix, roots = np.zeros(SHAPE), []
    np.add.at(matrix, (rows, cols), residuals)
    for index, size in zip((rows, cols), SHAPE, strict=True):
        roots.append(np.bincount(index, weights, size) ** -0.5)
    u, sigma, vt = np.linalg.svd(roots[0][:, None] * matrix * roots[1][None, :])
    shrinkage = (1 - sigma[min(3 + 87, 90) - 1] ** 2 / sigma[:3] ** 2) ** 2
    low_rank = (roots[0][:, None] * u[:, :3] * (shrinkage * sigma[:3])) @ (roots[1][:, None] * vt[:3].T).T
    expected = GROWN_MARGIN * weights.sum() * low_rank / np.sum(residuals * low_rank[rows, cols])

    wider = FitConfig(rank=5, **choices)
    grown = engine.grown(wider, wider.make_loss())
    added = grown["rows"].mean[:, 2:].astype(float) @ grown["cols"].mean[:, 2:].T.astype(float)
    assert np.linalg.norm(added - expected) < 1e-3 * np.linalg.norm(expected)
    for side in SIDES:
        kept = grown[side].with_only(np.arange(2))
        np.testing.assert_array_equal(kept.packed(), before[side].packed())
        np.testing.assert_allclose(grown[side].spread[:, 2:], config.make_loss().start_std, rtol=1e-6)
        assert grown[side].form == wider.form


def test_growth_hardly_changes_a_score():
    """And it lowers the loss of the ratings: the new factors point where the likelihood rises."""
    engine, _, (rows, cols, labels, _) = fitted()
    before = {side: engine.posterior(side) for side in SIDES}
    wider = FitConfig(rank=4)
    grown = engine.grown(wider, wider.make_loss())
    old, new = scores_of(before), scores_of(grown)
    assert 0 < np.abs(new - old).max() < 0.2
    losses = [np.mean(np.logaddexp(0, -labels * scores[rows, cols])) for scores in (old, new)]
    assert losses[1] < losses[0] - 0.5 * GROWN_MARGIN


def test_the_objective_falls_from_the_grown_state():
    """After the first iteration: the grown state itself has factors of the start's spread, with γ of no ratings."""
    engine, config, _ = fitted(implicit_features=False)
    hierarchy = solve(engine, config).hierarchy
    wider = FitConfig(rank=4, likelihood_weight=1.0, max_iter=8, tol=0, implicit_features=False)
    scales = hierarchy.of_factors(np.array([0, 1, -1, -1]))
    state = Start(engine.grown(wider, wider.make_loss()), scales, earlier=8)
    history = [step.objective for step in solve(engine, wider, start=state).history]
    assert np.all(np.diff(history) < 0)


def test_residual_tables_multiply_by_the_residuals():
    """One product against the dense matrix, for both sides."""
    engine, _, (rows, cols, labels, _) = fitted()
    before = {side: engine.posterior(side) for side in SIDES}
    residuals = labels / (1 + np.exp(labels * scores_of(before)[rows, cols]))
    matrix = np.zeros(SHAPE)
    np.add.at(matrix, (rows, cols), residuals)
    roots = [np.bincount(index, minlength=size) ** -0.5 for index, size in zip((rows, cols), SHAPE, strict=True)]
    dense = roots[0][:, None] * matrix * roots[1][None, :]
    tables, rng = ResidualTables(engine.runner, before), np.random.default_rng(0)
    for side, own in (("rows", dense), ("cols", dense.T)):
        table, right = rng.normal(size=(own.shape[1], 4)), rng.normal(size=(4, 3))
        np.testing.assert_allclose(tables.product(side, table, right), own @ (table @ right), atol=1e-4)
