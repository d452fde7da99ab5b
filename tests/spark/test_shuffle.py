"""exchange=shuffle and mixed: the same fit as by broadcast, from the same start to the bit, and nothing left behind."""

import dataclasses
import gc
import time
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from estimators import estimator_with
from pyspark.sql import functions as F

from onebit_spark import FitFailed, RequestError
from onebit_spark.core.config import FitConfig
from onebit_spark.engines import decide
from onebit_spark.engines.block_frames import placement_by_counts
from onebit_spark.engines.exchange import work_folder
from onebit_spark.engines.numbering import number_ids, placements
from onebit_spark.engines.spark_engine import on_executors
from onebit_spark.engines.steps import total_weight
from onebit_spark.engines.tables import InFiles, OnExecutors
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input.ratings import Columns
from onebit_spark.input.survey import survey_ratings
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location
from onebit_spark.platform.plans import forget, partition_keys, spark_hash
from onebit_spark.platform.sessions import DriverLimits, driver_limits
from onebit_spark.platform.temporary_folders import TemporaryFolders
from onebit_spark.simulate import power_law_ratings

pytestmark = pytest.mark.classic

BLOCKS = {"numUserBlocks": 3, "numItemBlocks": 2}


@pytest.fixture(scope="module")
def ratings(spark):
    """A power law, so that some rows are heavy; text ids on one side."""
    rows, cols, labels = power_law_ratings(70, 40, 1500, seed=2)
    table = pa.table({"user": [f"u{i}" for i in rows], "item": pa.array(cols), "label": pa.array(labels)})
    frame = spark.createDataFrame(table).cache()
    assert frame.count() == 1500
    return frame


def fit(ratings, exchange, **params):
    defaults = {"rank": 3, "maxIter": 2, "tol": 0.0, **BLOCKS}
    return estimator_with(exchange=exchange, **{**defaults, **params}).fit(ratings)


def assert_same_bits(one, other):
    assert one.info.objective_history == other.info.objective_history
    assert one.info.effective_rank == other.info.effective_rank
    assert one.certificate == other.certificate
    assert one.info.confidence_thresholds == other.info.confidence_thresholds
    assert len(one.info.confidence_thresholds.shares) > 1
    for found, expected in ((one.users, other.users), (one.items, other.items)):
        assert found.schema.simpleString() == expected.schema.simpleString()
        lines, others = (sorted(frame.collect(), key=lambda line: line["id"]) for frame in (found, expected))
        assert lines == others


def assert_same_fit(one, other):
    np.testing.assert_allclose(one.info.objective_history, other.info.objective_history, rtol=1e-6)
    pairs = other.users.select(F.col("id").alias("user")).crossJoin(other.items.select(F.col("id").alias("item")))
    scores = [
        np.array([line["score"] for line in model.transform(pairs).orderBy("user", "item").collect()])
        for model in (one, other)
    ]
    assert np.max(np.abs(scores[0] - scores[1])) <= 1e-5 * np.max(np.abs(scores[1]))


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param(
            {"loss": "hinge", "prior": "gamma", "fitIntercept": False, "start": "random"}, marks=pytest.mark.slow
        ),
        pytest.param({"loss": "hinge", "start": "random", "maxIter": 1}, id="hinge"),
        pytest.param(
            {"certificatePriorSplit": 0.5, "start": "random", "maxIter": 1}, id="prior split", marks=pytest.mark.slow
        ),
        pytest.param(
            {"certificatePriorSplit": 0.5, "covariance": "diagonal", "start": "random"}, marks=pytest.mark.slow
        ),
        pytest.param({"loss": "hinge", "certificatePriorSplit": 0.3}, marks=pytest.mark.slow),
        pytest.param({"numUserBlocks": 90, "numItemBlocks": 1}, marks=pytest.mark.slow),
        pytest.param({"fitIntercept": False, "rank": 50}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_shuffle_and_mixed_equal_broadcast(ratings, params):
    """To the bit from a random start. The spectral one sums over blocks, or over all rows at once on the driver."""
    expected = fit(ratings, "broadcast", **params)
    for exchange in ("shuffle", "mixed"):
        found = fit(ratings, exchange, **params)
        (assert_same_bits if params.get("start") == "random" else assert_same_fit)(found, expected)
        # With a prior split the tables hold the spreads of the certified draws too; `sample` adds a seed and the ids.
        assert ("certified_spread" in found.users.columns) is ("certificatePriorSplit" in params)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"certificatePriorSplit": 0.5}, {"likelihoodWeight": "auto"}], ids=str)
