"""What is computed here as Spark computes it, and the ways around what a version of Spark does not
have.
"""

import doctest
import os
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import onebit_spark.spark.estimator
from onebit_spark.data.hashes import SALT, SALT_HASH, SPARK_SEED, hashed, weight_hashes
from onebit_spark.data.ratings import Columns, rating_tables
from onebit_spark.engines.spark.columns import cell_hash, given_ratings
from onebit_spark.engines.spark.frames import in_partitions, map_rows, schema_of, sql_type

# ---- hashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("int64", "int32"), ("int8", "int16")])
def test_hashes_of_cells_are_those_of_spark(spark, kinds):
    rng = np.random.default_rng(2)
    columns = {
        name: pa.array(rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, 200, dtype=kind))
        for name, kind in zip(("user", "item"), kinds, strict=True)
    }
    df = spark.createDataFrame(pa.table({**columns, "label": pa.array(np.ones(200, np.int8))}))
    expected = df.select(cell_hash(df, Columns()).alias("h")).toArrow()["h"].to_numpy()
    (found,) = rating_tables(given_ratings(df, Columns()).toArrow().to_batches())
    np.testing.assert_array_equal(found.plain["__onebit_hash"], expected)


def test_hashes_of_weights_text_and_the_salt(spark):
    weights = np.exp(np.random.default_rng(1).normal(scale=5, size=300)).astype(np.float32)
    found = (
        spark.createDataFrame(pa.table({"w": weights}))
        .select(F.xxhash64("w").alias("h"))
        .toArrow()["h"]
        .to_numpy()
    )
    np.testing.assert_array_equal(weight_hashes(weights), found)
    numbers = pa.array(
        [Decimal(10**37 + k) for k in range(-3, 4)] + [Decimal(-(10**29))], pa.decimal128(38, 0)
    )
    found = (
        spark.createDataFrame(pa.table({"d": numbers}))
        .select(F.xxhash64("d").alias("h"))
        .toArrow()["h"]
        .to_numpy()
    )
    np.testing.assert_array_equal(
        hashed(numbers, np.full(len(numbers), SPARK_SEED)).view(np.int64), found
    )
    assert spark.sql(f"SELECT xxhash64('{SALT}') AS h").first()["h"] % 2**64 == SALT_HASH


# ---- schemas without Spark's parser ------------------------------------------------------------


def test_a_text_of_columns():
    schema = schema_of(
        "block int, n long, m bigint, rows binary, mean array<float>, wrong boolean, name string"
    )
    assert schema.names == ["block", "n", "m", "rows", "mean", "wrong", "name"]
    kinds = [field.dataType.simpleString() for field in schema]
    assert kinds == ["int", "bigint", "bigint", "binary", "array<float>", "boolean", "string"]


@pytest.mark.parametrize(
    "kind",
    [
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "boolean",
        "date",
        "timestamp",
        "decimal(12,3)",
        "timestamp_ntz",
        "array<double>",
    ],
)
def test_a_type_by_its_name_in_sql(spark, kind):
    """The last three are parsed by Spark."""
    (field,) = StructType().add("id", sql_type(kind))
    assert field.dataType.simpleString() == kind
    assert field.nullable


# ---- Python workers, and older versions of Spark -----------------------------------------------


@pytest.mark.classic
def test_rows_are_mapped_as_by_mapinarrow_in_the_same_workers(spark):
    def added_up(batches):
        """The sum of a partition's ids, and the process that has forked this worker."""
        total = sum(pc.sum(batch.column(0)).as_py() for batch in batches)
        yield pa.record_batch({"total": [total], "daemon": [os.getppid()]})

    frame = spark.range(0, 1000, 1, 3)
    schema = "total long, daemon long"
    environment = dict(spark.sparkContext.environment)
    found = map_rows(frame, added_up, schema)
    expected = frame.mapInArrow(added_up, schema)
    assert sorted(found.collect()) == sorted(expected.collect())
    assert spark.sparkContext.environment == environment


@pytest.mark.classic
def test_rows_reach_their_partition_by_hashing(spark, monkeypatch):
    """Spark 4.0 has no ``repartitionById``."""
    frame = spark.range(40).withColumn("part", (F.col("id") % 7).cast("int"))
    for kind in type(frame).__mro__:
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    placed = in_partitions(frame, 7, F.col("part")).withColumn("found", F.spark_partition_id())
    assert placed.count() == 40
    assert placed.where("part <> found").count() == 0


@pytest.mark.slow
@pytest.mark.classic
def test_predictions_by_way_of_pandas(spark, make_model, monkeypatch):
    """Spark 4.0 has no ``arrow_udf``. Also of ids without ratings, whose factors are null."""
    pairs = spark.createDataFrame([(0, 0), (5, 3), (99, 3), (99, 99)], "user long, item long")
    model = make_model()
    columns = ["score", "std", "probability"]
    expected = model.transform(pairs).orderBy("user", "item").select(*columns).toPandas()
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    found = model.transform(pairs).orderBy("user", "item").select(*columns).toPandas()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert model.sample(pairs).where("sampledScore is null").count() == 0


def test_examples_in_docstrings(spark):
    result = doctest.testmod(onebit_spark.spark.estimator, extraglobs={"spark": spark})
    assert result.attempted >= 5
    assert result.failed == 0
