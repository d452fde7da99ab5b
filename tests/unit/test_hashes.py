"""Spark's xxhash64 against XXH64 written down plainly, and the sketch of fitted cells against brute
force.
"""

import datetime
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.data import hashes as sketch
from onebit_spark.data.hashes import (
    HIGHEST,
    LOWEST,
    SALT,
    SALT_HASH,
    SPARK_SEED,
    CellSketch,
    cell_hashes,
    coin_drawn,
    hashed,
    limit_for,
    merged_sketch,
)

P1 = 0x9E3779B185EBCA87
P2 = 0xC2B2AE3D27D4EB4F
P3 = 0x165667B19E3779F9
P4 = 0x85EBCA77C2B2AE63
P5 = 0x27D4EB2F165667C5
M = 2**64 - 1

# XXH64 with the seed 0, from the reference implementation's documentation
PUBLISHED = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


def turned(x, bits):
    return (x << bits | x >> (64 - bits)) & M


def xxh64(data, seed):
    """XXH64 of bytes (Collet, 2012), in Python's integers."""

    def stir(x, word):
        return turned((x + word * P2) & M, 31) * P1 & M

    def words(size):
        nonlocal rest
        while len(rest) >= size:
            yield int.from_bytes(rest[:size], "little")
            rest = rest[size:]

    rest = data
    x = (seed + P5) & M
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & M, (seed + P2) & M, seed, (seed - P1) & M]
        while len(rest) >= 32:
            lanes = [
                stir(lane, int.from_bytes(rest[8 * k : 8 * k + 8], "little"))
                for k, lane in enumerate(lanes)
            ]
            rest = rest[32:]
        x = sum(turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & M
        for lane in lanes:
            x = ((x ^ stir(0, lane)) * P1 + P4) & M
    x = (x + len(data)) & M
    for word in words(8):
        x = (turned(x ^ stir(0, word), 27) * P1 + P4) & M
    for word in words(4):
        x = (turned(x ^ (word * P1 & M), 23) * P2 + P3) & M
    for word in words(1):
        x = turned(x ^ (word * P5 & M), 11) * P1 & M
    x = (x ^ x >> 33) * P2 & M
    x = (x ^ x >> 29) * P3 & M
    return x ^ x >> 32


def as_spark_hashes(value, kind):
    """The bytes of a value that Spark's XxHash64 takes up, by the type of its column."""
    if pa.types.is_string(kind):
        return value.encode()
    if pa.types.is_binary(kind):
        return value
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width < 64):
        return int(value).to_bytes(4, "little", signed=True)
    if pa.types.is_integer(kind):
        return value.to_bytes(8, "little", signed=True)
    if pa.types.is_floating(kind):
        return (np.float32 if kind.bit_width == 32 else np.float64)(value + 0.0).tobytes()
    if pa.types.is_date(kind):
        return (value - datetime.date(1970, 1, 1)).days.to_bytes(4, "little", signed=True)
    if pa.types.is_timestamp(kind):
        micros = (value - datetime.datetime(1970, 1, 1, tzinfo=value.tzinfo)) // datetime.timedelta(
            microseconds=1
        )
        return micros.to_bytes(8, "little", signed=True)
    unscaled = int(value.scaleb(kind.scale, Context(prec=40)))
    if kind.precision <= 18:
        return unscaled.to_bytes(8, "little", signed=True)
    size = next(n for n in range(1, 20) if -(2 ** (8 * n - 1)) <= unscaled < 2 ** (8 * n - 1))
    return unscaled.to_bytes(size, "big", signed=True)  # BigInteger.toByteArray


