"""How a fit runs on executors: its jobs and plans, and how ids are counted, numbered and placed."""

import dataclasses
import gc
import time
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from support.sparkfits import assert_same_bits, estimator

from onebit_spark import FitFailed, RequestError, fit_arrays
from onebit_spark.core.setup import form_of, loss_of
from onebit_spark.data.locations import Location
from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark import packing
from onebit_spark.engines.spark import runner as spark_runner
from onebit_spark.engines.spark import survey as counting
from onebit_spark.engines.spark.blocking import (
    Storage,
    default_blocks,
    default_tasks,
    multiple_of,
    number_ids,
    placement_by_counts,
    placement_of,
)
from onebit_spark.engines.spark.engine import executor_state, work_folder
from onebit_spark.engines.spark.frames import TemporaryFolders, forget, partition_keys, spark_hash
from onebit_spark.engines.spark.runner import SumWeights
from onebit_spark.engines.spark.sessions import parallelism
from onebit_spark.engines.spark.survey import PackedRatings, survey_ratings
from onebit_spark.kernels.jit import cache_folder
from onebit_spark.settings import FitConfig
from onebit_spark.spark.model import OneBitCompletionModel

CONFIG = FitConfig(rank=3, tol=0.0, max_iter=1)


def jobs_run(spark):
    """Ids of all jobs that this application's listener still knows; new ones are larger."""
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup())


# ---- jobs and plans ----------------------------------------------------------------------------


@pytest.mark.classic
def test_one_job_for_each_half_step(spark, ratings):
    """Two more iterations of two half steps each: exactly four more jobs."""
    counts = []
    for iterations in (1, 3):
        before = jobs_run(spark)
        estimator("broadcast", maxIter=iterations).fit(ratings)
        counts.append(len(jobs_run(spark) - before))
    assert counts[1] - counts[0] == 4


@pytest.mark.classic
def test_settings_are_checked_before_any_job(spark, ratings):
    before = jobs_run(spark)
    with pytest.raises(
        RequestError, match=r"loss must be one of.*rank must be an integer.*numUserBlocks must be"
    ):
        estimator("broadcast", loss="huber", rank=0, numUserBlocks=0).fit(ratings)
    assert jobs_run(spark) == before


@pytest.mark.classic
def test_a_half_step_does_not_move_ratings(spark, ratings):
    """The cached blocks are read in place: nothing but factor lines passes through an exchange.

    The tables are on the executors. If a part of one is lost, the fit ends.
    """
    with (
        survey_ratings(ratings, Columns()) as counted,
        executor_state(spark, counted, (3, 2), form_of(CONFIG), Storage(), frozenset()) as state,
    ):
        state.start(CONFIG, loss_of(CONFIG))
        own, partners = (state.posterior(side) for side in ("rows", "cols"))
        results = state.engine._results("rows", lambda *_: None, {"rows": own}, partners)
        plan = results._jdf.queryExecution().executedPlan().toString()
        forget(own.at.frame)
        with pytest.raises(FitFailed, match="an executor was lost"):
            state.convert("rows", lambda posterior: posterior, state.posterior("rows"))
        state.engine.sides["rows"].checksums.clear()
        with pytest.raises(FitFailed, match="computed again and came out different"):
            state.engine.total("rows", SumWeights(), {})
    # The table is sent to the routes of columns, and lines to the blocks of rows, both as the plan
    # asks.
    assert plan.count("ENSURE_REQUIREMENTS") == 0
    assert plan.count("Exchange hashpartitioning(key#") == 2 + plan.count("InMemoryRelation")


@pytest.mark.slow
@pytest.mark.classic
def test_mixed_shuffles_factors_of_one_side_only(spark, ratings, tmp_path):
    place = Storage(Location(spark, str(tmp_path / "work")))
    with (
        survey_ratings(ratings, Columns()) as counted,
        executor_state(
            spark, counted, (3, 2), form_of(CONFIG), place, frozenset(["cols"])
        ) as state,
    ):
        state.start(CONFIG, loss_of(CONFIG))
        users, items = (state.posterior(side) for side in ("rows", "cols"))
        exchanges = []
        for side, own, partners in (("rows", users, items), ("cols", items, users)):
            results = state.engine._results(side, lambda *_: None, {"rows": own}, partners)
            plan = results._jdf.queryExecution().executedPlan().toString()
            exchanges.append(
                plan.count("Exchange hashpartitioning(key#") - plan.count("InMemoryRelation")
            )
    # Users to their own blocks; then to their routes, and from there to the blocks of items
    assert exchanges == [
        1,
        2,
    ]


