"""Ids that arrive in parts are numbered as if they had arrived at once."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.input.readings import Encoded

IDS = st.lists(st.lists(st.sampled_from(["a", "b", "ä", "", "B", "a\u0000", "zz"]), max_size=8), min_size=1, max_size=4)
NUMBERS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), min_size=1, max_size=4)


def numbered(parts, kind):
    encoded = Encoded()
    for part in parts:
        half = len(part) // 2
        encoded.add(pa.chunked_array([pa.array(part[:half], kind), pa.array(part[half:], kind)]))
    return encoded.numbered()


@given(IDS)
def test_text(parts):
    found, ids = numbered(parts, pa.string())
    whole = [text for part in parts for text in part]
    assert ids.to_pylist() == sorted(set(whole), key=lambda text: text.encode())
    assert [ids[int(k)].as_py() for k in found] == whole


@given(NUMBERS)
def test_numbers(parts):
    found, ids = numbered(parts, pa.int64())
    whole = np.array([number for part in parts for number in part], np.int64)
    known, expected = np.unique(whole, return_inverse=True)
    assert ids.to_pylist() == known.tolist()
    np.testing.assert_array_equal(found, expected)