COLUMNS = {
    "string": pa.array(["", "a", "Grüße", "x" * 31, "y" * 32, "z" * 77]),
    "binary": pa.array([b"", b"\x00\xff", bytes(range(40))]),
    "boolean": pa.array([True, False]),
    "tinyint": pa.array([-128, 0, 127], pa.int8()),
    "int": pa.array([-(2**31), -1, 7], pa.int32()),
    "bigint": pa.array([-(2**63), 2**63 - 1, 0], pa.int64()),
    "float": pa.array([0.5, -0.0, 3e38], pa.float32()),
    "double": pa.array([0.1, -0.0, 1e300], pa.float64()),
    "date": pa.array([datetime.date(1969, 12, 31), datetime.date(2026, 1, 1)]),
    "timestamp": pa.array(
        [datetime.datetime(2020, 5, 17, 1, 2, 3, 456)], pa.timestamp("us", "UTC")
    ),
    "decimal(10,2)": pa.array([Decimal("-12.34"), Decimal("99999999.99")], pa.decimal128(10, 2)),
    "decimal(38,0)": pa.array(
        [Decimal(10**37 + k) for k in (0, 1, -2)] + [Decimal(-(10**37))], pa.decimal128(38, 0)
    ),
    "decimal(30,3)": pa.array(
        [Decimal("-0.001"), Decimal("123456789012345678901234.567")], pa.decimal128(30, 3)
    ),
}


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_values(text):
    assert xxh64(text, 0) == PUBLISHED[text]
    assert hashed(pa.array([text]), np.zeros(1, np.uint64)).tolist() == [PUBLISHED[text]]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_of_ids(name):
    column = COLUMNS[name]
    seeds = np.arange(len(column), dtype=np.uint64) * np.uint64(2**61 + 3)
    expected = [
        xxh64(as_spark_hashes(value, column.type), int(seed))
        for value, seed in zip(column.to_pylist(), seeds, strict=True)
    ]
    assert hashed(column, seeds).tolist() == expected
    sliced = pa.concat_arrays([column, column]).slice(1)  # offsets that do not begin at 0
    assert hashed(sliced, np.zeros(len(sliced), np.uint64)).tolist() == [
        xxh64(as_spark_hashes(value, column.type), 0) for value in sliced.to_pylist()
    ]


def test_the_hash_of_the_salt():
    assert xxh64(SALT.encode(), int(SPARK_SEED)) == SALT_HASH


