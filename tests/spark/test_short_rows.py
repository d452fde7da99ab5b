"""Short rows to Python workers: the lines of ``mapInArrow``, from the same workers."""

import os

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onebit_spark.platform.arrow_stream import map_rows

SCHEMA = "total long, daemon long"


@pytest.mark.classic
def test_rows_are_mapped_as_by_mapinarrow_in_the_same_workers(spark):
    def added_up(batches):
        """The sum of a partition's ids, and the process that has forked this worker."""
        total = sum(pc.sum(batch.column(0)).as_py() for batch in batches)
        yield pa.record_batch({"total": [total], "daemon": [os.getppid()]})

    frame = spark.range(0, 1000, 1, 3)
    environment = dict(spark.sparkContext.environment)
    found, expected = map_rows(frame, added_up, SCHEMA), frame.mapInArrow(added_up, SCHEMA)
    assert sorted(found.collect()) == sorted(expected.collect())
    assert spark.sparkContext.environment == environment
