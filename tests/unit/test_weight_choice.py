"""The weight of a rating is chosen on a part of the ratings, and the fit is then that with the weight given."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fitting import simulated

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core import weight_choice
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.engine import settled
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.prediction import score, variance
from onebit_spark.core.scales import Scales
from onebit_spark.core.solver import Start, solve
from onebit_spark.core.split import Split
from onebit_spark.core.weight_choice import FACTORS, choose_weight
from onebit_spark.engines.threads import LocalEngine


def engine_of(kind, seed=0, **options):
    rows, cols, labels = simulated(kind, shape=(200, 150), fraction=0.3, seed=seed, **options)
    return LocalEngine(RatingBlock.from_coordinates(rows, cols, labels > 0, (200, 150)))


def test_clear_labels_weigh_several_times_more_than_noisy_ones_and_mere_noise_several_times_less():
    """The candidates reach equally far both ways, in even steps, and only those on the way are tried."""
    engines = engine_of("A1"), engine_of("B3"), engine_of("A2", switch=0.5)
    clear, noisy, noise = (choose_weight(engine, FitConfig(rank=4)) for engine in engines)
    assert (noise.weight, clear.weight) == (0.25, 4)
    assert 0.8 <= noisy.weight <= 1.25
    steps = np.diff(np.log10(FACTORS))
    np.testing.assert_allclose(steps, 0.1, atol=0.01)
    for choice in (clear, noisy, noise):
        assert choice.losses[choice.weight] == min(choice.losses.values())
        assert set(choice.losses) <= set(FACTORS)
        places = sorted(FACTORS.index(weight) for weight in choice.losses)
        assert places == list(range(places[0], places[-1] + 1))  # none was skipped


def test_a_weight_that_overfits_late_is_not_chosen():
    """After three iterations 2.5 has the lowest loss, and at the end of the fit 1.6 has."""
    engine, config = engine_of("B2", switch=0.02), FitConfig(rank=4, max_iter=30, tol=0)
    choice = choose_weight(engine, config)
    split = Split(config.seed ^ weight_choice.COIN_STREAM, weight_choice.FITTED_SHARE)
    with engine.restricted(split) as part:

        def loss_at_the_end(weight):
            outcome = solve(part, replace(config, likelihood_weight=weight))
            return engine.left_out_loss("logistic", settled(part, outcome.hierarchy), split)

        at_the_end = {weight: loss_at_the_end(weight) for weight in (1.6, 2.5)}
    assert choice.weight == min(at_the_end, key=at_the_end.get) == 1.6
    assert choice.losses[1.6] == min(choice.losses.values())


def test_the_fit_is_that_with_the_chosen_weight():
    rows, cols, labels = simulated("B3", shape=(200, 150), fraction=0.3)
    auto = FitConfig(rank=3, likelihood_weight="auto", max_iter=8, tol=0)
    weight = choose_weight(engine_of("B3"), auto).weight
    chosen = fit_arrays(rows, cols, labels, auto, (200, 150))
    given = fit_arrays(rows, cols, labels, FitConfig(rank=3, likelihood_weight=weight, max_iter=8, tol=0), (200, 150))
    assert chosen.objective_history == given.objective_history
    np.testing.assert_array_equal(chosen.rows.location, given.rows.location)
    assert chosen.config.weight == weight


def test_when_there_is_nothing_to_choose(monkeypatch):
    engine = engine_of("B3")
    assert choose_weight(engine, FitConfig(likelihood_weight=0.7)).weight == 0.7
    assert choose_weight(engine, FitConfig(loss="hinge")).weight == LOSSES["hinge"].default_weight
    earlier = Start({}, Scales.at_start(10), weight=1.3)
    resumed = choose_weight(engine, FitConfig(), earlier)
    assert (resumed.weight, resumed.candidates) == (1.3, len(FACTORS))  # it was chosen, on ratings that may be these
    monkeypatch.setattr(weight_choice, "FEWEST", engine.n_ratings + 1)
    assert choose_weight(engine, FitConfig()) == weight_choice.WeightChoice(LOSSES["logistic"].default_weight)


def test_the_loss_is_that_of_the_ratings_that_were_not_chosen():
    engine, split = engine_of("B2"), Split(7, 0.9)
    engine.start(FitConfig(rank=2), FitConfig().make_loss())
    block, posterior = engine.runner.ratings["rows"], {side: engine.posterior(side) for side in SIDES}
    kept = split.chosen_of(block, np.arange(block.n_rows))
    left = split.left_of(block, np.arange(block.n_rows))
    assert kept.n_ratings + left.n_ratings == block.n_ratings
    for i in range(block.n_rows):
        both = np.concatenate([part.codes[part.row_pointers[i] : part.row_pointers[i + 1]] for part in (kept, left)])
        np.testing.assert_array_equal(np.sort(both), block.codes[block.row_pointers[i] : block.row_pointers[i + 1]])
    row, col = np.repeat(np.arange(left.n_rows), left.row_counts), left.codes >> 1
    pairs = posterior["rows"].take(row), posterior["cols"].take(col)
    signs = 2.0 * (left.codes & 1) - 1
    expected = np.mean(LOSSES["logistic"].held_out(score(*pairs), variance(*pairs), signs))
    found = engine.left_out_loss("logistic", posterior, split)
    assert found.loss == pytest.approx(expected)
    assert (found.errors, found.n) == (np.count_nonzero(score(*pairs) * signs <= 0), left.n_ratings)


def test_ratings_of_a_cell_stay_together():
    """Each rating three times: as with each once, so that a κ that repeats them gains nothing by it."""
    rows, cols, labels = simulated("B3", shape=(200, 150), fraction=0.3)
    once, thrice = (
        LocalEngine(
            RatingBlock.from_coordinates(*(np.repeat(part, n) for part in (rows, cols, labels > 0)), (200, 150))
        )
        for n in (1, 3)
    )
    weights = [choose_weight(engine, FitConfig(rank=4)).weight for engine in (once, thrice)]
    assert weights[1] < weights[0]
    split, numbers = Split(7, 0.9, by_cell=True), np.arange(200)
    alone, together = (split.left_of(engine.runner.ratings["rows"], numbers).codes for engine in (once, thrice))
    np.testing.assert_array_equal(np.repeat(alone, 3), together)


def test_theorem_1_pays_for_all_weights_that_might_have_been_chosen():
    rows, cols, labels = simulated("A2", shape=(200, 150), fraction=0.3)
    config = FitConfig(loss="hinge", rank=3, likelihood_weight="auto", max_iter=4, tol=0, implicit_features=False)
    chosen = fit_arrays(rows, cols, labels, config, certify=Terms(delta=0.1))
    assert 3 <= len(chosen.weight_losses) < len(FACTORS)  # which of them are tried depends on the labels
    found = {item.name: item for item in chosen.certificates}
    assert found["theorem1"].inputs["grid"] == len(FACTORS)
    given = FitConfig(**{**vars(config), "likelihood_weight": chosen.config.weight})
    alone = {item.name: item for item in fit_arrays(rows, cols, labels, given, certify=Terms(delta=0.1)).certificates}
    paid = math.log(len(FACTORS)) / found["theorem1"].inputs["lambda"]
    assert found["theorem1"].bound == pytest.approx(alone["theorem1"].bound + paid)
    assert found["seeger"].bound == alone["seeger"].bound


def test_a_learnt_prior_takes_its_weight_from_its_own_part(monkeypatch):
    """The other part certifies, so κ must not depend on it: it is chosen by an engine that holds this part alone."""
    seen = []
    monkeypatch.setattr(
        "onebit_spark.certificate.learnt_prior.choose_weight",
        lambda engine, *rest: (seen.append(engine.n_ratings), choose_weight(engine, *rest))[1],
    )
    rows, cols, labels = simulated("B3", shape=(200, 150), fraction=0.6)
    config = FitConfig(rank=3, max_iter=3, tol=0)
    fit = fit_arrays(rows, cols, labels, config, certify=Terms(prior_split=0.5))
    assert seen == [pytest.approx(0.5 * len(rows), rel=0.05)]
    assert fit.certificates[0].name == "prior_split"
