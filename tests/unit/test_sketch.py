"""The sketch of fitted cells: exact against brute force, and a fair judge of fresh samples."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.core import hashes as sketch
from onebit_spark.core.hashes import HIGHEST, LOWEST, CellSketch, limit_for, merged_sketch

HASHES = st.lists(st.integers(-40, 40).map(lambda x: x * 2**57), max_size=60)
LIMITS = st.integers(-41, 41).map(lambda x: x * 2**57 + 3)


def make(hashes, limit=HIGHEST):
    """The sketch of ratings, given the hash of each one's cell."""
    kept = Counter(int(h) for h in hashes if h <= limit)
    cells = np.array(sorted(kept), np.int64)
    return CellSketch(limit, cells, np.array([kept[int(h)] for h in cells], np.int64))


def same(one, other):
    return (
        one.limit == other.limit
        and np.array_equal(one.hashes, other.hashes)
        and np.array_equal(one.ratings, other.ratings)
    )


def hashed(cells, seed=7):
    """A hash for every cell, one of the table's that is as long as they need."""
    return np.random.default_rng(seed).integers(LOWEST, HIGHEST, int(np.max(cells)) + 1, endpoint=True)[cells]


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
    first, second = (make(hashed(rng.zipf(1.3, 20_000) % 50_000)) for _ in range(2))
    merged = first.merged(second)
    assert merged.n_ratings == first.n_ratings + second.n_ratings
    assert merged.compared(make(hashed(rng.zipf(1.3, 5_000) % 50_000))).stale is False
    once = make(np.arange(1000))
    assert same(once.merged(once), once)
    assert once.merged(once).compared(once).stale


def test_what_came_before_is_unknown_without_a_sketch():
    new = make(np.arange(100))
    assert not merged_sketch(None, new).complete
    assert not merged_sketch(merged_sketch(None, new), new).complete
    assert merged_sketch(new, new).complete


@pytest.mark.parametrize("exponent", [1.05, 1.3, 2.0])
@pytest.mark.parametrize(("n", "asked", "share"), [(5_000, 2_000, 1), (20_000, 20_000, 0.1), (500, 5_000, 0.5)])
def test_fresh_samples_with_many_repeats_pass(exponent, n, asked, share):
    """Cells drawn with replacement from a power law: the standard error is right, so three of them are rare."""
    limit = LOWEST + int(share * 2**64) - 1
    compared = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        fitted, fresh = (hashed(rng.zipf(exponent, size) % 40_000, seed) for size in (n, asked))
        compared.append(make_fast(fitted, limit).compared(make_fast(fresh, limit)))
    deviations = [(found.share - found.expected) / found.error for found in compared]
    assert abs(np.mean(deviations)) < 0.4
    assert np.std(deviations) == pytest.approx(1, abs=0.3)
    assert sum(found.stale for found in compared) <= 2


def make_fast(hashes, limit):
    cells, ratings = np.unique(hashes[hashes <= limit], return_counts=True)
    return CellSketch(limit, cells, ratings.astype(np.int64))


@pytest.mark.parametrize("stolen", [1.0, 0.5, 0.05])
def test_a_part_of_the_fit_is_noticed(stolen):
    """Among fresh ratings, from 2,000,000 cells of which 5% have been rated."""
    rng = np.random.default_rng(1)
    fitted, fresh = (hashed(rng.integers(0, 2_000_000, 100_000), 3) for _ in range(2))
    n = int(10_000 * stolen)
    mixed = np.concatenate([fitted[:n], fresh[: 10_000 - n]])
    assert make_fast(fitted, HIGHEST).compared(make_fast(mixed, HIGHEST)).stale is (stolen > 0.01)
    assert not make_fast(fitted, HIGHEST).compared(make_fast(fresh, HIGHEST)).stale


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
