"""Ratings packed by a task: the same ratings under numbers of their own, every id counted once."""

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark import FitFailed
from onebit_spark.engines.blocking import Placement, _encode_numbers
from onebit_spark.input import batches
from onebit_spark.input.batches import CountIds, Pack, read_bundles, sum_counts
from onebit_spark.input.ratings import ITEM, LABEL, USER
from onebit_spark.platform.binary_cells import binary_line, cell_array

ratings = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.integers(-3, 9) | st.integers(0, 2**40), st.booleans()), max_size=80
)


@given(ratings, st.integers(1, 7), st.integers(1, 30))
def test_bundles_hold_the_ratings(lines, bundle, segment):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BUNDLE", bundle)
        patch.setattr(batches, "SEGMENT", segment)
        packed = list(Pack(None)(iter(raw_batches(lines, 3))))
        found, segment, users, items = [], None, [], []
        for part in read_bundles(iter(packed)):
            if part.segment != segment:
                segment, users, items = part.segment, [], []
            users += part.user_ids.to_pylist()
            items += part.item_ids.to_pylist()
            found += [
                (users[user], items[code >> 1], bool(code & 1))
                for user, code in zip(part.users, part.codes, strict=True)
            ]
        assert found == lines
        partial = list(CountIds(3)(iter(packed)))
    counts = Counter()
    for part in range(3):
        here = (batch for batch in partial if batch.column("part")[0].as_py() == part)
        for batch in sum_counts(here):
            for line in batch.to_pylist():
                key = (line["side"], line[USER] if line["side"] == 1 else line[ITEM])
                assert key not in counts
                counts[key] = (line["n"], line["above"])
    for side in (1, 2):
        ids = [line[side - 1] for line in lines]
        for name in set(ids):
            own = [line[2] for line in lines if line[side - 1] == name]
            assert counts.pop((side, name)) == (len(own), sum(own))
    assert not counts


def test_few_hashes_are_kept_for_the_sketch(monkeypatch):
    """At least those below the limit for all ratings of the task, whatever its bundles."""
    monkeypatch.setattr(batches, "BUNDLE", 100)
    monkeypatch.setattr("onebit_spark.core.hashes.KEPT", 50)
    rng = np.random.default_rng(1)
    lines = [("a", int(item), True) for item in rng.integers(0, 10**6, 1000)]
    cells = [cell_array(line.column("cells")[0], np.int64) for line in Pack(None)(iter(raw_batches(lines, 100)))]
    whole = raw_batches(lines, 1000)[0]
    hashes = np.sort(whole.column("__onebit_hash").to_numpy())
    kept = np.sort(np.concatenate(cells))
    limit = batches.limit_for(1000)
    np.testing.assert_array_equal(kept[kept <= limit], hashes[hashes <= limit])
    assert len(kept) < 300


def raw_batches(lines, size):
    users, items, labels = zip(*lines, strict=True) if lines else ((), (), ())
    hashes = [hash((user, item)) for user, item in zip(users, items, strict=True)]
    table = pa.table(
        {
            USER: pa.array(users, pa.string()),
            ITEM: pa.array(items, pa.int64()),
            LABEL: pa.array([1 if label else -1 for label in labels], pa.int8()),
            "__onebit_hash": pa.array(hashes, pa.int64()),
        }
    )
    return table.to_batches(max_chunksize=size)


def test_numbers_must_belong_to_the_ids():
    """Numbers that were found for a segment before it was packed again, with its ids in another order, are refused."""
    lines = [("b", 3, True), ("a", 1, False), ("c", 1, True)]
    bundle, _ = Pack(None)(iter(raw_batches(lines, 3)))  # and the counts of its ids
    bundles = pa.Table.from_batches([bundle])
    encode = partial(_encode_numbers, Placement(1, np.empty(0, np.int64), np.empty(0, np.int32)), False)
    users = {"places": np.array([0, 1, 2], np.int32), "numbers": np.array([1, 0, 2])}
    items = {"places": np.array([1, 0], np.int32), "numbers": np.array([0, 1])}
    (chunk,) = encode(bundles, returned(users, items)).to_pylist()
    assert np.frombuffer(chunk["rows"], np.int32).tolist() == [1, 0, 2]
    assert np.frombuffer(chunk["codes"], np.int32).tolist() == [3, 0, 1]
    other = {"places": np.array([0, 1, 2], np.int32), "numbers": np.array([0, 1, 2])}
    fewer = {"places": np.array([0, 1], np.int32), "numbers": np.array([1, 0])}
    more = {"places": np.array([0, 1, 2, 3], np.int32), "numbers": np.array([1, 0, 2, 3])}
    for wrong in (other, fewer, more):
        with pytest.raises(FitFailed, match="not deterministic"):
            encode(bundles, returned(wrong, items))


def test_a_part_with_a_single_item():
    bundle, _ = Pack(None)(iter(raw_batches([("b", 3, True), ("a", 3, False)], 2)))
    encode = partial(_encode_numbers, Placement(1, np.empty(0, np.int64), np.empty(0, np.int32)), False)
    users = {"places": np.array([0, 1], np.int32), "numbers": np.array([8, 5])}
    items = {"places": np.array([0], np.int32), "numbers": np.array([4])}
    (chunk,) = encode(pa.Table.from_batches([bundle]), returned(users, items)).to_pylist()
    assert np.frombuffer(chunk["rows"], np.int32).tolist() == [8, 5]
    assert np.frombuffer(chunk["codes"], np.int32).tolist() == [9, 8]


def returned(users, items):
    return pa.Table.from_batches(
        [binary_line(segment=0, side=side, **cells) for side, cells in enumerate((users, items))]
    )
