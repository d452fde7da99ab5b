"""What Spark 4.0 does not have: the ways around it give the same."""

import numpy as np
import pytest
from pyspark.sql import functions as F

from onebit_spark.platform.plans import in_partitions

pytestmark = pytest.mark.classic


def test_rows_reach_their_partition_by_hashing(spark, monkeypatch):
    frame = spark.range(40).withColumn("part", (F.col("id") % 7).cast("int"))
    for kind in type(frame).__mro__:
        if "repartitionById" in vars(kind):
            monkeypatch.delattr(kind, "repartitionById")
    placed = in_partitions(frame, 7, F.col("part")).withColumn("found", F.spark_partition_id())
    assert placed.count() == 40
    assert placed.where("part <> found").count() == 0


def test_predictions_by_way_of_pandas(spark, make_model, monkeypatch):
    """Also of ids without ratings, whose factors are null."""
    pairs = spark.createDataFrame([(0, 0), (5, 3), (99, 3), (99, 99)], "user long, item long")
    model = make_model()
    columns = ["score", "std", "probability"]
    expected = model.transform(pairs).orderBy("user", "item").select(*columns).toPandas()
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    found = model.transform(pairs).orderBy("user", "item").select(*columns).toPandas()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert model.sample(pairs).where("sampledScore is null").count() == 0