@pytest.mark.connect
def test_on_connect_ratings_stay_and_nothing_stays_behind(spark, ratings, tmp_path):
    """A half step sends factor lines and no rating, whatever the settings of the user's session."""
    before = dict(spark.conf.getAll)
    place = Storage(Location(spark, str(tmp_path / "work")))
    with (
        survey_ratings(ratings, Columns()) as counted,
        executor_state(spark, counted, (3, 2), form_of(CONFIG), place, frozenset()) as state,
    ):
        state.start(CONFIG, loss_of(CONFIG))
        own, partners = (state.posterior(side) for side in ("rows", "cols"))
        plan = state.engine._results(
            "rows", lambda *_: None, {"rows": own}, partners
        )._explain_string()
        assert views(spark)
    # The blocks of rows and the routes of columns, and not their sources
    assert plan.count("InMemoryRelation") == 2
    assert "ENSURE_REQUIREMENTS" not in plan
    assert not views(spark)
    assert dict(spark.conf.getAll) == before
    assert not list(Path(tmp_path).iterdir())


def views(spark):
    return [table.name for table in spark.catalog.listTables() if table.name.startswith("onebit_")]


@pytest.mark.connect
def test_on_connect_nothing_is_broadcast(spark, ratings):
    assert parallelism(spark) == 2
    for exchange in ("broadcast", "mixed"):
        with pytest.raises(
            RequestError, match="not Spark Connect: choose exchange=driver or exchange=shuffle"
        ):
            estimator(exchange).fit(ratings)


# ---- stored tables -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.classic
def test_nothing_stays_behind(spark, ratings, tmp_path):
    completion = estimator("shuffle", maxIter=1)
    execution = dataclasses.replace(completion.execution(), work_dir=str(tmp_path))
    completion.execution = lambda: execution
    model = completion.fit(ratings)
    left = list(tmp_path.iterdir())
    # The model reads its factors there
    assert [path.name.endswith("-model") for path in left] == [True]
    assert model.users.count() == 70
    predictions = model.transform(ratings).select("user", "score")
    del model
    gc.collect()
    TemporaryFolders.of(spark).delete_unread()  # as the next fit does
    # The model is gone, its predictions are still to be computed
    assert list(tmp_path.iterdir()) == left
    assert predictions.count() == 1500
    del predictions
    deadline = time.monotonic() + 60
    # The JVM hears later of what is released here
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        gc.collect()
        TemporaryFolders.of(spark).delete_unread()
        time.sleep(0.2)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.classic
def test_tables_on_the_executors(spark, ratings, tmp_path, monkeypatch):
    """The same fit without a folder.

    The model outlasts the engine, and its factors are all that remains.
    """
    before = set(spark.sparkContext._jsc.getPersistentRDDs())
    with monkeypatch.context() as cluster:
        cluster.setattr("onebit_spark.engines.spark.engine.work_folder", lambda *_: None)
        model = estimator("shuffle").fit(ratings)
    gc.collect()
    assert len(set(spark.sparkContext._jsc.getPersistentRDDs()) - before) == 2
    assert_same_bits(model, estimator("shuffle").fit(ratings))
    model.save(str(tmp_path / "model"))
    assert_same_bits(OneBitCompletionModel.load(str(tmp_path / "model")), model)


@pytest.mark.slow
@pytest.mark.classic
def test_rows_beyond_32_bits(monkeypatch, ratings):
    """Every number travels with 64 bits, as for more than 2³⁰ rows."""
    expected = estimator("shuffle", maxIter=1).fit(ratings)
    monkeypatch.setattr("onebit_spark.engines.spark.engine.WIDE", 1)
    assert_same_bits(estimator("shuffle", maxIter=1).fit(ratings), expected)


# ---- layout ------------------------------------------------------------------------------------


