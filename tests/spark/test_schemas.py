"""Schemas without Spark's parser."""

import pytest
from pyspark.sql.types import StructType

from onebit_spark.platform.binary_cells import schema_of, type_of


def test_a_text_of_columns():
    told = schema_of("block int, n long, m bigint, rows binary, mean array<float>, wrong boolean, name string")
    kinds = [field.dataType.simpleString() for field in told]
    assert told.names == ["block", "n", "m", "rows", "mean", "wrong", "name"]
    assert kinds == ["int", "bigint", "bigint", "binary", "array<float>", "boolean", "string"]


@pytest.mark.parametrize(
    "kind",
    ["tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "boolean", "date", "timestamp"],
)
def test_a_type_by_its_name_in_sql(kind):
    (field,) = StructType().add("id", type_of(kind))
    assert field.dataType.simpleString() == kind
    assert field.nullable


@pytest.mark.parametrize("kind", ["decimal(12,3)", "timestamp_ntz", "array<double>"])
def test_other_types_are_parsed_by_spark(spark, kind):
    (field,) = StructType().add("id", type_of(kind))
    assert field.dataType.simpleString() == kind
