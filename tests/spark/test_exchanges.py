"""The engine's contract over every exchange: the fit of this process, whatever the blocks, with
nothing left behind.

All other tests fit on the driver or in process. ``test_executors.py`` has what belongs to one
exchange alone, and ``test_engine_contract_on_spark.py`` the single steps.
"""

import functools
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from support.sparkfits import Interrupted, assert_same_bits, estimator, interrupt_after

from onebit_spark import FitConfig, FitFailed, Terms, fit_arrays
from onebit_spark.core import model_selection
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.randomness import Draws, Split
from onebit_spark.core.setup import factor_prior, form_of, intercept_prior, loss_of
from onebit_spark.core.solver import Iteration
from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark.blocking import Storage
from onebit_spark.engines.spark.engine import executor_state
from onebit_spark.engines.spark.sessions import is_connect
from onebit_spark.engines.spark.survey import survey_ratings
from onebit_spark.engines.threads import local_state

EXCHANGES = ("driver", "broadcast", "mixed", "shuffle")
SHAPE = (70, 40)
SCORE_TOLERANCE = {"logistic": 1e-5, "hinge": 1e-3}  # of the largest score, after 15 iterations
PARAMS = {
    "intercepts": "fitIntercept",
    "max_iter": "maxIter",
    "max_rank": "maxRank",
    "implicit_features": "implicitFeatures",
    "likelihood_weight": "likelihoodWeight",
}

CHOSEN = {"rank": "auto", "max_rank": 4, "likelihood_weight": "auto", "seed": 1}  # by the data
CASES = {  # settings of a fit
    "default": {"max_iter": 2},
    "one iteration": {"implicit_features": False, "max_iter": 1},
    "15 iterations": {"max_iter": 15},
    "hinge, 15 iterations": {"loss": "hinge", "max_iter": 15},
    "hinge, gamma": {
        "loss": "hinge",
        "prior": "gamma",
        "intercepts": False,
        "implicit_features": False,
    },
    "logistic, no intercepts": {"intercepts": False},
    "gradient": {"loss": "hinge", "solver": "gradient", "max_iter": 2},
    "rank 50": {"intercepts": False, "rank": 50, "max_iter": 2},
    "weights and features": {"weighted": True, "features": True, "max_iter": 2},
    "diagonal, weighted": {"covariance": "diagonal", "weighted": True, "max_iter": 2},
    "chosen": {**CHOSEN, "max_iter": 8},
    "chosen, weights and features": {**CHOSEN, "weighted": True, "features": True, "max_iter": 8},
}
# On the driver runs the engine of this process: only what reaches it differs. ``mixed`` sends the
# factors of one side as ``broadcast`` does, and those of the other as ``shuffle``. The rest is
# slow.
BY_DEFAULT = {
    "driver": ("hinge, gamma", "weights and features", "one iteration", "chosen"),
    "broadcast": ("weights and features", "one iteration"),
    "mixed": (),
    "shuffle": ("one iteration",),
}

SLOW = pytest.mark.slow
PARAMETERS = [
    pytest.param(exchange, case, marks=() if case in BY_DEFAULT[exchange] else SLOW)
    for exchange in EXCHANGES
    for case in (BY_DEFAULT[exchange] if exchange == "driver" else CASES)
]


@pytest.fixture(scope="module")
def features():
    """Two for each user, one for each item, and a line more than there are ids."""
    rng = np.random.default_rng(0)
    return {"rows": rng.normal(size=(SHAPE[0] + 1, 2)), "cols": rng.normal(size=(SHAPE[1] + 1, 1))}


@pytest.fixture(scope="module")
def tables(spark, features):
    users = pa.table(
        {
            "user": [f"u{i:03}" for i in range(SHAPE[0] + 1)],
            **dict(zip("ab", features["rows"].T, strict=True)),
        }
    )
    items = pa.table({"item": np.arange(SHAPE[1] + 1), "year": features["cols"][:, 0]})
    return [spark.createDataFrame(table).orderBy(F.rand(1)) for table in (users, items)]


def split_case(case):
    """The settings of a fit, and whether it has weights and features."""
    settings = {"rank": 3, "likelihood_weight": 1.0, "max_iter": 4, "tol": 0.0, **CASES[case]}
    return settings, *(settings.pop(name, None) for name in ("weighted", "features"))