@given(
    st.lists(
        st.tuples(st.text(max_size=40), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=8
    )
)
def test_cells_of_text_and_integers(pairs):
    users = pa.array([user for user, _ in pairs])
    items = pa.array([item for _, item in pairs], pa.int32())
    expected = [
        xxh64(item.to_bytes(8, "little", signed=True), xxh64(user.encode(), SALT_HASH))
        for user, item in pairs
    ]
    assert cell_hashes(users, items).view(np.uint64).tolist() == expected


def test_integers_of_all_widths_are_the_same_cells():
    narrow = pa.array([1, -2, 3], pa.int16())
    wide = pa.array([1, -2, 3], pa.int64())
    text = pa.array(["a", "b", "c"])
    np.testing.assert_array_equal(cell_hashes(narrow, wide), cell_hashes(wide, narrow))
    np.testing.assert_array_equal(cell_hashes(narrow, text), cell_hashes(wide, text))


@pytest.mark.parametrize("seed", [0, 7, -3, 2**40])
def test_the_coin_of_a_cell(seed):
    """As Spark: by the ids' own widths, and an integer literal is as wide as it must be."""
    users = pa.array([5, 6], pa.int32())
    items = pa.array(["x", "y"])
    word = seed.to_bytes(4 if -(2**31) <= seed < 2**31 else 8, "little", signed=True)
    start = xxh64(word, int(SPARK_SEED))
    expected = [
        xxh64(item.encode(), xxh64(user.to_bytes(4, "little"), start)) >> 32
        for user, item in ((5, "x"), (6, "y"))
    ]
    assert coin_drawn(users, items, seed).tolist() == expected


HASHES = st.lists(st.integers(-40, 40).map(lambda x: x * 2**57), max_size=60)
LIMITS = st.integers(-41, 41).map(lambda x: x * 2**57 + 3)


def make(hashes, limit=HIGHEST):
    """The sketch of ratings, given the hash of each one's cell."""
    hashes = np.asarray(hashes, np.int64)
    return CellSketch(limit, *np.unique(hashes[hashes <= limit], return_counts=True))


def same(one, other):
    return (
        one.limit == other.limit
        and np.array_equal(one.hashes, other.hashes)
        and np.array_equal(one.ratings, other.ratings)
    )


def random_hashes(cells, seed=7):
    """A hash for every cell, one of the table's that is as long as they need."""
    return np.random.default_rng(seed).integers(
        LOWEST, HIGHEST, int(np.max(cells)) + 1, endpoint=True
    )[cells]


def test_the_limit_keeps_about_as_many_as_it_says():
    assert limit_for(1) == limit_for(sketch.KEPT) == HIGHEST
    for n in (sketch.KEPT + 1, 10**7, 3 * 10**10):
        assert (limit_for(n) - LOWEST + 1) / 2**64 * n == pytest.approx(sketch.KEPT)


@given(HASHES, HASHES, LIMITS, LIMITS)
def test_shares_are_those_of_a_count(first, second, one, two):
    compared = make(first, one).compared(make(second, two))
    limit = min(one, two)
    known, asked = ([h for h in part if h <= limit] for part in (first, second))
    assert compared.looked_at == len(asked)
    if known and asked:
        assert compared.share == pytest.approx(sum(h in known for h in asked) / len(asked))
        alone = sum(known.count(h) == 1 for h in known)
        assert compared.expected == pytest.approx(1 - alone / len(known))
    else:
        assert not compared.stale
        assert not compared.conclusive


@given(HASHES, HASHES, LIMITS, LIMITS)
def test_merging_is_a_sketch_of_both(first, second, one, two):
    merged = make(first, one).merged(make(second, two))
    whole = make(first + second, min(one, two))
    assert merged.limit == whole.limit
    assert np.array_equal(merged.hashes, whole.hashes)
    assert np.all(merged.ratings <= whole.ratings)
    assert same(merged.merged(make(first, one)), merged)


def test_ratings_add_up_where_they_are_fresh_and_not_where_they_were_fitted_before():
    rng = np.random.default_rng(0)
    first, second = (make(random_hashes(rng.zipf(1.3, 20_000) % 50_000)) for _ in range(2))
    merged = first.merged(second)
    assert merged.n_ratings == first.n_ratings + second.n_ratings
    assert merged.compared(make(random_hashes(rng.zipf(1.3, 5_000) % 50_000))).stale is False
    once = make(np.arange(1000))
    assert same(once.merged(once), once)
    assert once.merged(once).compared(once).stale


def test_what_came_before_is_unknown_without_a_sketch():
    new = make(np.arange(100))
    assert not merged_sketch(None, new).complete
    assert not merged_sketch(merged_sketch(None, new), new).complete
    assert merged_sketch(new, new).complete


@pytest.mark.parametrize(
    ("exponent", "n", "asked", "share"),
    [(1.3, 5_000, 2_000, 1), (1.05, 20_000, 20_000, 0.1), (2.0, 500, 5_000, 0.5)],
)
def test_fresh_samples_with_many_repeats_pass(exponent, n, asked, share):
    """Cells drawn with replacement from a power law: the standard error is right, so three of them
    are rare.
    """
    limit = LOWEST + int(share * 2**64) - 1
    compared = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        fitted, fresh = (
            random_hashes(rng.zipf(exponent, size) % 40_000, seed) for size in (n, asked)
        )
        compared.append(make(fitted, limit).compared(make(fresh, limit)))
    deviations = [(found.share - found.expected) / found.error for found in compared]
    assert abs(np.mean(deviations)) < 0.4
    assert np.std(deviations) == pytest.approx(1, abs=0.3)
    assert sum(found.stale for found in compared) <= 2


@pytest.mark.parametrize("stolen", [1.0, 0.5, 0.05])
def test_a_part_of_the_fit_is_noticed(stolen):
    """Among fresh ratings, from 2,000,000 cells of which 5% have been rated."""
    rng = np.random.default_rng(1)
    fitted, fresh = (random_hashes(rng.integers(0, 2_000_000, 100_000), 3) for _ in range(2))
    n = int(10_000 * stolen)
    mixed = np.concatenate([fitted[:n], fresh[: 10_000 - n]])
    assert make(fitted, HIGHEST).compared(make(mixed, HIGHEST)).stale is (stolen > 0.01)
    assert not make(fitted, HIGHEST).compared(make(fresh, HIGHEST)).stale


@pytest.mark.parametrize(("n", "stale"), [(1_000, False), (100_000, True)])
def test_the_tolerance_falls_with_the_number_of_ratings(n, stale):
    """Half a percent of fitted ratings is far less than the margin of a bound from 1,000, and more
    than one of 100,000.

    Fresh samples are accepted all the same.
    """
    rng = np.random.default_rng(2)
    fitted, fresh = (rng.integers(LOWEST, HIGHEST, size, endpoint=True) for size in (200_000, n))
    known = make(fitted)
    stolen = n // 200
    assert known.compared(make(np.concatenate([fitted[:stolen], fresh[stolen:]]))).stale is stale
    assert not known.compared(make(fresh)).stale


def test_few_ratings():
    known = make(np.arange(1000))
    assert known.compared(make([5])).stale
    assert known.compared(make([5, 6, 7, 2000])).stale  # three of four, where none is expected
    alone = known.compared(make([2000, 2001]))
    assert (alone.stale, alone.conclusive) == (False, False)
    few = make(np.arange(40))  # one in 42 may be a repeat for all that is known
    assert not few.compared(make([5, *range(100, 149)])).stale
    often = make(np.repeat(np.arange(100), 2))  # every fresh rating is of a known cell
    assert not often.compared(often).stale
    assert not often.compared(often).conclusive


def test_no_hash_above_the_own_limit():
    """Ratings that come in batches are kept under a limit that falls as they come."""
    kept = CellSketch(10, np.array([5, 20]), np.array([1, 1])).up_to(100)
    assert (kept.limit, kept.hashes.tolist()) == (10, [5])