@pytest.mark.parametrize("many", ["user", "item"])
def test_a_split_may_empty_a_block(spark, many, params):
    """Twelve ids have one rating and one block each, so a split leaves some blocks nothing."""
    few = "item" if many == "user" else "user"
    lines = [(i, i % 3, i % 2) for i in range(12)]
    frame = spark.createDataFrame(lines, f"{many} int, {few} int, label int")
    params = {"likelihoodWeight": 1.0, "numUserBlocks": 12, "numItemBlocks": 12, **params}
    expected = fit(frame, "driver", **params)
    for exchange in ("shuffle", "mixed"):
        found = fit(frame, exchange, **params)
        assert found.info.parameters == expected.info.parameters
        assert_same_fit(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["shuffle", "mixed"])
def test_a_fit_is_resumed_to_the_bit(spark, ratings, tmp_path, exchange):
    checkpoints = {"checkpointDir": str(tmp_path / "whole"), "checkpointInterval": 2}
    whole = fit(ratings, exchange, maxIter=3, start="random", **checkpoints)

    def interrupt(iteration):
        if iteration.number == 3:
            raise KeyboardInterrupt

    params = {"rank": 3, "maxIter": 3, "tol": 0.0, "start": "random", "exchange": exchange, **BLOCKS}
    params |= checkpoints | {"checkpointDir": str(tmp_path / "kept")}
    with pytest.raises(KeyboardInterrupt):
        OneBitCompletion(**params).setProgress(interrupt).fit(ratings)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["iteration-000002"]  # the work folder is gone
    assert_same_bits(OneBitCompletion(**params, resume=True).fit(ratings), whole)


@pytest.mark.slow
def test_a_warm_start_knows_old_ids_and_gives_new_ones_the_prior(ratings):
    part = ratings.where(F.col("user") != "u3")
    first = fit(part, "broadcast", start="random")
    models = [
        OneBitCompletion(rank=3, maxIter=1, tol=0.0, exchange=exchange, **BLOCKS).setInitialModel(first).fit(ratings)
        for exchange in ("broadcast", "shuffle", "mixed")
    ]
    for model in models[1:]:
        assert_same_bits(model, models[0])


@pytest.mark.slow
def test_mixed_holds_the_side_with_fewer_ids(ratings):
    turned = ratings.select(F.col("item").alias("user"), F.col("user").alias("item"), "label")
    params = {"loss": "hinge", "start": "random", "maxIter": 1, "numUserBlocks": 2, "numItemBlocks": 3}
    assert_same_bits(fit(turned, "mixed", **params), fit(turned, "broadcast", **params))


@pytest.mark.slow
def test_nothing_stays_behind(spark, ratings, tmp_path):
    before = dict(spark.conf.getAll)
    cached = set(spark.sparkContext._jsc.getPersistentRDDs())
    model = fit(ratings, "shuffle", start="random", maxIter=1, work_dir=str(tmp_path))
    left = list(tmp_path.iterdir())
    assert [path.name.endswith("-model") for path in left] == [True]  # the model reads its factors there
    assert model.users.count() == 70
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= cached
    assert dict(spark.conf.getAll) == before
    predictions = model.transform(ratings).select("user", "score")
    del model
    gc.collect()
    TemporaryFolders.of(spark).delete_unread()  # as the next fit does
    assert list(tmp_path.iterdir()) == left  # the model is gone, its predictions are still to be computed
    assert predictions.count() == 1500
    del predictions
    patience = 50
    while list(tmp_path.iterdir()) and patience:  # the JVM hears a little later of what is released here
        gc.collect()
        TemporaryFolders.of(spark).delete_unread()
        time.sleep(0.2)
        patience -= 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_tables_on_the_executors(spark, ratings, tmp_path, monkeypatch):
    """The same fit without a folder. The model outlasts the engine, and its factors are all that remains."""
    before = set(spark.sparkContext._jsc.getPersistentRDDs())
    with monkeypatch.context() as cluster:
        cluster.setattr("onebit_spark.engines.exchange.work_folder", lambda *_: None)
        model = fit(ratings, "shuffle", start="random")
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert len(set(spark.sparkContext._jsc.getPersistentRDDs()) - before) == 2
    assert_same_bits(model, fit(ratings, "shuffle", start="random"))
    model.save(str(tmp_path / "model"))
    assert_same_bits(OneBitCompletionModel.load(str(tmp_path / "model")), model)