@pytest.fixture(scope="module")
def in_process(data, weights, features):
    """The fit of a case in this process, which all exchanges are compared with."""
    fits = {}

    def fit(case):
        if case not in fits:
            settings, weighted, featured = split_case(case)
            more = {"weights": weights} if weighted else {}
            if featured:
                more |= {
                    "row_features": features["rows"][:-1],
                    "col_features": features["cols"][:-1],
                }
            fits[case] = fit_arrays(*data, FitConfig(**settings), SHAPE, certify=Terms(), **more)
        return fits[case]

    return fit


def on_spark(case, exchange, ratings, tables, **blocks):
    settings, weighted, featured = split_case(case)
    params = {PARAMS.get(name, name): value for name, value in settings.items()}
    completion = estimator(exchange, **params, **blocks)
    if weighted:
        completion.setWeightCol("w")
    if featured:
        completion.setUserFeatures(tables[0]).setItemFeatures(tables[1])
    return completion.fit(ratings)


def location(frame, rated):
    """[intercept, mean] of every id that has ratings, in the order of the ids."""
    table = frame.toArrow().sort_by("id")
    mean = np.stack(table["mean"].to_numpy())
    first = [table["intercept"].to_numpy()] if "intercept" in table.column_names else []
    return np.column_stack([*first, mean])[:rated]


def assert_same_fit(model, fit, exact=False):
    """Objectives, scores of all pairs, factors in their order and with their signs, and all that
    the model reports.
    """
    tolerance = SCORE_TOLERANCE[fit.config.loss]
    np.testing.assert_allclose(model.info.objective_history, fit.objective_history, rtol=1e-6)
    expected = {"rows": fit.rows.location, "cols": fit.cols.location}
    assert tuple(map(len, expected.values())) == SHAPE  # all of them have ratings
    found = {
        side: location(frame, len(expected[side]))
        for side, frame in (("rows", model.users), ("cols", model.items))
    }
    scores, wanted = (all_scores(each, fit.config.intercepts) for each in (found, expected))
    assert np.max(np.abs(scores - wanted)) <= tolerance * np.max(np.abs(wanted))
    for side, values in expected.items():
        np.testing.assert_allclose(found[side], values, atol=10 * tolerance * np.abs(values).max())
    for who, column in (("user", "userCol"), ("item", "itemCol")):
        there = model.positions(who).toArrow().sort_by(model.getOrDefault(column))
        for name in fit.positions(who).column_names[1:]:
            here = fit.positions(who)[name].to_numpy()
            np.testing.assert_allclose(
                there[name].to_numpy()[: len(here)], here, atol=10 * tolerance * np.abs(here).max()
            )
    assert model.info.effective_rank == fit.effective_rank
    for item, other in zip(model.certificate["certificates"], fit.certificates, strict=True):
        assert (item["name"], item["n"]) == (other.name, other.n)
        assert item["bound"] == pytest.approx(other.bound, rel=1e-3)
        assert item["kl"] == pytest.approx(other.inputs["kl"], rel=1e-3, abs=1e-4)
    if exact:
        assert model.info.objective_history == fit.objective_history
        for side, values in expected.items():
            np.testing.assert_array_equal(found[side], values)


def all_scores(sides, intercepts):
    rows = sides["rows"]
    cols = sides["cols"]
    return rows[:, :1] + cols[:, 0] + rows[:, 1:] @ cols[:, 1:].T if intercepts else rows @ cols.T


@pytest.fixture
def left_as_it_was(spark, ratings, monkeypatch):
    """The session has its settings, caches, views and descriptions afterwards, and no broadcast is
    left.
    """
    if is_connect(spark):
        before = dict(spark.conf.getAll)
        yield
        assert not [
            table.name for table in spark.catalog.listTables() if table.name.startswith("onebit_")
        ]
        assert dict(spark.conf.getAll) == before
        return
    context = spark.sparkContext
    sent = []
    send = context.broadcast
    monkeypatch.setattr(context, "broadcast", lambda value: sent.append(send(value)) or sent[-1])
    context.setLocalProperty("spark.job.description", "mine")
    before = dict(spark.conf.getAll)
    cached = set(context._jsc.getPersistentRDDs())
    yield
    assert set(context._jsc.getPersistentRDDs()) <= cached
    assert dict(spark.conf.getAll) == before
    assert not [each for each in sent if each._jbroadcast.isValid()]
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setLocalProperty("spark.job.description", None)


