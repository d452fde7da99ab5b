"""Prepared ratings: the same fits from a folder as from the source, which is not read; other ratings are refused."""

import json
import os
import shutil
from collections import Counter
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input import packing
from onebit_spark.input.collect import collect_bundles, collect_ratings, estimate_size
from onebit_spark.input.packing import Pack
from onebit_spark.input.prepared_ratings import BUNDLES, LONG_LINES, open_prepared, prepared_for, stored_bundles
from onebit_spark.input.ratings import Columns, unchecked_ratings
from onebit_spark.input.survey import PACKED
from onebit_spark.platform.files import Location
from onebit_spark.platform.lineage import origin_of
from onebit_spark.simulate import power_law_ratings

SHAPE = (60, 30)

pytestmark = pytest.mark.classic


def table(n=900, seed=3, ids=lambda numbers: [f"u{i:03}" for i in numbers]):
    rows, cols, labels = power_law_ratings(*SHAPE, n, seed=seed)
    weights = pa.array(np.random.default_rng(seed).uniform(0, 2, n).round(1))
    return pa.table({"user": ids(rows), "item": pa.array(cols), "label": pa.array(labels), "weight": weights})


@pytest.fixture
def source(tmp_path):
    """Three files of ratings."""
    folder = tmp_path / "ratings"
    folder.mkdir()
    ratings = table()
    for part in range(3):
        pq.write_table(ratings.slice(part * 300, 300), folder / f"{part}.parquet")
    return folder


@pytest.fixture
def ratings(spark, source):
    return spark.read.parquet(str(source))


def estimator(folder=None, **params):
    chosen = {
        "loss": "hinge",
        "rank": 2,
        "maxIter": 1,
        "tol": 0.0,
        "blocksDir": None if folder is None else str(folder),
        **params,
    }
    return OneBitCompletion(**chosen)


def told(model):
    """All that a fit says, but its seconds and the reason of the exchange."""
    factors = [frame.orderBy("id").collect() for frame in (model.users, model.items)]
    info = model.info
    return factors, info.objective_history, info.fingerprint, info.repeats, info.total_weight, model.certificate


def spoil(source):
    """Make the ratings unreadable. Only the names, lengths and times of the files are left."""
    for path in source.glob("*.parquet"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("exchanges", "params"),
    [
        pytest.param(("driver", "broadcast"), {}, id="plain"),
        pytest.param(("mixed", "shuffle"), {}, id="shuffled", marks=pytest.mark.slow),
        pytest.param(("driver", "broadcast"), {"weightCol": "weight"}, id="weights", marks=pytest.mark.slow),
    ],
)
def test_the_same_fit_without_the_source(ratings, source, tmp_path, exchanges, params):
    """To the bit, and with the same sketch of what was fitted."""
    expected = {exchange: estimator(exchange=exchange, **params).fit(ratings) for exchange in exchanges}
    prepared = estimator(**params).prepare(ratings, str(tmp_path / "prepared"))
    assert "60 users on 30 items" in repr(prepared)
    spoil(source)
    for exchange, model in expected.items():
        found = estimator(tmp_path / "prepared", exchange=exchange, **params).fit(ratings)
        assert told(found) == told(model)
        assert found.info.exchange["exchange"] == exchange
        assert np.array_equal(found.fitted.hashes, model.fitted.hashes)
        assert np.array_equal(found.fitted.ratings, model.fitted.ratings)


def test_the_first_fit_prepares_and_other_ranks_follow(ratings, source, tmp_path):
    """``auto`` gathers the bundles on the driver. The source has ratings of five stars, and timestamps as ids."""
    at = F.timestamp_seconds(F.lit(1e9) + F.col("item") * 0.25)
    stars = ratings.select("user", at.alias("item"), (F.col("label") + 3).alias("stars"))
    chosen = {"labelCol": "stars", "threshold": 3.0}
    expected = [estimator(rank=rank, **chosen).fit(stars) for rank in (1, 3)]
    first = estimator(tmp_path / "prepared", **chosen).fit(stars)
    assert first.info.exchange["exchange"] == "driver"
    spoil(source)
    one = estimator(tmp_path / "prepared", **chosen)
    found = one.fit(stars, [{one.rank: 1}, {one.rank: 3}])
    assert list(map(told, found)) == list(map(told, expected))
    assert isinstance(found[0].items.first()["id"], datetime)


