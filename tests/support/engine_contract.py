"""The contract of engines: every step of another engine against that of this process, from the same
state.

``tests/unit/test_engine_contract.py`` (threads, and the GPU's kernels on the CPU), ``tests/gpu``
and ``tests/spark`` run these functions on a fixture ``both``.
"""

from dataclasses import fields, replace
from functools import partial

import numpy as np

from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, RowPrior
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.core.randomness import UNITS, Draws, Split
from onebit_spark.core.setup import factor_prior, intercept_prior, loss_of
from onebit_spark.core.work import CountConfidences

FORMS = {
    "default": {},
    "weighted": {"weighted": True},
    "plain": {"implicit_features": False},
    "no intercepts": {"intercepts": False},
    "bare": {"intercepts": False, "implicit_features": False, "rank": 5},
    "one factor": {"rank": 1},
    "sixteen": {"rank": 16},
    "forty": {"rank": 40},
    "spreads": {"covariance": "diagonal", "rank": 6},
    "many spreads": {"covariance": "diagonal", "rank": 20},
}


ROWS = 14
COLUMNS = 9
N = 260


def made(seed, weighted=False, unit=0.25):
    """Repeated cells, rows of several tasks and of more than ``join_few`` takes, and rows without
    ratings.
    """
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, ROWS, N)
    cols = rng.integers(0, COLUMNS, N)
    rows[:90] = 5
    cols[60:120] = 3
    weights = rng.integers(1, 9, N).astype(np.float32) * np.float32(unit) if weighted else None
    return rows, cols, rng.random(N) < 0.6, (ROWS + 3, COLUMNS + 2), weights


def far(found, expected):
    found = np.asarray(found, float)
    expected = np.asarray(expected, float)
    return (
        np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30)
        if expected.size
        else 0.0
    )


class Both:
    """The same ratings and the same posteriors in two states: on an engine of this process, and on
    another one.
    """

    def __init__(self, here, there, config, seed=0):
        self.here = here
        self.there = there
        self.config = config
        self.loss = loss_of(config)
        self.rng = np.random.default_rng(seed)

    def rows(self, side, table):
        """The rows of a table of the other engine, in this process."""
        return self.there.engine.take(side, table, np.arange(self.there.engine.n_rows(side)))

    def disturb(self):
        """Both at the start of the CPU, moved a little."""
        self.here.start(self.config, self.loss)
        for side in SIDES:
            posterior = self.here.posteriors[side]
            posterior.location[:] += 0.3 * self.rng.normal(size=posterior.location.shape)
            if posterior.implicit is not None:
                posterior.implicit[:] = 0.1 * self.rng.normal(size=posterior.implicit.shape)
        self.there.posteriors = {
            side: self.there.engine.table(side, self.here.posteriors[side].copy()) for side in SIDES
        }
        return self

    def assert_close(self, tolerance=None):
        """To the rounding of float32 numbers in sums over the coordinates."""
        tolerance = tolerance or 1e-6 * np.sqrt(self.config.dimension)
        for side in SIDES:
            here = self.here.posteriors[side]
            there = self.rows(side, self.there.posteriors[side])
            assert far(there.location, here.location) < tolerance
            assert far(there.scale, here.scale) < tolerance
            if here.implicit is not None:  # what rows without ratings tell is never read
                rated = self.here.engine.counts(side) > 0
                assert far(there.implicit[rated], here.implicit[rated]) < tolerance


def test_start(both):
    both.here.start(both.config, both.loss)
    both.there.start(both.config, both.loss)
    both.assert_close(2e-5)


def test_half_steps_and_maps(both):
    both.disturb()
    size = both.config.dimension
    rng = both.rng
    for number in range(2):
        for place, (side, *moves) in enumerate(both.loss.plan()):
            prior = RowPrior(0.2 * rng.normal(size=(1, size)), rng.uniform(0.5, 1.5, (1, size)))
            step = HalfStep(
                side,
                number,
                0.9,
                prior,
                20.0,
                *moves,
                want_data=place == len(both.loss.plan()) - 1,
                relaxation=1 + 0.3 * number,
            )
            here = both.here.half_step(both.loss, step)
            there = both.there.half_step(both.loss, step)
            for entry in fields(here):
                if entry.name == "data":
                    continue
                assert far(getattr(there, entry.name), getattr(here, entry.name)) < 5e-6, entry.name
            both.assert_close()
            if both.config.implicit_features:
                better = here.best_step(both.here.coef_gram(OTHER[side]))
                both.here.move_coef(side, better)
                both.there.move_coef(side, better)
                both.assert_close()
        assert far(both.there.data_term(), both.here.data_term()) < 5e-6
        maps = {side: _map(both, rng, size) for side in SIDES}
        maps = {side: replace(by, other=maps[OTHER[side]].matrix) for side, by in maps.items()}
        both.here.apply(maps)
        both.there.apply(maps)
        both.assert_close()


def _map(both, rng, size):
    if both.loss.kind == "spread":
        return RowMap.linear(np.diag(rng.uniform(0.5, 1.5, size)))
    matrix = np.eye(size) + 0.3 / np.sqrt(size) * rng.normal(size=(size, size))
    if both.config.intercepts:
        matrix[0, 1:] = matrix[1:, 0] = 0.0
    return RowMap(matrix, 0.1 * rng.normal(size=size))


