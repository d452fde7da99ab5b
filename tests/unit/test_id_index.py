"""Ids of any type against dictionaries: found, encoded as they arrive in parts, counted."""

import pickle
from collections import Counter
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit_spark.data import id_index
from onebit_spark.data import user_tables as user_data
from onebit_spark.data.id_index import IdColumn, IdIndex, encode, hashes_of, sum_by_id

whole = st.integers(-(2**63), 2**63 - 1)
KINDS = {
    "integers": (st.integers(-40, 40), pa.int64()),
    "at the ends of 64 bits": (
        st.sampled_from([-(2**63), 1 - 2**63, 0, 2**63 - 2, 2**63 - 1]),
        pa.int64(),
    ),
    "wide integers": (whole | st.integers(-3, 3), pa.int64()),
    "short integers": (st.integers(-(2**15), 2**15 - 1), pa.int16()),
    "bytes as integers": (st.integers(-128, 127), pa.int8()),
    "text": (st.text(max_size=3), pa.string()),
    "long text": (st.text(max_size=3), pa.large_string()),
    "bytes": (st.binary(max_size=3), pa.binary()),
    "booleans": (st.booleans(), pa.bool_()),
    "fractions": (st.floats(allow_nan=False), pa.float64()),
    "dates": (st.dates(date(2020, 1, 1), date(2020, 3, 1)), pa.date32()),
    "decimals": (st.decimals(-9, 9, places=1), pa.decimal128(4, 1)),
}


def check(values, asked, kind):
    ascending = sorted(values)
    place = {value: i for i, value in enumerate(ascending)}
    index = IdIndex(pa.array(ascending, kind))
    for again in (index, pickle.loads(pickle.dumps(index))):
        found = again.find(pa.array(asked, kind))
        assert found.dtype == np.int32
        assert found.tolist() == [place.get(value, -1) for value in asked]
    backwards = IdIndex(pa.array(ascending[::-1], kind)).find(
        pa.chunked_array([pa.array(asked, kind)])
    )
    assert backwards.tolist() == [
        len(place) - 1 - place[value] if value in place else -1 for value in asked
    ]
    with_null = index.find(pa.array([None, *asked, None], kind))
    assert with_null.tolist() == [-1, *found.tolist(), -1]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dense", [0, 16])
@settings(max_examples=15)
@given(data=st.data())
def test_every_id_is_found_and_no_other(name, dense, data):
    of, kind = KINDS[name]
    values = data.draw(st.sets(of, max_size=40))
    others = data.draw(st.lists(of, max_size=20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index, "DENSE_PER_ID", dense)
        check(values, data.draw(st.permutations([*values, *others])), kind)


def test_two_ids_with_one_hash(monkeypatch):
    monkeypatch.setattr(
        id_index, "hashes_of", lambda ids: np.array([len(str(i)) for i in ids], np.uint64)
    )
    check({"a", "b", "cc", "dd"}, ["dd", "e", "a", "cc", "b", "fff"], pa.string())


@pytest.mark.parametrize(
    "kinds", [(pa.int8(), pa.int64()), (pa.int64(), pa.int16()), (pa.int32(), pa.uint8())]
)
def test_integers_of_all_widths_and_text_of_both_offsets_are_comparable(kinds):
    known, asked = kinds
    assert IdIndex(pa.array([5, 1, 100], known)).find(pa.array([100, 7, 5], asked)).tolist() == [
        2,
        -1,
        0,
    ]
    for known, asked in ((pa.string(), pa.large_string()), (pa.large_string(), pa.string())):
        assert IdIndex(pa.array(["b", "a"], known)).find(pa.array(["a", "c"], asked)).tolist() == [
            1,
            -1,
        ]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2**40)), max_size=30))
def test_counts_are_summed_by_id(pairs):
    ids = pa.array([name for name, _ in pairs], pa.string())
    counts = np.array([n for _, n in pairs], np.int64)
    codes, different = encode(ids)
    assert different.take(pa.array(codes)).equals(ids)
    found, (totals, lines) = sum_by_id(ids, counts, np.ones(len(pairs)))
    assert found.equals(different)
    expected = Counter()
    for name, n in pairs:
        expected[name] += n
    assert dict(zip(found.to_pylist(), totals.tolist(), strict=True)) == expected
    assert dict(zip(found.to_pylist(), lines.tolist(), strict=True)) == Counter(
        name for name, _ in pairs
    )


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 3],
        ["ü", "", "ü"],
        [b"x", b"y", b"x"],
        [0.5, -1.0, 0.5],
        [True, False, True],
        [Decimal("1.5"), Decimal("2.5"), Decimal("1.5")],
        [date(2020, 1, 1), date(2021, 1, 1), date(2020, 1, 1)],
    ],
)
def test_equal_ids_have_equal_hashes(ids):
    """Also in a slice of an array."""
    first, other, same = hashes_of(pa.array(ids))
    assert first == same != other
    assert hashes_of(pa.array([ids[1], *ids]).slice(1)).tolist() == [first, other, same]


