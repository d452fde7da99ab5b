"""Ratings in Parquet files that Arrow reads past the JVM: the same ratings, fits and messages as by
Spark's reader.
"""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from support.running import run_here

from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark import ratings as spark_ratings
from onebit_spark.engines.spark import survey
from onebit_spark.engines.spark.columns import given_ratings, split_off, with_weight
from onebit_spark.engines.spark.rating_files import rating_files
from onebit_spark.spark.estimator import OneBitCompletion

pytestmark = pytest.mark.classic

N = 600


def some_slow(names, *by_default):
    return [
        pytest.param(name, marks=() if name in by_default else pytest.mark.slow) for name in names
    ]


def ratings_table():
    """Cells that repeat, with labels that differ."""
    rng = np.random.default_rng(7)
    users = rng.integers(0, 25, N)
    items = rng.integers(0, 12, N)
    return pa.table(
        {
            "user": pa.array(users.astype(np.int32)),
            "item": pa.array(np.char.add("ï", items.astype(str))).dictionary_encode(),
            "label": pa.array(rng.integers(0, 2, N).astype(np.int8)),
            "long": pa.array(users * 2**40 - 7),
            "small": pa.array(users.astype(np.uint8)),
            "half": pa.array(np.where(items, items / 2, -0.0)),
            "money": pa.array([Decimal(int(item)) / 8 for item in items], pa.decimal128(12, 3)),
            "wide": pa.array(np.char.add("u", users.astype(str)), pa.large_string()),
            "stars": pa.array(rng.choice([" 1", "2.5", "4e0"], N)),
            "liked": pa.array(rng.integers(0, 2, N).astype(bool)),
            "w": pa.array(rng.choice([0.0, 0.5, 2.0], N)),
            "day": pa.array((users % 9).astype(np.int32)).cast(pa.date32()),
            "some": pa.array([None if user == 3 else int(user) for user in users]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("a folder") / "ratings é"
    table = ratings_table()
    for part, codec in enumerate(("snappy", "zstd", "none")):
        below = path / f"group={part}"
        below.mkdir(parents=True)
        pq.write_table(
            table.slice(200 * part, 200),
            below / "part.parquet",
            row_group_size=70,
            compression=codec,
        )
        (below / "_SUCCESS").touch()
        (below / ".hidden.parquet").write_text("?")
        (below / "empty.parquet").touch()
    return str(path)


@pytest.fixture
def by_spark(monkeypatch):
    monkeypatch.setattr(spark_ratings, "rating_files", lambda *_: None)
    monkeypatch.setattr("onebit_spark.engines.spark.rating_files.rating_files", lambda *_: None)


KINDS = {
    "int and dictionary": Columns(),
    "long and decimal": Columns("long", "money"),
    "small and double": Columns("small", "half", "liked"),
    "text label, wide text": Columns("wide", "item", "stars", 2.0),
    "weights": Columns(weight="w"),
    "nulls": Columns("some"),
    "by case": Columns("USER"),
}


def lines(table):
    return sorted(table.to_pylist(), key=str), table.schema


@pytest.mark.parametrize(
    "kind", some_slow(KINDS, "int and dictionary", "text label, wide text", "nulls")
)
def test_the_same_ratings_as_by_spark(spark, folder, kind):
    columns = KINDS[kind]
    table = spark.read.parquet(folder)
    ratings = with_weight(
        table.select(*[name for name in table.columns if name != "group"]), columns
    )
    if kind != "nulls":  # those are refused before any are held out
        ratings = split_off(ratings, columns, 0.3, 5)[0]
    found = pa.Table.from_batches(rating_files(ratings, columns).batches())
    assert (len(found) < N) == (kind != "nulls")
    assert lines(found) == lines(given_ratings(ratings, columns).toArrow())


@pytest.mark.parametrize(
    ("exchange", "columns"),
    [
        ("driver", {}),
        pytest.param("broadcast", {"weightCol": "w", "itemCol": "money"}, marks=pytest.mark.slow),
    ],
)
def test_the_same_fit_to_the_bit(spark, folder, request, exchange, columns):
    ratings = spark.read.parquet(folder)
    estimator = OneBitCompletion(rank=2, maxIter=3, tol=0.0, exchange=exchange, **columns)
    found = estimator.fit(ratings)
    request.getfixturevalue("by_spark")
    expected = estimator.fit(ratings)
    assert found.info.fingerprint == expected.info.fingerprint
    assert found.summary.objectiveHistory == expected.summary.objectiveHistory
    for side in ("userFactors", "itemFactors"):
        here, there = (getattr(model, side).toArrow().sort_by("id") for model in (found, expected))
        assert here == there


def test_executors_and_the_driver_read_the_files(spark, folder, monkeypatch):
    """No rating comes from Spark's reader, unless an id is of a type that depends on its
    settings.
    """
    monkeypatch.setattr(
        spark_ratings, "collect_in_parts", lambda *_: pytest.fail("Spark has read the ratings")
    )
    monkeypatch.setattr(
        "onebit_spark.engines.spark.rating_files.map_rows",
        lambda *_: pytest.fail("Spark has read the ratings"),
    )
    ratings = spark.read.parquet(folder)
    dated = Columns(item="day")
    size = spark_ratings.estimate_size(ratings, Columns())
    assert spark_ratings.collect_ratings(ratings, Columns(), size, 10**9).counts.n == N
    with pytest.raises(pytest.fail.Exception):
        spark_ratings.collect_ratings(ratings, dated, size, 10**9)
    with survey.survey_ratings(ratings, Columns()) as found:
        assert found.counts.n == N
    with pytest.raises(pytest.fail.Exception), survey.survey_ratings(ratings, dated):
        pass


def test_what_spark_must_read(spark, folder):
    ratings = spark.read.parquet(folder)
    columns = Columns()
    assert rating_files(ratings, columns) is not None
    held_out = split_off(ratings, columns, 0.3, 5)
    ratings.createOrReplaceTempView("some_ratings")
    others = {
        "a filter": ratings.where("label = 1"),
        "a sample": ratings.limit(5),
        "an expression": ratings.withColumn("label", F.lit(1)),
        "another name": ratings.drop("user").withColumnRenamed("long", "user"),
        "the part that is held out": held_out[1],
        "two splits": split_off(held_out[0], columns, 0.3, 6)[0],
        "an option": spark.read.option("mergeSchema", "true").parquet(folder),
        "a view": spark.table("some_ratings"),
        "from this process": spark.createDataFrame([(1, 1, 1)], "user int, item int, label int"),
    }
    assert not [name for name, other in others.items() if rating_files(other, columns)]
    assert rating_files(held_out[0], Columns(label="liked")) is None
    # Stands in the names of the folders
    assert rating_files(ratings, Columns(item="group")) is None
    kept = spark.read.parquet(folder).cache()
    try:
        assert rating_files(kept, columns) is None
    finally:
        kept.unpersist()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        assert rating_files(ratings, columns) is None
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def numbers(n, **more):
    table = {
        "user": [k % 7 for k in range(n)],
        "item": [k % 5 for k in range(n)],
        "label": [k % 2 for k in range(n)],
    }
    return pa.table({**table, **more})


OTHER_FILES = {
    "a column is missing": lambda path: pq.write_table(numbers(40).drop_columns(["item"]), path),
    "another type": lambda path: pq.write_table(
        numbers(40, user=pa.array([1] * 40, pa.int32())), path
    ),
    "it has changed": lambda path: pq.write_table(numbers(400), path),
    "it is gone": lambda path: path.unlink(),
    "no Parquet": lambda path: path.write_bytes(b"?" * 100),
}


@pytest.mark.parametrize("name", some_slow(OTHER_FILES, "another type", "it has changed"))
def test_files_that_arrow_sees_otherwise_are_left_to_spark(spark, tmp_path, name, caplog):
    for part in ("a", "b"):
        pq.write_table(numbers(40), tmp_path / f"{part}.parquet")
    ratings = spark.read.parquet(str(tmp_path))
    OTHER_FILES[name](tmp_path / "b.parquet")
    if name in ("a column is missing", "another type", "no Parquet"):
        ratings = spark.read.schema("user long, item long, label long").parquet(str(tmp_path))
    files = rating_files(ratings, Columns())
    caplog.set_level("INFO", "onebit_spark")
    assert files.batches() is None
    assert files.mapped(spark, iter, "user long") is None
    assert [record.getMessage().count("Spark reads the files") for record in caplog.records] == [
        1,
        1,
    ]
    assert "b.parquet" in caplog.text


def test_more_files_than_one_process_should_open(spark, folder, monkeypatch):
    monkeypatch.setattr("onebit_spark.engines.spark.rating_files.MOST_HERE", 2)
    assert rating_files(spark.read.parquet(folder), Columns()).batches() is None


@pytest.mark.parametrize("exchange", ["driver", pytest.param("broadcast", marks=pytest.mark.slow)])
def test_a_page_that_is_damaged_is_told_in_one_line(spark, tmp_path, exchange):
    path = tmp_path / "ratings.parquet"
    pq.write_table(numbers(5_000, user=list(range(5_000))), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    flags = [
        "--ratings",
        path,
        "--output",
        tmp_path / "model",
        "--exchange",
        exchange,
        "--rank",
        "1",
    ]
    code, _, err = run_here("fit", *flags)
    assert code == 2
    assert err.splitlines()[-1].count(f"the file file:{path} cannot be read, is it damaged?") == 1
    assert "Traceback" not in err
