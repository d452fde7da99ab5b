"""Folders of Delta Lake, Iceberg and Hudi tables. Only the log of such a table tells which of its files count."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from onebit_spark.errors import RequestError
from onebit_spark.platform.files import Location


def table_format(spark: SparkSession, path: str) -> str | None:
    """delta, iceberg or hudi, if the path is a table or a part of one: a file, a partition, its folder of data.

    None if it is not, or cannot be seen from here. The path may have a pattern, such as ``table/*.parquet``.
    """
    try:
        place = Location(spark, re.sub(r"[^/]*[*?\[{].*", "", path) or ".")
        while (found := _format_of(place)) is None and _is_part(place):
            place = place.parent
    except RequestError:
        return None
    return found


def _format_of(place: Location) -> str | None:
    if not place.is_folder():
        return None
    if (place / "_delta_log").exists():
        return "delta"
    if (place / ".hoodie").exists():
        return "hudi"
    if any(name.endswith(".metadata.json") for name in place.names("metadata")):  # pyspark.ml has a metadata/, too
        return "iceberg"
    return None


def _is_part(place: Location) -> bool:
    return "=" in place.name or place.name == "data" or (place.exists() and not place.is_folder())
