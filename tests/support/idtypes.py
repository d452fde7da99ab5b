"""The table of id types in docs/local.md, with ids of each type.

A test of each column holds every cell.

A cell says yes, no, or the type that ids become: text, or a type of Spark.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from onebit_spark.data.user_tables import as_spark, spark_name

GUIDE = Path(__file__).parents[2] / "docs" / "local.md"
N = 8  # different ids of a type
PLACES = range(N)
TEXT = [f"ü{place}" for place in PLACES]


def moment(place):
    return datetime(2024, 2, 29, 1, 2, 3, place)


SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32())
IDS = {
    "text": [pa.array(TEXT, kind) for kind in (pa.string(), pa.large_string())],
    "categories of text": [pa.array(TEXT).dictionary_encode()],
    "integers": [pa.array([7 * place for place in PLACES], kind) for kind in (*SIGNED, *UNSIGNED)],
    "`uint64`": [pa.array([2**63 - 4 + place for place in PLACES], pa.uint64())],
    "floating-point numbers": [
        pa.array([place / 4 for place in PLACES], kind) for kind in (pa.float32(), pa.float64())
    ],
    "decimals of up to 38 digits": [
        pa.array([Decimal(place) / 4 for place in PLACES], pa.decimal128(6, 2)),
        pa.array([Decimal(10**37 + place) for place in PLACES], pa.decimal128(38, 0)),
    ],
    "booleans": [pa.array([False, True])],
    "bytes": [pa.array([bytes([place, 255]) for place in PLACES], pa.binary())],
    "dates": [pa.array([date(2024, 2, 22 + place) for place in PLACES])],
    "times with a zone": [
        pa.array([moment(place).replace(tzinfo=UTC) for place in PLACES], pa.timestamp("us", zone))
        for zone in ("UTC", "Europe/Paris")
    ],
    "times without a zone": [pa.array([moment(place) for place in PLACES], pa.timestamp("us"))],
    "durations": [pa.array([timedelta(seconds=place) for place in PLACES])],
    "times of day": [pa.array([time(1, 2, place) for place in PLACES])],
    "lists": [pa.array([[place] for place in PLACES])],
    "structs": [pa.array([{"a": place} for place in PLACES])],
}


def cells(column):
    """The ids of every row of the guide's table, with the cell of a column: parameters of a test."""
    section = (
        GUIDE.read_text(encoding="utf-8").partition("## Types of ids\n")[2].partition("\n#")[0]
    )
    table = [line.strip("|") for line in section.splitlines() if line.startswith("|")]
    lines = [[cell.strip() for cell in line.split("|")] for line in table]
    place = lines[0].index(column)
    return [
        pytest.param(ids, line[place], id=f"{ids.type}")
        for line in lines[2:]
        for name in line[0].split(", ")
        for ids in IDS[name]
    ]


def named(ids, cell):
    """The type of Spark that such ids have in a model."""
    return {"yes": spark_name(as_spark(ids.type)), "text": "string"}.get(cell, cell)


def ratings_of(ids):
    """Ratings of users and items with such ids: a line for every pair."""
    pairs = [(user, item) for user in range(len(ids)) for item in range(len(ids))]
    users, items = (ids.take(pa.array(side)) for side in zip(*pairs, strict=True))
    labels = [(user * item + user) % 2 for user, item in pairs]
    return pa.table({"user": users, "item": items, "label": labels})
