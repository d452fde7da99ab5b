"""A tenth of the ratings chooses rank, κ, implicit features and length; posteriors with more and
fewer factors.
"""

import logging
import math
import re
import warnings
from dataclasses import replace
from itertools import groupby, product

import numpy as np
import pyarrow as pa
import pytest
from support.fitting import assert_same_bits, simulated

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays, fit_table
from onebit_spark.certify import bounds
from onebit_spark.certify.draw_certificates import prior_cost
from onebit_spark.cli.sentences import fit_summary
from onebit_spark.core import model_selection
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hyper_posterior import HyperPosterior, Moments
from onebit_spark.core.losses import LOSSES, OTHER, SIDES
from onebit_spark.core.model_selection import (
    COIN_STREAM,
    FITTED_SHARE,
    KAPPA_FACTORS,
    LEAST_GAIN,
    START_RANK,
    select_model,
    sentences,
    trial_table,
)
from onebit_spark.core.posterior import Form
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import factor_prior, form_of, kappa_of, loss_of
from onebit_spark.core.solver import IterationPlan, Start, solve
from onebit_spark.engines.start import GROWN_MARGIN
from onebit_spark.engines.threads import local_state

SHAPE = (200, 150)
FIXED = {"rank": 4, "implicit_features": False}


def data(kind, seed=0, **options):
    return simulated(kind, shape=SHAPE, fraction=0.3, seed=seed, **options)


def engine_of(rows, cols, labels):
    return local_state(RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE))


def noise():
    """Random labels: they depend on neither the row nor the column."""
    rows, cols, _ = data("B3")
    return rows, cols, np.random.default_rng(5).choice([-1, 1], len(rows))


DEFAULT = FitConfig()