@pytest.mark.classic
def test_ids_are_numbered_in_ascending_order(spark, ratings):
    with survey_ratings(ratings.repartition(7), Columns()) as counted, ExitStack() as release:
        n_blocks = {"rows": 25, "cols": 9}
        numbered = number_ids(counted, release)
        n = counted.counts.n
        for side, ids in counted.ids().items():
            lines = numbered[side].frame.orderBy("number").collect()
            assert [line["id"] for line in lines] == ids.values.to_pylist()
            assert (
                [line["number"] for line in lines]
                == list(range(len(ids)))
                == list(range(numbered[side].n_rows))
            )
            settings = (
                frame.sparkSession.conf.get("spark.sql.shuffle.partitions")
                for frame in (numbered[side].frame, ratings)
            )
            assert len(set(settings)) == 1  # factors are joined with ids there: not in one task
            rows = np.arange(len(ids))
            placed = placement_of(numbered[side], n, n_blocks[side])
            assert len(placed.heavy) > 0
            expected = placement_by_counts(rows, ids.counts, n, n_blocks[side])
            np.testing.assert_array_equal(placed.of(rows), expected.of(rows))


def test_keys_reach_their_partitions(spark):
    keys = partition_keys(13, 3)
    assert len(set(keys.tolist())) == 39
    frame = spark.createDataFrame([(int(key),) for key in keys], "key int").repartition(13, "key")
    found = {
        line["key"]: line["part"]
        for line in frame.select("key", F.spark_partition_id().alias("part")).collect()
    }
    assert [found[key] for key in keys.tolist()] == [*range(13)] * 3
    hashes = spark.range(5).select(F.hash(F.col("id").cast("int"))).collect()
    assert [line[0] for line in hashes] == spark_hash(np.arange(5, dtype=np.uint32)).tolist()


def test_heavy_rows_are_spread():
    counts = np.array([1000, 900, 800, 700] + [1] * 400)
    rows = np.arange(len(counts))
    block_of = placement_by_counts(rows, counts, counts.sum(), 4).of(rows)
    assert sorted(block_of[:4].tolist()) == [0, 1, 2, 3]
    load = np.bincount(block_of, weights=counts)
    assert load.max() < 1.3 * load.mean()


def test_every_row_has_one_block():
    counts = np.random.default_rng(0).integers(1, 50, 333)
    placement = placement_by_counts(np.arange(333), counts, counts.sum(), 7)
    assert sorted(np.concatenate(placement.rows_of(333)).tolist()) == list(range(333))


def test_default_blocks_and_tasks():
    """As many tasks for each core, of a few blocks, and never an idle one where there are blocks
    for all.
    """
    assert default_blocks(n_ratings=10, n_rows=1000, cores=2) == 2
    assert default_blocks(n_ratings=10**9, n_rows=10**6, cores=2) == 125
    assert default_blocks(n_ratings=10**9, n_rows=3, cores=8) == 3
    assert [multiple_of(4, n) for n in (1, 4, 5)] == [4, 4, 8]
    tasks = {(50, 2): 14, (500, 64): 128, (2, 2): 2, (3, 8): 3}
    assert {key: default_tasks(n_blocks=key[0], cores=key[1]) for key in tasks} == tasks


@pytest.mark.slow
@pytest.mark.classic
def test_an_item_with_a_third_of_all_ratings(spark):
    """More blocks than the item's share allows to balance: it has a block, the others share the
    rest.
    """
    rng = np.random.default_rng(0)
    n = 3000
    rows = rng.integers(80, size=n)
    cols = np.where(rng.random(n) < 0.33, 7, rng.integers(40, size=n))
    labels = np.where(rng.random(n) < 0.4 + 0.4 * (rows % 2), 1, -1)
    frame = spark.createDataFrame(pa.table({"user": rows, "item": cols, "label": labels}))
    model = estimator("broadcast", numUserBlocks=4, numItemBlocks=5).fit(frame)
    expected = fit_arrays(rows, cols, labels, FitConfig(rank=3, max_iter=2, tol=0.0))
    np.testing.assert_allclose(model.info.objective_history, expected.objective_history, rtol=1e-6)