integers = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 40), max_size=60)


@pytest.mark.parametrize(
    "ids", [pa.array([1, None]), pa.array([1.0, float("nan")]), pa.array(["a", None])]
)
def test_null_and_nan_are_noticed(ids):
    assert not IdColumn().add(pa.chunked_array([ids]))


IDS = st.lists(
    st.lists(st.sampled_from(["a", "b", "ä", "", "B", "a\u0000", "zz"]), max_size=8),
    min_size=1,
    max_size=4,
)


def numbered(parts, kind):
    encoded = IdColumn()
    for part in parts:
        half = len(part) // 2
        encoded.add(pa.chunked_array([pa.array(part[:half], kind), pa.array(part[half:], kind)]))
    return encoded.positions()


@given(IDS)
def test_text(parts):
    found, ids = numbered(parts, pa.string())
    whole = [text for part in parts for text in part]
    assert ids.to_pylist() == sorted(set(whole), key=lambda text: text.encode())
    assert [ids[int(k)].as_py() for k in found] == whole


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("most", [0, 60, 2**31 - 1])
def test_text_beyond_32_bit_offsets(monkeypatch, kind, most):
    """No array of 32-bit offsets is longer than they can tell.

    What fits returns in the type that it came in.
    """
    monkeypatch.setattr(user_data, "MOST_TEXT", most)
    monkeypatch.setattr(id_index, "FEW", 0)
    whole = [f"{7 * k % 10}".encode() for k in range(20)]
    joined = []
    plain = pa.concat_arrays
    monkeypatch.setattr(
        pa, "concat_arrays", lambda arrays: joined.append(list(arrays)) or plain(arrays)
    )
    found, ids = numbered([whole[:8], whole[8:16], whole[16:]], kind)
    assert ids.cast(pa.binary()).to_pylist() == sorted(set(whole))
    assert [ids[int(k)].cast(pa.binary()).as_py() for k in found] == whole
    assert (ids.type == kind) is (ids.nbytes <= most)
    assert all(
        sum(part.nbytes for part in parts) <= most for parts in joined if parts[0].type == kind
    )


def test_an_id_that_comes_in_many_parts_is_kept_a_few_times(monkeypatch):
    """The parts repeat the same ids, as ratings in random order do."""
    monkeypatch.setattr(id_index, "FEW", 0)
    rng = np.random.default_rng(0)
    ids = pa.array([f"{k:036}" for k in range(1000)])
    encoded = IdColumn()
    before = pa.total_allocated_bytes()
    for _ in range(50):
        encoded.add(pa.chunked_array([ids.take(pa.array(rng.integers(0, 1000, 2000)))]))
        positions = 4 * sum(map(len, encoded._codes))
    assert pa.total_allocated_bytes() - before < positions + 4 * ids.nbytes
    found, known = encoded.positions()
    assert known.equals(ids)
    assert len(found) == 50 * 2000


@given(st.lists(integers, min_size=1, max_size=6), st.sampled_from([0, 8, 1 << 20]), st.booleans())
def test_ids_that_arrive_in_parts(parts, few, ascending):
    """Positions among all different ids, whenever the dictionaries of the parts are merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index, "FEW", few)
        encoded = IdColumn()
        for part in parts:
            assert encoded.add(pa.chunked_array([pa.array(part, pa.int64())]))
        numbers, known = encoded.positions(ascending)
    everything = [value for part in parts for value in part]
    assert (known.to_pylist() if ascending else sorted(known.to_pylist())) == sorted(
        set(everything)
    )
    assert known.take(pa.array(numbers)).to_pylist() == everything


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()], ids=str)
def test_integers_of_a_narrow_range_are_encoded_by_a_table_of_it(kind):
    ids = pa.array(np.random.default_rng(0).integers(-128, 128, 3000), pa.int64()).cast(kind)
    codes, different = encode(ids)
    assert different.type == kind
    assert len(different) == len(set(ids.to_pylist()))
    assert different.take(pa.array(codes)).equals(ids)
