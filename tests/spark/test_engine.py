"""The broadcast engine against the in-process fit: the same numbers, one job per half step, nothing left behind."""

import os
import warnings

import numpy as np
import pytest
from pyspark.sql import functions as F

from onebit_spark import FitConfig, FitFailed, NotConverged, RequestError, fit_arrays
from onebit_spark.engines.block_frames import default_blocks, default_tasks, multiple_of, placement_by_counts
from onebit_spark.engines.spark_engine import on_executors
from onebit_spark.engines.tables import InFiles
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input.ratings import Columns
from onebit_spark.input.survey import survey_ratings
from onebit_spark.platform.files import Location
from onebit_spark.simulate import simulate

pytestmark = pytest.mark.classic

ITERATIONS = 15  # DESIGN.md: tolerances after 15 iterations at tol = 0
SCORE_TOLERANCE = {"logistic": 1e-5, "hinge": 1e-3}


@pytest.fixture(scope="module")
def data():
    return simulate("B2", rank=3, shape=(60, 45), fraction=0.4, seed=3)


@pytest.fixture(scope="module")
def ratings(spark, data):
    cached = frame(spark, data).cache()
    cached.count()  # so that it is there before the first fit
    return cached


def frame(spark, data, name="{}"):
    """Ratings with ids that sort differently as text and as numbers."""
    lines = [
        (name.format(int(i)), name.format(int(j)), int(y))
        for i, j, y in zip(data.rows, data.cols, data.labels, strict=True)
    ]
    return spark.createDataFrame(lines, "user string, item string, label int")


def estimator(**params):
    defaults = {"rank": 4, "maxIter": ITERATIONS, "tol": 0.0, "exchange": "broadcast"}
    return OneBitCompletion(**{**defaults, **params})


def in_process(data, **config):
    defaults = {"rank": 4, "max_iter": ITERATIONS, "tol": 0.0}
    return fit_arrays(data.rows, data.cols, data.labels, FitConfig(**{**defaults, **config}))


def scores(model, pairs):
    """Score matrix of all pairs by id."""
    out = model.transform(pairs).select("user", "item", "score").toPandas()
    return out.set_index(["user", "item"])["score"].sort_index()


def assert_same(model, fit, data, spark, loss):
    objective = np.array(model.summary.objectiveHistory)
    np.testing.assert_allclose(objective, fit.objective_history, rtol=1e-6)
    pairs = frame(spark, data).select("user", "item").distinct()
    found = scores(model, pairs)
    rows = found.index.get_level_values("user").astype(int)
    cols = found.index.get_level_values("item").astype(int)
    expected = fit.score(rows.to_numpy(), cols.to_numpy())
    assert np.max(np.abs(found.to_numpy() - expected)) <= SCORE_TOLERANCE[loss] * np.max(np.abs(expected))


# Half of the grid, each value with each loss; the other half is slow.
@pytest.mark.parametrize(
    ("loss", "prior", "intercepts"),
    [
        ("logistic", "inverse-gamma", True),
        ("logistic", "gamma", False),
        ("hinge", "inverse-gamma", False),
        ("hinge", "gamma", True),
        pytest.param("logistic", "inverse-gamma", False, marks=pytest.mark.slow),
        pytest.param("logistic", "gamma", True, marks=pytest.mark.slow),
        pytest.param("hinge", "inverse-gamma", True, marks=pytest.mark.slow),
        pytest.param("hinge", "gamma", False, marks=pytest.mark.slow),
    ],
)
def test_equals_the_in_process_fit(spark, ratings, data, loss, prior, intercepts):
    """All 15 iterations for the default of each loss, 4 for the rest of the grid."""
    iterations = ITERATIONS if intercepts and prior == "inverse-gamma" else 4
    shared = {"loss": loss, "prior": prior}
    parallel = estimator(**shared, fitIntercept=intercepts, maxIter=iterations, numUserBlocks=3, numItemBlocks=2)
    expected = in_process(data, **shared, intercepts=intercepts, max_iter=iterations)
    assert_same(parallel.fit(ratings), expected, data, spark, loss)