def test_a_half_step_does_not_move_ratings(spark, ratings):
    """The cached blocks are read in place: nothing but factor lines passes through an exchange.

    The tables are on the executors. If a part of one is lost, the fit ends.
    """
    config = FitConfig(rank=3, tol=0.0, max_iter=1, start="random")
    with (
        survey_ratings(ratings, Columns()) as counted,
        on_executors(spark, counted, (3, 2), config.form, OnExecutors(), frozenset()) as engine,
    ):
        engine.start(config, config.make_loss())
        own, partners = (engine.posterior(side) for side in ("rows", "cols"))
        made = engine.runner._results("rows", lambda *_: None, (own,), partners)
        plan = made._jdf.queryExecution().executedPlan().toString()
        forget(own.at.frame)
        with pytest.raises(FitFailed, match="an executor was lost"):
            engine.combined("rows", lambda posterior: posterior, engine.posterior("rows"))
        engine.runner.sides["rows"].checksums.clear()
        with pytest.raises(FitFailed, match="computed again and came out different"):
            engine.runner.row_sums("rows", total_weight)
    # The table is sent to the routes of columns, and lines to the blocks of rows, both as the plan asks.
    assert plan.count("ENSURE_REQUIREMENTS") == 0
    assert plan.count("Exchange hashpartitioning(key#") == 2 + plan.count("InMemoryRelation")


def test_mixed_shuffles_factors_of_one_side_only(spark, ratings, tmp_path):
    config = FitConfig(rank=3, tol=0.0, max_iter=1, start="random")
    folder = Location(spark, str(tmp_path / "work"))
    with (
        survey_ratings(ratings, Columns()) as counted,
        on_executors(spark, counted, (3, 2), config.form, InFiles(folder), frozenset(["cols"])) as engine,
    ):
        engine.start(config, config.make_loss())
        users, items = (engine.posterior(side) for side in ("rows", "cols"))
        exchanges = []
        for side, own, partners in (("rows", users, items), ("cols", items, users)):
            made = engine.runner._results(side, lambda *_: None, (own,), partners)
            plan = made._jdf.queryExecution().executedPlan().toString()
            exchanges.append(plan.count("Exchange hashpartitioning(key#") - plan.count("InMemoryRelation"))
    assert exchanges == [1, 2]  # users to their own blocks; then to their routes, and from there to the blocks of items


def test_ids_are_numbered_in_ascending_order(spark, ratings):
    with survey_ratings(ratings.repartition(7), Columns()) as counted, ExitStack() as release:
        survey, n_blocks = counted.rated_ids(), {"rows": 25, "cols": 9}
        numbered = number_ids(counted, release)
        placed = placements(numbered, counted.counts.n, n_blocks)
        for side, ids in survey.ids.items():
            lines = numbered[side].frame.orderBy("number").collect()
            assert [line["id"] for line in lines] == ids.values.to_pylist()
            assert [line["number"] for line in lines] == list(range(len(ids))) == list(range(numbered[side].n_rows))
            settings = (
                frame.sparkSession.conf.get("spark.sql.shuffle.partitions") for frame in (numbered[side].frame, ratings)
            )
            assert len(set(settings)) == 1  # factors are joined with ids there: not in one task
            expected = placement_by_counts(ids.counts, n_blocks[side])
            assert len(placed[side].heavy) > 0
            np.testing.assert_array_equal(placed[side].of(np.arange(len(ids))), expected.of(np.arange(len(ids))))