# ---- the same fit ------------------------------------------------------------------------------


@pytest.mark.usefixtures("left_as_it_was", "quick_search")
@pytest.mark.parametrize(("exchange", "case"), PARAMETERS)
def test_the_fit_is_that_of_this_process(ratings, tables, in_process, exchange, case):
    """To the bit on the driver."""
    model = on_spark(case, exchange, ratings, tables)
    fit = in_process(case)
    assert_same_fit(model, fit, exact=exchange == "driver" and "features" not in case)
    assert model.info.exchange["exchange"] == exchange
    for who, side in (("user", "rows"), ("item", "cols")):
        if "features" in case:
            learnt = np.array(model.info.side_features[who]["weights"])
            np.testing.assert_allclose(learnt, fit.scales.features[side], rtol=1e-3, atol=1e-4)
    if case == "chosen":
        steps, wanted = (info.choice["trail"] for info in (model.info, fit.info))
        assert [step for step in steps if step["share"] < 1] == [
            step for step in wanted if step["share"] < 1
        ]
        assert {step["rank"] for step in steps} == {2, 4}  # the search went through a growth
        figures = ("loss", "standard_error")
        assert [step.keys() for step in steps] == [step.keys() for step in wanted]
        for name in wanted[0]:
            values = [step[name] for step in wanted]
            assert [step[name] for step in steps] == (
                pytest.approx(values, rel=1e-5) if name in figures else values
            )
        assert (model.info.choice["planned"], model.info.reason) == (
            fit.info.choice["planned"],
            fit.info.reason,
        )


@SLOW
@pytest.mark.parametrize(
    ("exchange", "blocks"), [("broadcast", (8, 8)), ("shuffle", (1, 1)), ("shuffle", (90, 1))]
)
def test_block_counts_are_irrelevant(ratings, tables, in_process, exchange, blocks):
    numbers = dict(zip(("numUserBlocks", "numItemBlocks"), blocks, strict=True))
    case = "logistic, no intercepts"
    assert_same_fit(on_spark(case, exchange, ratings, tables, **numbers), in_process(case))


@pytest.fixture(scope="module")
def quick_fit(ratings):
    """A fit of one iteration on an exchange."""
    return functools.cache(lambda exchange: estimator(exchange, maxIter=1).fit(ratings))


@pytest.mark.classic
def test_all_that_a_model_reports_is_the_same(quick_fit):
    """What is counted and hashed on the driver, and on executors."""
    found, expected = map(quick_fit, ("driver", "broadcast"))
    for name in (
        "n_ratings",
        "n_users",
        "n_items",
        "n_positive",
        "fingerprint",
        "repeats",
        "label_coding",
        "id_types",
    ):
        assert getattr(found.info, name) == getattr(expected.info, name), name
    assert found.info.repeats["repeated"] > 0
    np.testing.assert_array_equal(found.fitted.hashes, expected.fitted.hashes)
    np.testing.assert_array_equal(found.fitted.ratings, expected.fitted.ratings)


@pytest.mark.parametrize(
    "exchange", ["broadcast", *(pytest.param(each, marks=SLOW) for each in ("mixed", "shuffle"))]
)
def test_the_order_of_the_input_is_irrelevant_to_the_bit(ratings, quick_fit, exchange):
    """Same layout, same ids: the blocks are the same, so is every number. ``test_driver.py`` has
    the driver.
    """
    # Most of the partitions are empty
    arranged = ratings.orderBy(F.rand(1)).repartition(20, "label")
    assert_same_bits(estimator(exchange, maxIter=1).fit(arranged), quick_fit(exchange))


@SLOW
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.usefixtures("left_as_it_was", "quick_search")
def test_an_interrupted_fit_ends_at_the_same_bits(ratings, tmp_path, exchange):
    """Interrupted in iteration 3, after the checkpoint of iteration 2; settings are chosen by the
    data.
    """
    shared = {
        "rank": "auto",
        "maxRank": 4,
        "maxIter": 4,
        "checkpointInterval": 2,
        "likelihoodWeight": "auto",
    }
    whole = estimator(exchange, checkpointDir=str(tmp_path / "whole"), **shared).fit(ratings)
    kept = tmp_path / "kept"
    with pytest.raises(Interrupted):
        estimator(exchange, checkpointDir=str(kept), **shared).setProgress(interrupt_after(3)).fit(
            ratings
        )
    assert [place.name for place in kept.iterdir()] == ["iteration-000002"]
    resumed = estimator(exchange, checkpointDir=str(kept), resume=True, **shared).fit(ratings)
    assert_same_bits(resumed, whole)
    for name in ("parameters", "choice", "calibration", "converged", "reason"):
        assert json.dumps(getattr(resumed.info, name)) == json.dumps(getattr(whole.info, name)), (
            name
        )