@pytest.mark.parametrize("loss", ["logistic", pytest.param("hinge", marks=pytest.mark.slow)])
@pytest.mark.parametrize("blocks", [pytest.param((1, 1), marks=pytest.mark.slow), (8, 8)])
def test_block_counts_are_irrelevant(spark, ratings, data, loss, blocks):
    model = estimator(loss=loss, maxIter=3, numUserBlocks=blocks[0], numItemBlocks=blocks[1]).fit(ratings)
    fit = in_process(data, loss=loss, max_iter=3)
    assert_same(model, fit, data, spark, loss)
    # Nor do factors change their order or their signs.
    found = {int(line["id"]): line["features"] for line in model.userFactors.collect()}
    factors = np.array([found[i] for i in range(len(found))])
    np.testing.assert_allclose(factors, fit.rows.mean, atol=10 * SCORE_TOLERANCE[loss] * np.abs(fit.rows.mean).max())


def test_more_blocks_than_rows(spark):
    small = simulate("B1", rank=1, shape=(5, 4), fraction=0.9, seed=1)
    model = estimator(rank=2, maxIter=2, numUserBlocks=7, numItemBlocks=6).fit(frame(spark, small))
    assert_same(model, in_process(small, rank=2, max_iter=2), small, spark, "logistic")


def test_diagonal_covariance_and_gradient(spark, ratings, data):
    diagonal = estimator(covariance="diagonal", maxIter=2).fit(ratings)
    assert_same(diagonal, in_process(data, covariance="diagonal", max_iter=2), data, spark, "logistic")
    gradient = estimator(loss="hinge", solver="gradient", maxIter=2).fit(ratings)
    assert_same(gradient, in_process(data, loss="hinge", solver="gradient", max_iter=2), data, spark, "hinge")


def test_order_and_partitioning_of_the_input_are_irrelevant_to_the_bit(ratings):
    """Same layout, same ids: the blocks are the same, so is every number."""
    first = estimator(maxIter=1, numUserBlocks=2, numItemBlocks=2).fit(ratings)
    for shuffled in (ratings.orderBy(F.rand(1)), ratings.repartition(7)):
        again = estimator(maxIter=1, numUserBlocks=2, numItemBlocks=2).fit(shuffled)
        assert again.summary.objectiveHistory == first.summary.objectiveHistory
        assert again.userFactors.orderBy("id").collect() == first.userFactors.orderBy("id").collect()


def jobs_run(spark):
    """Ids of all jobs that this application's listener still knows; new ones are larger."""
    tracker = spark.sparkContext.statusTracker()
    return set(tracker.getJobIdsForGroup())


def persisted(spark):
    return spark.sparkContext._jsc.getPersistentRDDs().size()


def test_one_job_a_half_step(spark, ratings):
    """Three more iterations of two half steps each: exactly six more jobs."""
    before = jobs_run(spark)
    estimator(maxIter=1).fit(ratings)
    short = len(jobs_run(spark) - before)
    before = jobs_run(spark)
    estimator(maxIter=4).fit(ratings)
    assert len(jobs_run(spark) - before) - short == 6


def test_nothing_stays_cached_or_broadcast(spark, ratings, monkeypatch):
    context = spark.sparkContext
    made = []
    original = context.broadcast

    def recorded(value):
        made.append(original(value))
        return made[-1]

    monkeypatch.setattr(context, "broadcast", recorded)
    before = persisted(spark)
    estimator(maxIter=1).fit(ratings)
    assert persisted(spark) == before
    assert made
    assert all(not broadcast._jbroadcast.isValid() for broadcast in made)

    made.clear()
    monkeypatch.setattr(
        "onebit_spark.core.hyper_posterior.update_scales", lambda *_: (_ for _ in ()).throw(RuntimeError("boom"))
    )
    with pytest.raises(RuntimeError, match="boom"):
        estimator(maxIter=1).fit(ratings)
    assert persisted(spark) == before
    assert made
    assert all(not broadcast._jbroadcast.isValid() for broadcast in made)


def test_the_session_is_left_as_it_was(spark, ratings):
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "mine")
    settings = dict(spark.conf.getAll)
    estimator(maxIter=1).fit(ratings)
    assert context.getLocalProperty("spark.job.description") == "mine"
    assert dict(spark.conf.getAll) == settings
    context.setLocalProperty("spark.job.description", None)