def fitted(ratings, config=DEFAULT, **options):
    """A fit that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotConverged)
        return fit_arrays(*ratings, config, SHAPE, **options)


# ---- the rule ----------------------------------------------------------------------------------


def test_clear_labels_weigh_more_than_noisy_ones_and_mere_noise_weighs_less():
    """The candidates reach equally far both ways, in even steps, and only those on the way are
    tried.
    """
    config = FitConfig(**FIXED)
    clear, noisy = (
        select_model(engine_of(*ratings), config) for ratings in (data("A1"), data("B3"))
    )
    draws = [select_model(engine_of(*noise()), replace(config, seed=seed)) for seed in range(5)]
    # A single tenth of mere noise may prefer any κ
    mere = sorted(draws, key=lambda choice: kappa_of(choice.config))[2]
    assert (
        kappa_of(mere.config)
        <= 0.4
        < 0.63
        <= kappa_of(noisy.config)
        <= 1.25
        < 1.6
        <= kappa_of(clear.config)
    )
    np.testing.assert_allclose(np.diff(np.log10(KAPPA_FACTORS)), 0.1, atol=0.01)
    for choice in (clear, noisy, mere):
        least = LEAST_GAIN * choice.holdout.standard_error
        assert choice.losses[kappa_of(choice.config)] < min(choice.losses.values()) + least
        places = sorted(KAPPA_FACTORS.index(weight) for weight in choice.losses)
        assert places == list(range(places[0], places[-1] + 1))  # none was skipped


@pytest.mark.parametrize("ratings", [data("B2"), noise()], ids=["B2", "noise"])
def test_a_change_is_kept_if_it_gains_a_tenth_of_the_standard_error(ratings):
    choice = select_model(engine_of(*ratings), FitConfig())
    error = choice.holdout.standard_error
    best = next(entry for entry in choice.trail if entry["kept"])
    for entry in choice.trail[choice.trail.index(best) + 1 :]:
        gain = best["loss"] - entry["loss"]
        # The last iterations gain less
        least = 0.0 if entry["weight"] == best["weight"] else 0.9 * LEAST_GAIN * error
        assert gain > least if entry["kept"] else gain < 1.1 * LEAST_GAIN * error
        best = entry if entry["kept"] else best
    assert choice.holdout.loss == best["loss"]
    assert kappa_of(choice.config) == best["weight"]
    assert choice.config.implicit_features == best["implicit_features"]
    assert choice.config.rank <= best["rank"]


def test_the_fit_goes_on_from_the_state_of_the_nine_tenths():
    """The fit of all ratings begins at the state whose loss the trail has last."""
    ratings = data("B2")
    config = FitConfig(rank=3, tol=0)
    state = engine_of(*ratings)
    choice = select_model(state, config)
    split = Split(config.seed ^ COIN_STREAM, FITTED_SHARE, "cell")
    reached = [entry for entry in choice.trail if entry["kept"]][-1]
    assert state.holdout_loss("logistic", choice.start.posteriors, split).loss == reached["loss"]
    assert choice.start.earlier == reached["iterations"]
    assert choice.start.planned.iterations == model_selection.FINAL_ITERATIONS
    outcome = solve(state, choice.config, start=choice.start)
    fit = fitted(ratings, config)
    assert fit.objective_history == [step.objective for step in outcome.history]
    for side, rows in (("rows", fit.rows), ("cols", fit.cols)):
        np.testing.assert_array_equal(rows.location, state.posterior(side).location)
    # All ratings: the objective falls from the first step on
    assert np.all(np.diff(fit.objective_history) < 0)


def test_a_planned_end_has_converged_with_as_few_factors_as_there_are_traits():
    fit = fitted(data("B2"))
    assert fit.config.rank == 3
    planned = IterationPlan(*fit.info.choice["planned"])
    assert fit.converged
    assert fit.reason == planned.reason
    assert len(fit.history) == planned.iterations < fit.info.choice["earlier"]
    assert "until the loss of the last tenth no longer fell" in fit.reason
    with pytest.warns(NotConverged):  # the limit comes first, and the fit says so
        short = fit_arrays(*data("B2"), FitConfig(likelihood_weight="auto", max_iter=5), SHAPE)
    assert not short.converged
    assert len(short.history) == 5


def test_the_log_and_the_model_tell_the_seconds_of_the_choice(caplog):
    caplog.set_level(logging.INFO, "onebit_spark")
    rows, cols, labels = data("B2")
    table = pa.table({"user": rows, "item": cols, "label": labels})
    fit = fit_table(table)
    lines = [
        line
        for line in caplog.messages
        if line.startswith("choosing by a tenth of the ratings: rank")
    ]
    so_far = [float(re.search(r", (\S+) s so far$", line)[1]) for line in lines]
    assert len(lines) == len(fit.info.choice["trail"])
    assert so_far == sorted(so_far)
    seconds = fit.info.seconds
    assert so_far[-1] * 0.99 <= seconds["choosing"] < seconds["fit"]
    assert 0 <= seconds["start"] <= seconds["fit"] - seconds["choosing"]
    assert (
        fit_table(table, FitConfig(rank=1, likelihood_weight=1.0, max_iter=1, tol=0)).info.seconds[
            "choosing"
        ]
        == 0
    )


def test_two_runs_and_any_number_of_threads_choose_the_same():
    one, other = (fitted(data("B2"), FitConfig(seed=3), threads=threads) for threads in (1, 3))
    assert other.info.choice == one.info.choice
    assert other.config == one.config
    assert_same_bits(one, other)


def test_steps_are_as_relaxed_as_if_the_fit_had_not_been_divided():
    """ω of the first step of the second phase is that after the iterations of the first."""
    ratings = data("B2")
    config = FitConfig(**FIXED, likelihood_weight=1.0, tol=0, max_iter=9)
    whole = engine_of(*ratings)
    parts = engine_of(*ratings)
    through = solve(whole, config)
    half = solve(parts, replace(config, max_iter=6))
    start = Start({side: parts.posterior(side) for side in SIDES}, half.hierarchy, earlier=6)
    rest = solve(parts, replace(config, max_iter=3), start=start)
    expected = [step.objective for step in through.history[6:]]
    # Float32 in between
    assert [step.objective for step in rest.history] == pytest.approx(expected, rel=1e-7)
    afresh = solve(parts, replace(config, max_iter=3), start=replace(start, earlier=0))
    assert [step.objective for step in afresh.history] != pytest.approx(expected, rel=1e-6)


# ---- the rank ----------------------------------------------------------------------------------


def test_factors_are_added_while_they_help():
    """Fifteen traits, no noise: ten factors are too few, and the rank stops below its limit by
    itself.
    """
    ratings = simulated("B1", rank=15, shape=SHAPE, fraction=0.9)
    grown = fitted(ratings, FitConfig(likelihood_weight=2.0))
    assert START_RANK < grown.config.rank <= 2 * START_RANK
    assert grown.info.effective_rank == grown.config.rank
    held = fitted(ratings, FitConfig(likelihood_weight=2.0, max_rank=12))
    assert held.config.rank <= 12
    assert {entry["rank"] for entry in held.info.choice["trail"]} == {10, 12}


def test_mere_noise_leaves_one_factor():
    fit = fitted(noise())
    assert (fit.config.rank, fit.rows.mean.shape[1]) == (1, 1)
    assert np.abs(fit.score(*noise()[:2])).mean() < 0.2


def test_dropped_factors_move_no_score():
    """Only their strength is below 1% of the largest, and what the fit says is what it said."""
    state = engine_of(*data("B2"))
    config = FitConfig(rank=10, likelihood_weight="auto")
    full = select_model(state, config)
    dropped = select_model(state, replace(config, rank="auto"))
    assert dropped.config.rank < 10 == full.config.rank

    def scores(choice):
        left, right = (choice.start.posteriors[side] for side in SIDES)
        return left.mean @ right.mean.T + left.intercept[:, None] + right.intercept[None, :]

    assert np.abs(scores(full) - scores(dropped)).max() < 0.05 * np.abs(scores(full)).max()


def test_factors_that_the_held_out_loss_needs_are_not_dropped(monkeypatch):
    monkeypatch.setattr(model_selection, "factors_in_use", lambda *_: np.arange(1))
    ratings = simulated("B1", rank=4, shape=SHAPE, fraction=0.9)
    config = FitConfig(max_rank=5, likelihood_weight=2.0)
    choice = select_model(engine_of(*ratings), config)
    assert choice.config.rank == choice.start.posteriors["rows"].rank == 5


# ---- slices ------------------------------------------------------------------------------------


def test_a_slice_has_whole_rows_and_its_tenth_is_a_part_of_the_tenth_of_all():
    state = engine_of(*data("B3"))
    tenth = Split(7, 0.9, "cell")
    sets = {}
    for side, share in product(SIDES, (0.3, 0.6)):
        with state.restricted(Split(5, share, side)) as some, some.restricted(tenth) as part:
            counts = some.engine.counts(side)
            here = some.engine.numbers[side]
            assert counts.min() > 0
            assert np.array_equal(counts, state.engine.counts(side)[here])
            assert len(counts) == pytest.approx(share * state.engine.n_rows(side), abs=30)
            left = some.engine.n_ratings - part.engine.n_ratings
            posteriors = {
                each: rows.take(some.engine.numbers[each])
                for each, rows in posteriors_of(state).items()
            }
            assert left == some.holdout_loss("logistic", posteriors, tenth).n
            sets[side, share] = set(here), set(cells(part))
            hierarchy = HyperPosterior(PRIOR, PRIOR, np.ones(2))
            placed = state.place(posteriors, some.engine.numbers, hierarchy)[side]
            np.testing.assert_array_equal(placed.location[here], posteriors[side].location)
            np.testing.assert_array_equal(np.delete(placed.std, here, axis=0), 1.0)
    with state.restricted(tenth) as fitted:
        everywhere = set(cells(fitted))
    assert everywhere < set(cells(state))
    for side in SIDES:
        (few, fewer) = sets[side, 0.3]
        (many, more) = sets[side, 0.6]
        assert few < many
        assert fewer < more < everywhere


def cells(state):
    block = state.engine.ratings["rows"]
    numbers = state.engine.numbers
    rows = np.repeat(numbers["rows"], block.row_counts)
    columns = numbers["cols"][block.codes >> 1]
    return zip(rows.tolist(), columns.tolist(), strict=True)


def posteriors_of(state):
    config = FitConfig(rank=2)
    state.start(config, loss_of(config))
    return state.posteriors


@pytest.mark.parametrize("turned", [False, True])
def test_the_search_begins_on_a_slice_of_the_longer_side(monkeypatch, turned):
    """These slices are too small: factors die there, and the fit of all ratings does not rely on
    them.
    """
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 500)
    monkeypatch.setattr(model_selection, "FEWEST_RATINGS", 300)
    rows, cols, labels = data("B2")
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE)
    state = local_state(block.transpose() if turned else block)
    sliced = []
    restricted = type(state).restricted
    monkeypatch.setattr(
        type(state), "restricted", lambda *of: sliced.append(of[1]) or restricted(*of)
    )
    choice = select_model(state, FitConfig())
    assert [(split.by, split.fraction) for split in sliced] == [
        ("cols" if turned else "rows", 1 / 16),
        ("cell", 0.9),
        ("cols" if turned else "rows", 1 / 4),
        ("cell", 0.9),
        ("cell", 0.9),
    ]
    assert [share for share, _ in groupby(entry["share"] for entry in choice.trail)] == [
        1 / 16,
        1 / 4,
        1,
    ]
    assert choice.start.posteriors["rows"].n_rows == state.engine.n_rows("rows")
    assert set(choice.losses) <= {entry["weight"] for entry in choice.trail if entry["share"] == 1}
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", state.engine.n_ratings)
    whole = select_model(state, FitConfig())
    assert choice.holdout.loss < whole.holdout.loss + whole.holdout.standard_error


def test_a_slice_with_too_few_ratings_is_left_out(monkeypatch):
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 500)
    trail = select_model(engine_of(*data("B2")), FitConfig()).trail
    assert {entry["share"] for entry in trail} == {1}


def test_what_a_slice_clearly_refuses_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 1000)
    monkeypatch.setattr(model_selection, "FEWEST_RATINGS", 300)
    monkeypatch.setattr(model_selection, "CLEAR_LOSS", 0.0)
    trail = select_model(engine_of(*data("B2")), FitConfig()).trail
    tried = [
        (entry["rank"], entry["weight"])
        for entry in trail
        if not entry["kept"] and entry["implicit_features"]
    ]
    assert len(tried) == len(set(tried)) > 1


@pytest.mark.parametrize("short", [False, True])
def test_all_ratings_try_twenty_factors_where_a_slice_refused_more(monkeypatch, caplog, short):
    """``short``: 32 factors take too much memory, which is reported once."""
    shape = (600, 150)
    tried = []
    rows, cols, labels = simulated("B1", rank=15, shape=shape, fraction=0.9)
    state = local_state(RatingBlock.from_coordinates(rows, cols, labels > 0, shape))

    def refused(search, trial, wider):
        tried.append((search._share, wider.factors))
        search._refused[wider.factors, kappa_of(wider)] = True
        return trial

    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", len(rows) // 5)
    monkeypatch.setattr(model_selection._Search, "_grown", refused)
    if short:
        monkeypatch.setattr(
            type(state.engine),
            "shortage",
            lambda _, config: "too large" if config.rank > 20 else None,
        )
    select_model(state, FitConfig(likelihood_weight=4.0))
    assert tried == [*([] if short else [(1 / 4, 32)]), (1, 20)]
    assert caplog.text.count("rank 32 is not tried: too large") == int(short)


def test_the_side_with_new_rows_moves_first():
    """A fit in which the columns move first is that of the transposed ratings."""
    rows, cols, labels = data("B3")
    block = RatingBlock.from_coordinates(rows, cols, labels > 0, SHAPE)
    here = local_state(block)
    there = local_state(block.transpose())
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=6, tol=0, intercepts=False)
    here.start(config, loss_of(config))
    begun = {side: here.posterior(side) for side in SIDES}
    turned = {side: begun[OTHER[side]] for side in SIDES}
    start = Start(begun, HyperPosterior(PRIOR, PRIOR, np.ones(2)))

    def history(state, start):
        return [step.objective for step in solve(state, config, start=start).history]

    expected = history(here, start)
    assert history(there, replace(start, posteriors=turned, first="cols")) == pytest.approx(
        expected, rel=1e-6
    )
    assert history(there, replace(start, posteriors=turned)) != pytest.approx(expected, rel=1e-6)


# ---- when there is nothing to choose -----------------------------------------------------------


def test_a_rank_and_a_weight_that_are_given_leave_nothing_to_choose():
    ratings = data("B2")
    config = FitConfig(rank=3, likelihood_weight=1.0, tol=0, max_iter=12)
    fit = fit_arrays(*ratings, config, SHAPE)
    state = engine_of(*ratings)
    outcome = solve(state, config)
    assert fit.objective_history == [step.objective for step in outcome.history]
    np.testing.assert_array_equal(fit.rows.location, state.posterior("rows").location)
    assert replace(fit.config, alpha=None, beta=None) == config
    assert fit.config.implicit_features
    assert (fit.info.choice, fit.info.calibration, fit.info.weight_losses) == (None, None, None)


def test_when_there_is_too_little_to_choose(monkeypatch):
    state = engine_of(*data("B3"))
    given = select_model(state, FitConfig(likelihood_weight=0.7, rank=5))
    assert (kappa_of(given.config), given.config.rank, given.start) == (0.7, 5, None)
    short = select_model(state, FitConfig(max_iter=model_selection.SHORTEST_FIT - 1))
    assert (short.config.rank, kappa_of(short.config), short.start) == (
        START_RANK,
        LOSSES["logistic"].default_kappa,
        None,
    )
    monkeypatch.setattr(model_selection, "FEWEST_RATINGS", state.engine.n_ratings + 1)
    for loss in ("logistic", "hinge"):
        few = select_model(state, FitConfig(loss=loss))
        assert (few.config.rank, kappa_of(few.config), few.start) == (
            START_RANK,
            LOSSES[loss].default_kappa,
            None,
        )
        assert few.as_dict() is few.calibration is None
        assert (few.candidates, few.ranks) == (1, 1)
    assert select_model(state, FitConfig(max_rank=4)).config.rank == 4


def test_a_fit_that_starts_from_another_takes_its_settings():
    state = engine_of(*data("B3"))
    settings = {"rank": 17, "likelihood_weight": 1.3, "implicit_features": False}
    earlier = Start({}, HyperPosterior(PRIOR, PRIOR, np.ones(17)), settings=settings)
    choice = select_model(state, FitConfig(), earlier)
    assert (choice.config.rank, kappa_of(choice.config), choice.config.implicit_features) == (
        17,
        1.3,
        False,
    )
    # Chosen, on ratings that may be these
    assert (choice.candidates, choice.ranks) == (
        len(KAPPA_FACTORS),
        64,
    )
    assert choice.start is earlier
    assert choice.as_dict() is None
    given = select_model(state, FitConfig(rank=5, likelihood_weight=0.7), earlier)
    assert (given.config.rank, kappa_of(given.config), given.config.implicit_features) == (
        5,
        0.7,
        True,
    )
    noisy = {
        "trail": [],
        "ranks": 64,
        "noise": {"noise": 0.2, "temperature": 1.1},
        "earlier": 9,
        "planned": [8, "as planned"],
    }
    assert select_model(state, FitConfig(), replace(earlier, record=noisy)).noise.noise == 0.2


# ---- what goes together with it ----------------------------------------------------------------


def test_ratings_of_a_cell_stay_together():
    """Each rating three times: as with each once, so that a κ that repeats them gains nothing by
    it.
    """
    rows, cols, labels = data("B3")
    once, thrice = (
        engine_of(*(np.repeat(part, n) for part in (rows, cols, labels))) for n in (1, 3)
    )
    weights = [
        select_model(state, FitConfig(**FIXED)).config.likelihood_weight for state in (once, thrice)
    ]
    assert weights[1] < weights[0]
    split = Split(7, 0.9, "cell")
    numbers = tuple(map(np.arange, SHAPE))
    alone, together = (
        split.part_of(state.engine.ratings["rows"], *numbers, those=False).codes
        for state in (once, thrice)
    )
    np.testing.assert_array_equal(np.repeat(alone, 3), together)


def test_features_that_do_not_pay_are_left_out_and_certificates_follow():
    """With few random cells the implicit features do not help.

    The certificates pay for the ranks.
    """
    rng = np.random.default_rng(0)
    shape = (1500, 1200)
    rows, cols = (rng.integers(0, size, 7000) for size in shape)
    labels = np.where(rng.logistic(size=7000) < rng.normal(size=shape[0])[rows], 1, -1)
    fit = fit_arrays(rows, cols, labels, shape=shape, certify=Terms(delta=0.1))
    assert not fit.config.implicit_features
    assert fit.rows.implicit is None
    found = {item.name: item for item in fit.certificates}
    assert set(found) == {"seeger", "catoni"}
    inputs = found["seeger"].inputs
    m = sum(len(np.unique(index)) for index in (rows, cols))
    assert inputs["prior_cost"] == pytest.approx(math.log(m * (m + 1)) + math.log(64))
    assert inputs["prior_cost"] - prior_cost(replace(fit.config, alpha=None), m) == pytest.approx(
        math.log(FitConfig().max_rank)
    )
    given = fit_arrays(
        rows, cols, labels, FitConfig(rank=3, implicit_features=False), certify=Terms(delta=0.1)
    )
    assert given.certificates[-1].inputs["prior_cost"] == pytest.approx(math.log(m * (m + 1)))


def test_features_that_pay_are_kept():
    """Each row rates the columns of its own group more often, and the group says what it likes."""
    rng = np.random.default_rng(2)
    groups = rng.integers(0, 2, SHAPE[0]), rng.integers(0, 2, SHAPE[1])
    own = groups[0][:, None] == groups[1][None, :]
    rows, cols = np.nonzero(rng.random(SHAPE) < np.where(own, 0.4, 0.1))
    # Half of the rows have few ratings, and their choice of columns says the most
    keep = rng.random(SHAPE[0]) < 0.5
    few = keep[rows] | (rng.random(len(rows)) < 0.1)
    rows = rows[few]
    cols = cols[few]
    like = groups[0][rows] * (2 * groups[1][cols] - 1)
    labels = np.where(rng.logistic(size=len(rows)) < 2.0 * like, 1, -1)
    choice = select_model(
        engine_of(rows, cols, labels), FitConfig(rank=3, likelihood_weight="auto")
    )
    assert choice.config.implicit_features


def test_theorem_1_pays_for_all_weights_that_might_have_been_chosen():
    config = FitConfig(loss="hinge", rank=3, likelihood_weight="auto", implicit_features=False)
    state = engine_of(*data("A2"))
    terms = Terms(delta=0.1)
    chosen = fitted(data("A2"), config, certify=terms)
    found = {item.name: item for item in chosen.certificates}
    # Which of them are tried depends on the labels
    assert len(chosen.info.weight_losses) < len(KAPPA_FACTORS)
    theorem1 = found["theorem1"]
    n = state.engine.n_ratings
    assert theorem1.inputs["grid"] == len(KAPPA_FACTORS)
    paid = theorem1.inputs["avb"] + theorem1.inputs["prior_cost"] / theorem1.inputs["lambda"]
    assert theorem1.bound == bounds.theorem1(
        paid, n, theorem1.inputs["lambda"], 0.1 / len(KAPPA_FACTORS)
    )


# ---- probabilities -----------------------------------------------------------------------------


def test_flipped_labels_are_known_to_be_so():
    """A fifth of clear labels is flipped: ε is near .4, and probabilities end near .2 and .8."""
    ratings = data("A2", switch=0.2)
    fit = fitted(ratings)
    raw = replace(fit, info=replace(fit.info, calibration=None))
    noise = fit.info.choice["noise"]
    assert noise["noise"] == pytest.approx(0.4, abs=0.1)
    cells = tuple(index.ravel() for index in np.indices(SHAPE))
    calibrated = fit.probability(*cells)
    plain = raw.probability(*cells)
    assert np.quantile(calibrated, [0.01, 0.99]) == pytest.approx([0.2, 0.8], abs=0.06)
    assert np.ptp(plain) > np.ptp(calibrated)
    order = np.argsort(plain)
    assert np.all(np.diff(calibrated[order]) > -1e-9)
    assert np.array_equal(calibrated > 0.5, plain > 0.5)
    assert any("of the labels are random" in line for line in sentences(fit.info.choice))


def test_the_table_of_trials():
    fit = fitted(data("B3"))
    header, *lines = trial_table(fit.info.choice)
    assert header.split() == [
        "share",
        "rank",
        "weight",
        "implicit",
        "features",
        "iterations",
        "loss",
        "gain",
    ]
    for line, entry in zip(lines, fit.info.choice["trail"], strict=True):
        share, rank, kappa, features, iterations, loss, *more = line.split()
        assert float(share) == entry["share"] == 1.0
        assert (int(rank), int(iterations), "kept" in more) == (
            entry["rank"],
            entry["iterations"],
            entry["kept"],
        )
        assert (features == "yes", float(kappa)) == (
            entry["implicit_features"],
            pytest.approx(entry["weight"], rel=0.01),
        )
        assert float(loss) == pytest.approx(entry["loss"], abs=1e-4)
    summary = list(fit_summary(fit.info, fit.certificate))
    assert {f"    {line}" for line in (header, *lines)} <= set(summary)
    assert re.match(
        r"Converged after \d+ iterations: these used all ratings; \d+ before used nine tenths",
        summary[1],
    )


@pytest.mark.parametrize("kind", ["noise", "B2", "sliced", "grown"])
def test_the_table_of_trials_shows_why_each_was_kept(kind, monkeypatch, caplog):
    """A change that gains more than a tenth of a standard error is kept, and no other."""
    caplog.set_level(logging.INFO, "onebit_spark")
    if kind == "sliced":
        monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 1000)
        monkeypatch.setattr(model_selection, "FEWEST_RATINGS", 300)
    if kind == "grown":
        monkeypatch.setattr(model_selection, "START_RANK", 2)
        monkeypatch.setattr(model_selection, "GROWTH", 2)
    fit = fitted(noise() if kind == "noise" else data("B2"))
    _, *lines = trial_table(fit.info.choice)
    logged = [line for line in caplog.messages if line.startswith("choosing by a tenth of ")]
    shares = set()
    settings = None
    for line, said in zip(lines, logged, strict=True):
        share, *tried = line.split()[:4]
        gain = re.search(r" ([+-]\d\S*)(?:  kept)?$", line)
        if share not in shares:
            assert gain is None
            assert line.endswith("kept")
        elif tried != settings:
            assert line.endswith("kept") is (float(gain[1]) > LEAST_GAIN)
            assert (
                f"gain {gain[1]} standard errors, "
                f"{'kept' if line.endswith('kept') else 'not kept'}, " in said
            )
        else:  # more iterations
            assert float(gain[1]) >= 0
        shares = shares | {share}
        settings = tried if line.endswith("kept") else settings
    assert (len(shares) > 1) is (kind == "sliced")
    assert (len({line.split()[1] for line in lines}) > 1) is (kind == "grown")
    assert f"A change is kept if it gains more than {LEAST_GAIN}" in " ".join(
        sentences(fit.info.choice)
    )


def test_without_tolerance_the_tenth_ends_a_fit_that_chooses_its_settings():
    """As the description of ``tol`` says."""
    chosen = fitted(data("B2"), FitConfig(tol=0))
    assert len(chosen.history) == model_selection.FINAL_ITERATIONS
    given = fit_arrays(
        *data("B2"), FitConfig(tol=0, rank=2, likelihood_weight=1.0, max_iter=12), SHAPE
    )
    assert len(given.history) == 12
    assert "or the tenth of the ratings that chooses the settings" in " ".join(
        FitConfig.__doc__.split()
    )


def test_hinge_chooses_its_rank_alone():
    fit = fitted(data("A2"), FitConfig(loss="hinge"))
    assert kappa_of(fit.config) == LOSSES["hinge"].default_kappa
    assert {entry["weight"] for entry in fit.info.choice["trail"]} == {kappa_of(fit.config)}
    assert fit.info.calibration is None
    assert fit.config.rank < START_RANK


SMALL = (120, 90)
PRIOR = factor_prior(FitConfig(), sum(SMALL))


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
    old = some_posterior(kind, intercept, implicit)
    factors = np.random.default_rng(1).normal(size=(7, 2))
    new = old.with_factors(factors, 0.3)
    assert (new.kind, new.has_intercept, new.rank) == (kind, intercept, 5)
    np.testing.assert_array_equal(new.location, np.hstack([old.location, factors]))
    expected = np.zeros((7, old.dimension + 2, old.dimension + 2))
    expected[:, : old.dimension, : old.dimension] = old.covariance
    expected[:, -2:, -2:] = 0.09 * np.eye(2)
    np.testing.assert_allclose(new.covariance, expected, rtol=1e-12)
    if implicit:  # six vectors, each of the K factors
        halves = np.split(old.implicit, 6, axis=1)
        wider = np.split(new.implicit, 6, axis=1)
        for half, wide in zip(halves, wider, strict=True):
            np.testing.assert_array_equal(wide, np.hstack([half, np.zeros((7, 2))]))
    else:
        assert new.implicit is None


@FORMS
@pytest.mark.parametrize("factors", [[0, 2], [2, 0], [1]])
def test_keeping(kind, intercept, implicit, factors):
    """Rows and columns of V in the order asked for; dropping added factors gives back what was
    there.
    """
    old = some_posterior(kind, intercept, implicit)
    factors = np.array(factors)
    new = old.with_only(factors)
    kept = np.concatenate([np.arange(int(intercept)), factors + intercept])
    assert new.location.flags.c_contiguous
    assert new.scale.flags.c_contiguous
    np.testing.assert_array_equal(new.location, old.location[:, kept])
    np.testing.assert_array_equal(new.covariance, old.covariance[:, kept][:, :, kept])
    if implicit:
        for half, wide in zip(
            np.split(new.implicit, 6, axis=1), np.split(old.implicit, 6, axis=1), strict=True
        ):
            np.testing.assert_array_equal(half, wide[:, factors])
    back = old.with_factors(np.ones((7, 2)), 1.0).with_only(np.arange(3))
    np.testing.assert_array_equal(back.packed(), old.packed())


def test_scales_of_other_factors():
    rng = np.random.default_rng(3)
    implicit = {side: rng.random((2, 3)) for side in ("row_implicit", "col_implicit")}
    # Of three vectors each
    grams = {side: rng.random((9, 9)) for side in ("row_coef_gram", "col_coef_gram")}
    moments = Moments(rng.random(3), 0.5, 0.7, 9, 8, **grams, **implicit, ratings=44.0)
    features = {"rows": rng.random((5, 4))}
    scales = HyperPosterior(PRIOR, PRIOR, rng.random(3), 2.0, 3.0, 0.1, 0.2, moments, features)
    new = scales.of_factors(np.array([2, -1, 0]))
    np.testing.assert_array_equal(new.factor, [scales.factor[2], 1.0, scales.factor[0]])
    np.testing.assert_array_equal(new.moments.factor, [moments.factor[2], 0.0, moments.factor[0]])
    for name, gram in grams.items():
        expected = np.zeros((9, 9))
        there = [0, 2, 3, 5, 6, 8]
        here = [2, 0, 5, 3, 8, 6]
        expected[np.ix_(there, there)] = gram[np.ix_(here, here)]
        np.testing.assert_array_equal(getattr(new.moments, name), expected)
    for name, lines in implicit.items():
        np.testing.assert_array_equal(
            getattr(new.moments, name), np.stack([lines[:, 2], [0, 0], lines[:, 0]], axis=1)
        )
    weights = features["rows"]
    # The intercept stays first
    expected = np.stack([weights[:, 0], weights[:, 3], np.zeros(5), weights[:, 1]], axis=1)
    np.testing.assert_array_equal(new.features["rows"], expected)
    for name in ("row_intercept", "col_intercept", "mean", "mean_variance"):
        assert getattr(new, name) == getattr(scales, name)
    assert (new.moments.rows, new.moments.cols, new.moments.ratings) == (9, 8, 44.0)
    assert HyperPosterior(PRIOR, None, np.ones(2)).of_factors(np.array([0, 1, -1])).moments is None


# ---- new factors from what is not yet explained ------------------------------------------------


def rank_two_engine(weighted=False, **choices):
    """An engine after some iterations at rank 2 on labels of rank 5."""
    rows, cols, labels = simulated("B1", rank=5, shape=SMALL, fraction=0.6, seed=4)
    weights = (
        np.random.default_rng(0).gamma(2.0, 0.5, len(rows)).astype(np.float32) if weighted else None
    )
    state = local_state(
        RatingBlock.from_coordinates(rows, cols, labels > 0, SMALL, weights), threads=2
    )
    config = FitConfig(rank=2, likelihood_weight=1.0, max_iter=8, tol=0, **choices)
    solve(state, config)
    return (
        state,
        config,
        (rows, cols, labels.astype(float), np.ones(len(rows)) if weights is None else weights),
    )


def scores_of(engine_or_posteriors):
    """E[b_i] + E[d_j] + E[L_i]·E[R_j] of all cells."""
    left, right = (engine_or_posteriors[side] for side in SIDES)
    scores = left.mean.astype(float) @ right.mean.T.astype(float)
    return (
        scores + left.intercept[:, None] + right.intercept[None, :]
        if left.has_intercept
        else scores
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "choices", [{}, {"intercepts": False, "implicit_features": False}], ids=["default", "plain"]
)
def test_new_factors_are_singular_vectors_of_the_residuals(weighted, choices, monkeypatch):
    """ΔL ΔRᵀ ∝ D_r^{−½} U F Σ Vᵀ D_c^{−½} of D_r^{−½} E D_c^{−½}, E_ij = Σ w y σ(−y u); Σ
    w·residual·Δu = .003 Σ w.
    """
    # The whole space: no error but rounding
    monkeypatch.setattr("onebit_spark.core.spectral.OVERSAMPLING", 87)
    state, config, (rows, cols, labels, weights) = rank_two_engine(weighted, **choices)
    before = {side: state.posterior(side) for side in SIDES}
    residuals = weights * labels / (1 + np.exp(labels * scores_of(before)[rows, cols]))
    matrix = np.zeros(SMALL)
    roots = []
    np.add.at(matrix, (rows, cols), residuals)
    for index, size in zip((rows, cols), SMALL, strict=True):
        roots.append(np.bincount(index, weights, size) ** -0.5)
    u, sigma, vt = np.linalg.svd(roots[0][:, None] * matrix * roots[1][None, :])
    shrinkage = (1 - sigma[min(3 + 87, 90) - 1] ** 2 / sigma[:3] ** 2) ** 2
    low_rank = (roots[0][:, None] * u[:, :3] * (shrinkage * sigma[:3])) @ (
        roots[1][:, None] * vt[:3].T
    ).T
    expected = GROWN_MARGIN * weights.sum() * low_rank / np.sum(residuals * low_rank[rows, cols])

    wider = FitConfig(rank=5, **choices)
    grown = state.grow(wider, loss_of(wider))
    added = grown["rows"].mean[:, 2:].astype(float) @ grown["cols"].mean[:, 2:].T.astype(float)
    assert np.linalg.norm(added - expected) < 1e-3 * np.linalg.norm(expected)
    for side in SIDES:
        kept = grown[side].with_only(np.arange(2))
        np.testing.assert_array_equal(kept.packed(), before[side].packed())
        np.testing.assert_allclose(grown[side].spread[:, 2:], loss_of(config).start_std, rtol=1e-6)
        assert grown[side].form == form_of(wider)


def test_growth_hardly_changes_a_score():
    """And it lowers the loss of the ratings: the new factors point where the likelihood rises."""
    state, _, (rows, cols, labels, _) = rank_two_engine()
    before = {side: state.posterior(side) for side in SIDES}
    wider = FitConfig(rank=4)
    grown = state.grow(wider, loss_of(wider))
    old = scores_of(before)
    new = scores_of(grown)
    assert 0 < np.abs(new - old).max() < 0.2
    losses = [np.mean(np.logaddexp(0, -labels * scores[rows, cols])) for scores in (old, new)]
    assert losses[1] < losses[0] - 0.5 * GROWN_MARGIN


def test_the_objective_falls_from_the_grown_state():
    """After the first iteration: the grown state itself has factors of the start's spread, with γ
    of no ratings.
    """
    state, config, _ = rank_two_engine(implicit_features=False)
    hierarchy = solve(state, config).hierarchy
    wider = FitConfig(rank=4, likelihood_weight=1.0, max_iter=8, tol=0, implicit_features=False)
    scales = hierarchy.of_factors(np.array([0, 1, -1, -1]))
    start = Start(state.grow(wider, loss_of(wider)), scales, earlier=8)
    history = [step.objective for step in solve(state, wider, start=start).history]
    assert np.all(np.diff(history) < 0)
