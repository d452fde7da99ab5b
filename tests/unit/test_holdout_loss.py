"""HoldoutLoss against plain numpy: the loss of ratings that a fit has not seen, its standard error, and the margins."""

import math

import numpy as np
import pytest
from fitting import simulated

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.prediction import BINS, WIDEST, HoldoutLoss, margin_of_bins, score, variance
from onebit_spark.core.randomness import Split
from onebit_spark.engines.threads import local_engine

SHAPE = (200, 150)


def engine_of(kind, weighted=False, **options):
    rows, cols, labels = simulated(kind, shape=SHAPE, fraction=0.3, **options)
    weights = np.random.default_rng(0).gamma(1.0, 2.0, len(rows)).astype(np.float32) if weighted else None
    return local_engine(RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE, weights), threads=2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "choices",
    [{}, {"covariance": "diagonal", "intercepts": False}, {"loss": "hinge"}],
    ids=["full", "diagonal", "hinge"],
)
def test_the_sums_are_those_of_the_ratings_that_were_not_chosen(choices, weighted):
    config, engine, split = FitConfig(rank=3, **choices), engine_of("B2", weighted), Split(7, 0.9)
    engine.start(config, config.make_loss())
    block, posterior = engine.runner.ratings["rows"], {side: engine.posterior(side) for side in SIDES}
    numbers = np.arange(block.n_rows)
    kept, left = split.part_of(block, numbers), split.part_of(block, numbers, those=False)
    for i in numbers:  # each rating is in one of the two
        both = np.concatenate([part.codes[part.row_pointers[i] : part.row_pointers[i + 1]] for part in (kept, left)])
        np.testing.assert_array_equal(np.sort(both), block.codes[block.row_pointers[i] : block.row_pointers[i + 1]])

    pairs = posterior["rows"].take(np.repeat(numbers, left.row_counts)), posterior["cols"].take(left.codes >> 1)
    scores, variances, signs = score(*pairs), variance(*pairs), 2.0 * (left.codes & 1) - 1
    losses = LOSSES[config.loss].held_out(scores, variances, signs)
    weights = np.ones(len(losses)) if left.weights is None else left.weights.astype(float)
    mean = np.average(losses, weights=weights)
    found = engine.holdout_loss(config.loss, posterior, split)
    assert found.loss == pytest.approx(mean, rel=1e-6)
    spread = math.sqrt(np.average((losses - mean) ** 2, weights=weights))
    assert found.standard_error == pytest.approx(spread / math.sqrt(len(losses)), rel=1e-5)
    assert (found.errors, found.n) == (np.count_nonzero(scores * signs <= 0), left.n_ratings)
    assert found.total_weight == pytest.approx(weights.sum())
    margins = signs * scores / np.sqrt(LOSSES[config.loss].score_noise + variances)
    edges = np.linspace(-WIDEST, WIDEST, BINS + 1)
    expected, _ = np.histogram(np.clip(margins, -WIDEST, np.nextafter(WIDEST, 0)), edges, weights=weights)
    assert np.abs(found.margins - expected).sum() < 0.01 * weights.sum()  # a margin at the edge of a bin may be rounded
    assert found.margins.sum() == pytest.approx(weights.sum())


def test_sums_of_several_parts_are_added():
    rng = np.random.default_rng(1)
    parts = [HoldoutLoss(*rng.gamma(2.0, 1.0, 3), *map(int, rng.integers(1, 9, 2)), rng.random(BINS)) for _ in range(3)]
    total = HoldoutLoss.of_sums(np.sum([part.to_vector() for part in parts], axis=0))
    for name in ("total", "squares", "total_weight", "errors", "n"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))
    np.testing.assert_allclose(total.margins, np.sum([part.margins for part in parts], axis=0))


def test_nothing_was_left_out():
    empty = HoldoutLoss.of_sums(np.zeros(5 + BINS))
    assert (empty.loss, empty.standard_error) == (0.0, 0.0)


def test_bins_are_as_wide_as_they_are_far_apart():
    """A margin is counted in the bin whose middle is nearest, symmetrically around 0."""
    middle = margin_of_bins()
    np.testing.assert_allclose(middle, -middle[::-1], atol=1e-12)
    np.testing.assert_allclose(np.diff(middle), 2 * WIDEST / BINS)