@SLOW
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("driver_ratings", [None, 0])
@pytest.mark.usefixtures("left_as_it_was", "quick_search")
def test_a_fit_that_was_interrupted_after_a_slice_ends_at_the_same_bits(
    ratings, tmp_path, monkeypatch, exchange, driver_ratings
):
    """Two slices; interrupted on the second one. The driver searches them, or the executors."""
    monkeypatch.setattr(model_selection, "FEWEST_IN_SLICE", 90)
    monkeypatch.setattr(model_selection, "FEWEST_RATINGS", 50)
    shared = {
        "rank": "auto",
        "maxRank": 4,
        "maxIter": 4,
        "likelihoodWeight": "auto",
        "driverRatings": driver_ratings,
    }
    whole = estimator(exchange, checkpointDir=str(tmp_path / "whole"), **shared).fit(ratings)
    with monkeypatch.context() as patched:
        patched.setattr(
            model_selection._Search,
            "_continued",
            lambda *_: interrupt_after(1)(Iteration(*[1] * 6)),
        )
        with pytest.raises(Interrupted):
            estimator(exchange, checkpointDir=str(tmp_path / "kept"), **shared).fit(ratings)
    resumed = estimator(exchange, checkpointDir=str(tmp_path / "kept"), resume=True, **shared).fit(
        ratings
    )
    assert {step["share"] for step in whole.info.choice["trail"]} == {1 / 16, 1 / 4, 1}
    assert_same_bits(resumed, whole)
    assert resumed.info.choice == whole.info.choice


@pytest.mark.classic
@SLOW
def test_a_warm_start_keeps_old_ids_and_gives_new_ones_the_prior(ratings):
    """From the same state, the exchanges on executors give the same bits."""
    first = estimator("driver").fit(ratings.where("user != 'u003'"))
    driver, *others = (
        estimator(each, maxIter=1).setInitialModel(first).fit(ratings) for each in EXCHANGES
    )
    for model in others[1:]:
        assert_same_bits(model, others[0])
    np.testing.assert_allclose(
        driver.info.objective_history, others[0].info.objective_history, rtol=1e-6
    )


@pytest.mark.classic
@SLOW
@pytest.mark.parametrize("many", ["user", "item"])
def test_a_split_may_empty_a_block(spark, many):
    """Twelve ids have one rating and one block each, so a split leaves some blocks nothing."""
    few = "item" if many == "user" else "user"
    frame = spark.createDataFrame(
        [(i, i % 3, i % 2) for i in range(12)], f"{many} int, {few} int, label int"
    )
    params = {"likelihoodWeight": "auto", "numUserBlocks": 12, "numItemBlocks": 12}
    expected = estimator("driver", **params).fit(frame)
    for exchange in ("mixed", "shuffle"):
        found = estimator(exchange, **params).fit(frame)
        assert found.info.parameters == expected.info.parameters
        np.testing.assert_allclose(
            found.info.objective_history, expected.info.objective_history, rtol=1e-6
        )


# ---- what is asked of an engine after a fit ----------------------------------------------------