def test_keys_reach_their_partitions(spark):
    keys = partition_keys(13, 3)
    assert len(set(keys.tolist())) == 39
    frame = spark.createDataFrame([(int(key),) for key in keys], "key int").repartition(13, "key")
    found = {line["key"]: line["part"] for line in frame.select("key", F.spark_partition_id().alias("part")).collect()}
    assert [found[key] for key in keys.tolist()] == [*range(13)] * 3
    hashes = spark.range(5).select(F.hash(F.col("id").cast("int"))).collect()
    assert [line[0] for line in hashes] == spark_hash(np.arange(5, dtype=np.uint32)).tolist()


class TestChoice:
    class Counted:
        def __init__(self, users, items):
            self.n_users, self.n_items = users, items

    def test_by_the_size_of_the_factors(self, spark, monkeypatch):
        form = FitConfig(rank=10).form

        def pick(users, wanted="auto", items=1000):
            return decide.on_executors(wanted, self.Counted(users, items), form, driver_limits(spark), 2)

        assert form.row_bytes == (11 + 66 + 60) * 4
        assert pick(1000).exchange == "broadcast"
        assert "few enough" in pick(1000).reason
        assert pick(10**7).exchange == pick(1000, items=10**7).exchange == "mixed"
        assert "those of the items 1 MB, few enough" in pick(10**7).reason
        assert "those of the users 1 MB, few enough" in pick(1000, items=10**7).reason
        assert pick(10**7, items=10**7).exchange == "shuffle"
        assert "more than" in pick(10**7, items=10**7).reason
        assert pick(1000, "shuffle").exchange == "shuffle"
        monkeypatch.setattr("onebit_spark.platform.sessions.as_bytes", lambda _: 1000)
        assert "maxResultSize" in pick(1000).reason
        assert pick(1000).exchange == "shuffle"
        for wanted in ("broadcast", "mixed"):
            with pytest.raises(RequestError, match=f"exchange={wanted} collects the factors of one side"):
                pick(1000, wanted)

    def test_one_machine_sends_what_its_memory_holds(self):
        """10⁹ ratings of 10⁷ users on 10⁶ items: by shuffle they would fill its disk."""
        form = FitConfig(rank=10, loss="hinge").form
        machine = DriverLimits(result=2**40, heap=16 * 2**30, memory=28 * 2**30, local=True)

        def pick(cores=2, **other):
            return decide.on_executors(
                "auto", self.Counted(10**7, 10**6), form, dataclasses.replace(machine, **other), cores
            )

        assert pick().exchange == "broadcast"
        for refused in (pick(cores=4), pick(local=False), pick(heap=8 * 2**30), pick(memory=2**34)):
            assert refused.exchange == "mixed"
            assert "maxResultSize" not in refused.reason
        assert pick(result=2**30).exchange == "mixed"
        assert "; broadcast would need a spark.driver.maxResultSize of 3,441 MB" in pick(result=2**30).reason

    def test_a_cluster_may_have_no_folder_that_all_can_reach(self):
        context = SimpleNamespace(getCheckpointDir=lambda: None, master="yarn")
        assert work_folder(SimpleNamespace(sparkContext=context, _jsparkSession=None), None) is None

    def test_an_unknown_exchange(self, ratings):
        with pytest.raises(
            RequestError, match="exchange must be one of auto, driver, broadcast, mixed, shuffle, not 'mail'"
        ):
            fit(ratings, "mail")


@pytest.mark.slow
def test_rows_beyond_32_bits(monkeypatch, ratings):
    """Every number travels with 64 bits, as for more than 2³⁰ rows."""
    monkeypatch.setattr("onebit_spark.engines.spark_engine.WIDE", 1)
    wide = fit(ratings, "shuffle", start="random", maxIter=1)
    monkeypatch.undo()
    assert_same_bits(wide, fit(ratings, "broadcast", start="random", maxIter=1))