def lines_of(ratings):
    """The lines that a single task packs."""
    return list(Pack(None)(iter(unchecked_ratings(ratings, Columns()).toArrow().to_batches(50))))


def test_bundles_are_read_in_their_order(spark, ratings, tmp_path, monkeypatch):
    """Several segments of several bundles, in a file of many row groups: one task reads it, from its beginning."""
    monkeypatch.setattr(packing, "BUNDLE", 50)
    monkeypatch.setattr(packing, "SEGMENT", 220)
    lines = pa.Table.from_batches(lines_of(ratings))
    assert len(set(lines["segment"].to_pylist())) == 5
    assert lines.num_rows >= 18
    frame = spark.createDataFrame(lines.to_pylist(), PACKED).coalesce(1)
    small = {**LONG_LINES, "parquet.block.size": "1000"}
    frame.write.options(**small).parquet(str(tmp_path / "prepared" / BUNDLES))
    (file,) = (tmp_path / "prepared" / BUNDLES).glob("part-*")
    assert pq.ParquetFile(file).num_row_groups >= 18
    bundles = stored_bundles(Location(spark, str(tmp_path / "prepared"))).bundles
    places = [(line["segment"], line["place"]) for line in bundles.select("segment", "place").collect()]
    assert bundles.rdd.getNumPartitions() == 1
    assert places == sorted(places)

    columns = Columns()
    expected = collect_ratings(ratings, columns, estimate_size(ratings, columns), 10**9)
    for most in (10**9, 5_000):  # by one collect, and by several
        found = collect_bundles(bundles, expected.tally, 20_000, most)
        assert found.users.equals(expected.users)
        assert found.items.equals(expected.items)
        assert np.array_equal(found.ratings.codes, expected.ratings.codes)
        assert np.array_equal(found.ratings.row_pointers, expected.ratings.row_pointers)
        assert np.array_equal(np.sort(found.cells), np.sort(expected.cells))


def rewritten(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def shortened(path):
    path.write_bytes(path.read_bytes()[:-1])


def touched(path):
    os.utime(path, ns=(10**18, 10**18))


def added(source):
    pq.write_table(table(50, seed=9), source / "3.parquet")


REFUSED = {  # name: (what changes in folder and source, the ratings of the fit, its columns, words of the refusal)
    "threshold": (None, None, {"threshold": 0.5}, "threshold was None and is 0.5"),
    "label": (None, None, {"label": "weight", "threshold": 1.0}, "the label column was label and is weight"),
    "weights": (None, None, {"weight": "weight"}, "the weight column was None and is weight"),
    "types": (None, lambda r: r.withColumn("item", F.col("item").cast("string")), {}, "type of the items was bigint"),
    "filtered": (None, lambda r: r.where("item > 3"), {}, "the query that makes the ratings of the source's files"),
    "file changed": (lambda f, s: touched(s / "1.parquet"), None, {}, "a file of the source is changed, file:"),
    "file added": (lambda f, s: added(s), "again", {}, "a file of the source is new, file:"),
    "files gone": (lambda f, s: [(s / f"{k}.parquet").unlink() for k in (0, 1)], "again", {}, "2 files of the source"),
    "version": (lambda f, s: rewritten(f / "prepared.json", format_version=99), None, {}, "in format 99"),
    "not prepared": (lambda f, s: (f / "prepared.json").unlink(), None, {}, "holds no prepared ratings"),
    "no JSON": (lambda f, s: shortened(f / "prepared.json"), None, {}, "damaged: prepared.json cannot be read"),
    "JSON of others": (lambda f, s: (f / "prepared.json").write_text("[]"), None, {}, "prepared.json cannot be read"),
    "lost": (lambda f, s: next((f / "bundles").glob("part-*")).unlink(), None, {}, "the file bundles/part-"),
    "short": (lambda f, s: shortened(next((f / "ids").glob("part-*"))), None, {}, "bytes instead of"),
}


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory):
    """A folder of ratings, and one in which they are prepared; every test works on a copy beside the first."""
    base = tmp_path_factory.mktemp("made")
    (base / "ratings").mkdir()
    for part in range(3):
        pq.write_table(table().slice(part * 300, 300), base / "ratings" / f"{part}.parquet")
    estimator().prepare(spark.read.parquet(str(base / "ratings")), str(base / "prepared"))
    return base


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(spark, made, tmp_path, name):
    change, other, columns, words = REFUSED[name]
    source, folder = made / "ratings", tmp_path / "prepared"
    shutil.copytree(source, tmp_path / "saved")
    shutil.copytree(made / "prepared", folder)
    ratings = spark.read.parquet(str(source))
    try:
        prepared_for(ratings, Columns(), str(folder))  # a copy will do
        if change is not None:
            change(folder, source)
        if other == "again":
            ratings = spark.read.parquet(str(source))
        elif other is not None:
            ratings = other(ratings)
        with pytest.raises(RequestError) as refusal:
            prepared_for(ratings, Columns(**columns), str(folder))
    finally:
        shutil.rmtree(source)
        shutil.copytree(tmp_path / "saved", source)
    assert words in str(refusal.value)
    assert "name another folder, or delete this one" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_ratings_without_files_are_compared_by_their_content(spark, tmp_path):
    """Also by a pass that was made before, as the job makes it for its holdout."""
    first, second = (spark.createDataFrame(table(400, seed=seed)) for seed in (1, 2))
    folder = str(tmp_path / "prepared")
    prepared = estimator().prepare(first, folder)
    assert prepared.facts.origin is None
    prepared_for(first.repartition(3), Columns(), folder)
    with pytest.raises(RequestError, match="of the 400 ratings some are others"):
        prepared_for(second, Columns(), folder)
    with pytest.raises(RequestError, match="400 ratings were prepared, and 399 are to be fitted"):
        prepared_for(first.limit(399), Columns(), folder)
    counted = prepared.size()
    prepared_for(second, Columns(), folder, counted)  # by the word of who has counted
    with pytest.raises(RequestError, match="400 ratings were prepared"):
        prepared_for(first, Columns(), folder, type(counted)(7, 1.0, "0-0"))