def test_steps_over_all_ratings(both):
    both.disturb()
    here = both.here
    there = both.there
    for split in (Split(4, 0.6, by) for by in UNITS):
        expected = here.holdout_loss(both.config.loss, here.posteriors, split)
        found = there.holdout_loss(both.config.loss, there.posteriors, split)
        assert (
            far(
                [found.total, found.squares, found.total_weight],
                [expected.total, expected.squares, expected.total_weight],
            )
            < 1e-6
        )
        assert (found.errors, found.n) == (expected.errors, expected.n)
        # Neighbouring bins
        assert np.abs(found.margins - expected.margins).sum() < 0.01 * expected.total_weight
        with here.restricted(split) as part, there.restricted(split) as other:
            assert other.engine.n_ratings == part.engine.n_ratings
            for side in SIDES:
                numbers = part.engine.numbers[side]
                counts = other.engine.counts(side)
                if other.engine.numbers is not None:
                    assert np.array_equal(other.engine.numbers[side], numbers)
                    assert np.array_equal(counts, part.engine.counts(side))
                else:
                    assert np.array_equal(counts[numbers], part.engine.counts(side))
    expected = here.gibbs_errors(Draws(5, 3))
    found = there.gibbs_errors(Draws(5, 3))
    assert found.ratings == expected.ratings
    assert abs(found.errors - expected.errors) <= 2  # a draw may lie at 0 but for rounding
    for stride in (1, 7):
        work = CountConfidences(2.0, stride)
        expected, found = (
            each.engine.over_ratings(work, *each.posteriors.values()) for each in (here, there)
        )
        assert found.sum() == expected.sum()
        # Neighbouring bins
        assert np.abs(found - expected).sum() <= 2 * max(4, 0.005 * expected.sum())


def test_positions(both):
    both.disturb()
    size = both.config.dimension
    priors = {
        side: RowPrior(np.zeros((1, size)), both.rng.uniform(0.5, 1.5, (1, size))) for side in SIDES
    }
    axes, expected = both.here.measure(both.here.posteriors, both.loss, priors)
    same_axes, found = both.there.measure(both.there.posteriors, both.loss, priors)
    assert far(same_axes.positions, axes.positions) < 1e-4
    for side in SIDES:
        numbers = found[side]
        if not isinstance(numbers, np.ndarray):
            continue  # a table of Spark
        assert numbers.dtype == np.float32
        assert np.array_equal(numbers[:, 0], expected[side][:, 0])
        for mine, theirs in zip(numbers.T, expected[side].T, strict=True):
            assert far(mine, theirs) < 1e-4
    both.assert_close()


def test_growth(both):
    both.disturb()
    config = replace(both.config, rank=both.config.rank + 3)
    expected, found = (state.grow(config, both.loss) for state in (both.here, both.there))
    for side in SIDES:
        lines = both.rows(side, found[side])
        assert far(lines.location, expected[side].location) < 2e-5
        assert far(lines.scale, expected[side].scale) < 1e-6
        if lines.implicit is not None:
            assert far(lines.implicit, expected[side].implicit) < 1e-6


def test_rows_without_idle_factors(both):
    both.disturb()
    kept = np.arange(both.config.rank)[::2]
    for side in SIDES:
        posterior = both.there.posteriors[side]
        expected = both.here.posteriors[side].with_only(kept)
        found = both.rows(
            side, both.there.convert(side, partial(RowPosterior.with_only, factors=kept), posterior)
        )
        assert np.array_equal(found.location, expected.location)
        assert np.array_equal(found.scale, expected.scale)


def test_rows(both):
    both.disturb()
    size = both.config.dimension
    here = both.here
    there = both.there
    prior = RowPrior(both.rng.normal(size=(1, size)), both.rng.uniform(0.5, 1.5, (1, size)))
    for side in SIDES:
        assert (
            far(
                there.column_norms(side, there.posteriors[side]),
                here.column_norms(side, here.posteriors[side]),
            )
            < 1e-6
        )
        assert far(there.coef_gram(side), here.coef_gram(side)) < 1e-6
        expected = here.posterior(side, prior)
        found = both.rows(side, there.posterior(side, prior))
        assert far(found.location, expected.location) < 1e-6
        assert far(found.scale, expected.scale) < 1e-6
        assert there.engine.count(side) == here.engine.count(side)
        assert np.array_equal(there.engine.counts(side), here.engine.counts(side))
    assert there.engine.n_ratings == here.engine.n_ratings
    assert there.engine.weighted == here.engine.weighted
    assert there.engine.total_weight == here.engine.total_weight
    assert there.engine.repeats == here.engine.repeats


def test_rows_of_a_slice(both):
    """Rows that are taken by their numbers and placed again; the others have the prior."""
    both.disturb()
    size = both.config.dimension
    scales = HyperPosterior(
        factor_prior(both.config, 9), intercept_prior(both.config), np.ones(both.config.factors)
    )
    assert scales.unseen("rows").precision.shape == (1, size)
    numbers = {side: np.arange(both.here.engine.n_rows(side))[::2] for side in SIDES}
    taken = both.there.take(both.there.posteriors, numbers)
    expected, found = (state.place(taken, numbers, scales) for state in (both.here, both.there))
    for side in SIDES:
        assert np.array_equal(
            taken[side].packed(), both.here.posteriors[side].take(numbers[side]).packed()
        )
        assert np.array_equal(both.rows(side, found[side]).packed(), expected[side].packed())