@pytest.mark.classic
def test_executors_take_the_kernels_of_the_driver(ratings, monkeypatch):
    """The workers of these tests have the driver's cache: a file of an invented function shows that
    they wrote.
    """
    sent = {f"test.sent-{number}.py.nbi": b"" for number in (1, 2)}
    files = [cache_folder() / name for name in sent]
    monkeypatch.setattr(spark_runner, "compiled_kernels", lambda: sent)
    try:
        estimator("broadcast", maxIter=1).fit(ratings)
        assert not any(file.exists() for file in files)  # they are on the machine of the driver
        monkeypatch.setattr(spark_runner, "is_local", lambda spark: False)
        estimator("broadcast", maxIter=1).fit(ratings)
        assert all(file.exists() for file in files)
    finally:
        for file in files:
            file.unlink(missing_ok=True)


@pytest.mark.classic
def test_what_cannot_work(ratings, monkeypatch):
    context = SimpleNamespace(getCheckpointDir=lambda: None, master="yarn")
    assert work_folder(SimpleNamespace(sparkContext=context, _jsparkSession=None), None) is None
    with pytest.raises(
        RequestError, match="one of auto, driver, broadcast, mixed, shuffle, not 'mail'"
    ):
        estimator("mail").fit(ratings)
    monkeypatch.setattr("onebit_spark.engines.spark.sessions.as_bytes", lambda _: 1000)
    with pytest.raises(RequestError, match=r"maxResultSize.*choose exchange=auto"):
        estimator("broadcast").fit(ratings)


# ---- the survey of ids: on the driver if they are few, by jobs if they are many ----------------

IDS = {
    "int": lambda k: 3 * k,
    "bigint": lambda k: k * 2**40 - 7,
    "string": lambda k: f"ü{k}",
    "double": lambda k: k / 2,
    "decimal(12,3)": lambda k: Decimal(k) / 8,
    "date": lambda k: date(2020, 1, 1) + timedelta(days=k),
    "timestamp": lambda k: datetime(2020, 1, 1) + timedelta(hours=k),
}


@pytest.fixture
def counted(spark, monkeypatch):
    """The survey and the sketch of ratings, and whether the driver counted them."""

    def count(ratings, most_bytes):
        monkeypatch.setattr(counting, "SUMMARY_BYTES", most_bytes)
        with survey_ratings(ratings, Columns()) as found:
            return (
                found.ids(),
                found.sketch(),
                (found.n_users, found.n_items),
                found.summary is not None,
            )

    return count


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "string" else [pytest.mark.slow]) for kind in IDS],
)
def test_few_ids_and_many_ids_are_counted_alike(spark, counted, kind):
    rng = np.random.default_rng(4)
    users = rng.integers(0, 40, 300).tolist()
    items = rng.integers(0, 9, 300).tolist()
    lines = [
        (IDS[kind](u), f"i{i}", int(l))
        for u, i, l in zip(users, items, rng.integers(0, 2, 300), strict=True)
    ]
    ratings = spark.createDataFrame(lines, f"user {kind}, item string, label int").repartition(5)
    few = counted(ratings, 10**6)
    many = counted(ratings, 0)
    assert (few[3], many[3]) == (True, False)
    assert few[2] == many[2] == (len(set(users)), len(set(items)))
    for mine, other in zip(few[0].values(), many[0].values(), strict=True):
        assert mine.values.equals(other.values)
        np.testing.assert_array_equal(mine.counts, other.counts)
        np.testing.assert_array_equal(mine.positives, other.positives)
    assert few[1].limit == many[1].limit
    np.testing.assert_array_equal(few[1].hashes, many[1].hashes)
    np.testing.assert_array_equal(few[1].ratings, many[1].ratings)


def test_the_size_of_the_summary_is_known_before_it_is_collected(spark):
    ratings = spark.createDataFrame(
        [(u % 11, u % 7, u % 2) for u in range(90)], "user int, item long, label int"
    )
    with ExitStack() as release:
        packed = PackedRatings.of(ratings, Columns(), release)
        lines = packed.bundles.select(*packing.SUMMARY).toArrow().to_pylist()
    assert (
        packed.facts["summary_bytes"]
        == sum(len(cell) for line in lines for cell in line.values())
        > 0
    )
