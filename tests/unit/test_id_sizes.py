"""The memory of ids that are text, estimated from the first rows."""

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark.input.tables import ArrowTable, id_text_bytes, n_different


def first(ids, n=1000):
    return pa.array([f"id-{number:06}" for number in ids[:n]])


ROWS = 100_000
IDS = {  # of all rows: what they are, and how far off the estimate may be
    "new": (np.arange(ROWS), 1.01),
    "sorted": (np.arange(ROWS) // 20, 1.2),
    "few": (np.random.default_rng(0).integers(0, 50, ROWS), 1.01),
    "many": (np.random.default_rng(1).integers(0, 30_000, ROWS), 3.5),
    "uneven": ((30_000 * np.random.default_rng(2).random(ROWS) ** 4).astype(int), 3.5),
}


@pytest.mark.parametrize("name", IDS)
def test_how_many_differ(name):
    ids, factor = IDS[name]
    expected, found = len(np.unique(ids)), n_different(first(ids), ROWS)
    assert expected / factor <= found <= expected * factor


def test_only_text_counts():
    table = pa.table({"User": first(np.arange(1000)), "item": np.arange(1000), "label": ["1"] * 1000})
    opened = ArrowTable.of(table)
    assert id_text_bytes(opened, ("user", "item"), 1000) == pytest.approx(1000 * (9 + 4), rel=0.01)
    assert id_text_bytes(opened, ("user", "item"), 10**6) == pytest.approx(10**6 * (9 + 4), rel=0.01)
    assert id_text_bytes(opened, ("item",), 10**6) == id_text_bytes(opened, ("nothing",), 10**6) == 0
    assert id_text_bytes(ArrowTable.of(table.slice(0, 1)), ("user",), 10**6) == 0
