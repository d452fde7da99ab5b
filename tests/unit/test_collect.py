"""Ids that arrive in parts are numbered as if they had arrived at once."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.input import accumulators
from onebit_spark.input.accumulators import Encoded, GrowingDictionary

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


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("most", [0, 60, 2**31 - 1])
def test_text_beyond_32_bit_offsets(monkeypatch, kind, most):
    """No array of 32-bit offsets is longer than they can tell. What fits returns in the type that it came in."""
    monkeypatch.setattr(accumulators, "MOST_TEXT", most)
    whole = [f"{7 * k % 10}".encode() for k in range(20)]
    joined, plain = [], pa.concat_arrays
    monkeypatch.setattr(pa, "concat_arrays", lambda arrays: joined.append(list(arrays)) or plain(arrays))
    found, ids = numbered([whole[:8], whole[8:16], whole[16:]], kind)
    assert ids.cast(pa.binary()).to_pylist() == sorted(set(whole))
    assert [ids[int(k)].cast(pa.binary()).as_py() for k in found] == whole
    assert (ids.type == kind) is (ids.nbytes <= most)
    assert all(sum(part.nbytes for part in parts) <= most for parts in joined if parts[0].type == kind)
    growing = GrowingDictionary()
    numbers = [growing.add(pa.chunked_array([pa.array(part, kind)]))[0] for part in (whole[:8], whole[8:])]
    assert np.concatenate(numbers).tolist() == [list(dict.fromkeys(whole)).index(text) for text in whole]


def test_an_id_that_comes_in_many_parts_is_kept_once():
    """The parts repeat the same ids, as ratings in random order do."""
    rng, ids = np.random.default_rng(0), pa.array([f"{k:036}" for k in range(1000)])
    encoded, before = Encoded(), pa.total_allocated_bytes()
    for _ in range(50):
        encoded.add(pa.chunked_array([ids.take(pa.array(rng.integers(0, 1000, 2000)))]))
        positions = 4 * sum(map(len, encoded._positions))
    assert pa.total_allocated_bytes() - before < positions + 3 * ids.nbytes
    found, known = encoded.numbered()
    assert known.equals(ids)
    assert len(found) == 50 * 2000