def test_a_folder_appears_whole_or_not_at_all(spark, ratings, tmp_path):
    folder, bad = str(tmp_path / "prepared"), ratings.withColumn("label", F.col("label") * 2)
    with pytest.raises(RequestError, match="900 ratings with label outside"):
        estimator(folder).fit(bad)
    assert [path.name for path in tmp_path.iterdir()] == ["ratings"]
    estimator().prepare(ratings, folder)
    with pytest.raises(RequestError, match="exists"):
        estimator().prepare(ratings, folder)
    with pytest.raises(RequestError, match="label outside"):
        estimator().prepare(bad, folder, overwrite=True)
    assert open_prepared(spark, folder).facts.tally.n == 900
    estimator().prepare(ratings.where("item > 3"), folder, overwrite=True)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RequestError, match="mine is not a folder of prepared ratings"):
        estimator().prepare(ratings, str(tmp_path / "mine"), overwrite=True)
    assert open_prepared(spark, folder).facts.tally.n < 900
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "prepared", "ratings"]


def test_origins(spark, made, ratings):
    """The same rows have the same origin; where another could have the same, there is none."""
    path = str(made / "ratings")
    again = [spark.read.parquet(path).select("user", "item", "label") for _ in range(2)]
    known = origin_of(again[0])
    assert known == origin_of(again[1]) == origin_of(again[1].cache())
    again[1].unpersist()
    assert len(known.files) == 3
    swapped = again[0].select(F.col("user").alias("item"), F.col("item").alias("user"), "label")
    others = [again[0].where("item > 3"), again[0].where("item > 4"), swapped.select("user", "item", "label")]
    csv = [spark.read.csv(path, sep=sep, schema="user int") for sep in ",;"]
    digests = Counter(origin_of(frame).query for frame in (*others, *csv))
    assert len(digests) == 5
    assert known.query not in digests
    wide = [again[0].select(*([F.lit(k)] * 40), F.lit(last)) for k, last in ((1, 1), (1, 2))]
    assert origin_of(wide[0]) != origin_of(wide[1])
    own = F.udf(lambda value: value, "long")
    again[0].createOrReplaceTempView("rated")
    hidden = spark.sql("select * from rated where item in (select item from rated)")
    of_the_day = [again[0].where(F.rand(seed=1) < 0.5), again[0].where(F.current_date() > F.lit("2020-01-01"))]
    for frame in (again[0].where(own("item") > 3), spark.createDataFrame(table(10)), hidden, *of_the_day):
        assert origin_of(frame) is None
    spark.catalog.dropTempView("rated")