@pytest.mark.classic
@pytest.mark.parametrize("blocks", [(3, 2), pytest.param((1, 1), marks=SLOW)])
def test_the_same_draws_coins_and_confidences_as_in_process(spark, ratings, data, blocks):
    """With the same posteriors every draw, coin and confidence agrees exactly, so the counts do."""
    split = Split(3, 0.4)
    draws = Draws(4, 20)
    block = RatingBlock.from_coordinates(data[0], data[1], data[2] > 0, SHAPE)
    rated = {side: np.unique(index) for side, index in zip(("rows", "cols"), data[:2], strict=True)}
    with local_state(block, 1).running() as local:
        config = FitConfig(rank=2)
        local.start(config, loss_of(config))
        errors = local.gibbs_errors(draws)
        confidences = local.confidences(local.posteriors, 0.7)
        with local.restricted(split) as part:
            n_chosen = part.engine.n_ratings
            counted = {side: part.engine._block(side).counted_rows for side in rated}
            chosen = {side: (part.engine.counts(side), *rows) for side, rows in counted.items()}
    assert confidences.sum() == len(data[0])
    held = frozenset(["rows", "cols"])
    with (
        survey_ratings(ratings, Columns()) as counted,
        executor_state(spark, counted, blocks, form_of(config), Storage(), held) as state,
    ):
        first, second = (
            {
                side: state.engine.table(side, rows.take(rated[side]))
                for side, rows in local.posteriors.items()
            }
            for _ in range(2)
        )
        state.start_from(first)
        assert state.gibbs_errors(draws) == errors
        for posteriors in (first, second):  # what the executors hold already, and what they do not
            np.testing.assert_array_equal(state.confidences(posteriors, 0.7), confidences)
        with state.restricted(split) as part:
            for side, rows in chosen.items():  # all ratings of each row, and the positive ones
                found = part.engine.counts(side), *part.engine.sides[side].counted_rows
                for counts, expected in zip(found, rows, strict=True):
                    np.testing.assert_array_equal(counts, expected[rated[side]])
            assert part.engine.n_ratings == n_chosen


@pytest.mark.classic
@pytest.mark.parametrize("held", [[], pytest.param(["rows", "cols"], marks=SLOW)], ids=str)
def test_the_driver_takes_the_slice_of_this_process(spark, ratings, data, held):
    """And the executors take over what it learns from it. A larger slice stays with them."""
    block = RatingBlock.from_coordinates(data[0], data[1], data[2] > 0, SHAPE)
    config = FitConfig(rank=2)
    hierarchy = HyperPosterior(factor_prior(config, 110), intercept_prior(config), np.ones(2))
    with (
        local_state(block, 1).running() as local,
        survey_ratings(ratings, Columns()) as counted,
        executor_state(
            spark,
            counted,
            (3, 2),
            form_of(config),
            Storage(),
            frozenset(held),
            lambda n, ids: n < 900,
        ) as state,
    ):
        for side in ("cols", "rows"):
            with (
                local.restricted(Split(3, 0.5, side)) as here,
                state.restricted(Split(3, 0.5, side)) as there,
            ):
                for each, numbers in here.engine.numbers.items():
                    np.testing.assert_array_equal(there.engine.numbers[each], numbers)
                    found = there.engine.ratings[each]
                    expected = here.engine.ratings[each]
                    np.testing.assert_array_equal(found.row_pointers, expected.row_pointers)
                    np.testing.assert_array_equal(found.codes, expected.codes)
        with state.restricted(Split(3, 0.7, "rows")) as large:
            assert large.engine.numbers is None
        here.start(config, loss_of(config))
        expected, found = (
            each.place(here.posteriors, here.engine.numbers, hierarchy) for each in (local, state)
        )
        losses = [
            each.holdout_loss("logistic", *of, Split(4, 0.5))
            for each, *of in ((local, expected), (state, found))
        ]
        assert losses[1].loss == pytest.approx(losses[0].loss, rel=1e-12)
        for side, rows in state.take(found, here.engine.numbers).items():
            np.testing.assert_array_equal(rows.packed(), here.posteriors[side].packed())


@pytest.mark.classic
@pytest.mark.parametrize("exchange", ["broadcast", pytest.param("shuffle", marks=SLOW)])
def test_a_nondeterministic_source_is_read_once(spark, ratings, exchange):
    """A sample drawn anew whenever the source is read is fitted as it was read.

    If that is lost, the fit ends.
    """

    def flicker(batches):
        for batch in batches:
            yield batch.filter((np.frombuffer(os.urandom(batch.num_rows), np.uint8) > 25).tolist())

    source = ratings.repartition(2).mapInArrow(flicker, ratings.schema)
    assert 0 < estimator(exchange, maxIter=1).fit(source).info.n_ratings < 1500
    with survey_ratings(source, Columns()) as counted:
        counted.packed.cached.unpersist()  # as if the executors that hold it were lost
        held = frozenset(["rows", "cols"] if exchange == "broadcast" else [])
        state = executor_state(spark, counted, (2, 2), form_of(FitConfig(rank=2)), Storage(), held)
        with pytest.raises(FitFailed, match="not deterministic"):
            state.__enter__()
