"""Schemas of tables, without the parser of Spark SQL, which takes half a second to load in every application."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, FloatType, StructType

_JSON_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}  # others are the same
_PLAIN = {"binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short", "string", "timestamp"}


def schema_of(columns: str) -> StructType:
    """The schema of a text such as "block int, rows binary, factors array<float>"."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema = schema.add(name, type_of(kind))
    return schema


def type_of(kind: str) -> str | DataType:
    """The type of this name in SQL, as ``StructType.add`` takes it. Spark parses those that are not plain."""
    name = _JSON_NAMES.get(kind, kind)
    if name in _PLAIN:
        return name
    if kind == "array<float>":
        return ArrayType(FloatType())
    return DataType.fromDDL(kind)