@pytest.mark.parametrize("exchange", ["broadcast", pytest.param("shuffle", marks=pytest.mark.slow)])
def test_a_nondeterministic_source_is_read_once(spark, ratings, exchange, tmp_path):
    """A sample drawn anew whenever the source is read is fitted as it was read. If that is lost, it is noticed."""

    def flicker(batches):
        for batch in batches:
            keep = np.frombuffer(os.urandom(batch.num_rows), np.uint8) > 25
            yield batch.filter(keep.tolist())

    source = ratings.repartition(2).mapInArrow(flicker, ratings.schema)
    model = estimator(exchange=exchange, maxIter=1).fit(source)
    assert 0 < model.info.n_ratings < ratings.count()
    with survey_ratings(source, Columns()) as counted:
        counted.packed.cached.unpersist()  # as if the executors that hold it were lost
        held = frozenset(["rows", "cols"] if exchange == "broadcast" else [])
        place = InFiles(Location(spark, str(tmp_path / "work")))
        engine = on_executors(spark, counted, (2, 2), FitConfig(rank=2).form, place, held)
        with pytest.raises(FitFailed, match="not deterministic"):
            engine.__enter__()


def test_both_labels_of_a_cell_count(spark):
    lines = [("u", "i", 1), ("u", "i", -1), ("u", "i", 1), ("v", "i", -1), ("v", "j", 1)]
    model = estimator(rank=1, maxIter=1).fit(spark.createDataFrame(lines, "user string, item string, label int"))
    assert model.info.n_ratings == 5
    assert model.info.repeats == {"repeated_cells": 1, "repeated": 2, "conflicting": 1}


def test_max_result_size_is_respected(spark, ratings, monkeypatch):
    monkeypatch.setattr("onebit_spark.platform.sessions.as_bytes", lambda _: 1000)
    with pytest.raises(RequestError, match=r"maxResultSize.*choose exchange=auto"):
        estimator(exchange="broadcast").fit(ratings)


def test_unconverged_fits_warn(ratings):
    with pytest.warns(NotConverged, match="max_iter"):
        estimator(tol=1e-9, maxIter=1, exchange="driver").fit(ratings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotConverged)
        assert estimator(tol=1e-2, maxIter=50, exchange="driver").fit(ratings).summary.converged


def test_parameters_are_checked_before_any_job(spark, ratings):
    before = jobs_run(spark)
    with pytest.raises(RequestError, match=r"loss must be one of.*rank must be an integer.*numUserBlocks must be"):
        estimator(loss="huber", rank=0, numUserBlocks=0).fit(ratings)
    assert jobs_run(spark) == before


class TestLayout:
    def test_heavy_rows_are_spread(self):
        counts = np.array([1000, 900, 800, 700] + [1] * 400)
        block_of = placement_by_counts(counts, 4).of(np.arange(len(counts)))
        assert sorted(block_of[:4].tolist()) == [0, 1, 2, 3]
        load = np.bincount(block_of, weights=counts)
        assert load.max() < 1.3 * load.mean()

    def test_every_row_has_one_block(self):
        placement = placement_by_counts(np.random.default_rng(0).integers(1, 50, 333), 7)
        assert sorted(np.concatenate(placement.rows_of(333)).tolist()) == list(range(333))

    def test_default_blocks(self):
        assert default_blocks(n_ratings=10, n_rows=1000, cores=2) == 2
        assert default_blocks(n_ratings=10**9, n_rows=10**6, cores=2) == 125
        assert default_blocks(n_ratings=10**9, n_rows=3, cores=8) == 3
        assert [multiple_of(4, n) for n in (1, 4, 5)] == [4, 4, 8]

    def test_default_tasks(self):
        """As many for each core, of a few blocks, and never an idle one where there are blocks for all."""
        assert default_tasks(n_blocks=50, cores=2) == 14
        assert default_tasks(n_blocks=500, cores=64) == 128
        assert default_tasks(n_blocks=2, cores=2) == 2
        assert default_tasks(n_blocks=3, cores=8) == 3
