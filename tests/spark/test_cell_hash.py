"""Hashes of cells computed here are those of Spark."""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark.core.hashes import SALT, SALT_HASH
from onebit_spark.input.batches import HASH, read_batch
from onebit_spark.input.ratings import Columns, cell_hash, unchecked_ratings


@pytest.mark.parametrize("kinds", [("int64", "int32"), ("int8", "int64"), ("int16", "int16")])
def test_integer_cells(spark, kinds):
    rng = np.random.default_rng(2)
    columns = {
        name: pa.array(rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, 200, dtype=kind))
        for name, kind in zip(("user", "item"), kinds, strict=True)
    }
    df = spark.createDataFrame(pa.table({**columns, "label": pa.array(np.ones(200, np.int8))}))
    plain = unchecked_ratings(df, Columns())
    assert HASH not in plain.columns
    expected = df.select(cell_hash(df, Columns()).alias("h")).toArrow()["h"].to_numpy()
    np.testing.assert_array_equal(read_batch(plain.toArrow(), None).hashes, expected)


def test_text_is_hashed_by_spark(spark):
    df = spark.createDataFrame([("a", 1, 1)], "user string, item int, label int")
    assert HASH in unchecked_ratings(df, Columns()).columns


def test_the_hash_of_the_salt(spark):
    assert spark.sql(f"SELECT xxhash64('{SALT}') AS h").first()["h"] % 2**64 == SALT_HASH
