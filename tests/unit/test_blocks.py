"""RatingBlock against a brute-force dictionary of the ratings."""

import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark.core.blocks import MAX_COLUMNS, RatingBlock
from onebit_spark.core.randomness import Split

triples = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), max_size=60)
shapes = st.tuples(st.integers(8, 11), st.integers(6, 9))  # a few rows and columns beyond the ratings


def make(ratings, shape):
    rows, cols, positive = (np.array([r[i] for r in ratings], t) for i, t in enumerate((np.int64, np.int64, bool)))
    return RatingBlock.from_coordinates(rows, cols, positive, shape)


def read(block):
    """The ratings of a block as (row, column, label), in the order of the block."""
    return [
        (i, int(code >> 1), bool(code & 1))
        for i in range(block.n_rows)
        for code in block.codes[block.row_pointers[i] : block.row_pointers[i + 1]]
    ]


@given(triples, shapes)
def test_from_coordinates_against_a_dictionary(ratings, shape):
    block = make(ratings, shape)
    assert (block.n_rows, block.n_columns, block.n_ratings) == (*shape, len(ratings))
    # By row, then column, then label, and every repetition counts: just the sorted list.
    assert read(block) == sorted(ratings)
    by_row = defaultdict(list)
    for i, _, positive in ratings:
        by_row[i].append(positive)
    assert block.row_counts.tolist() == [len(by_row[i]) for i in range(shape[0])]
    assert block.row_positives.tolist() == [sum(by_row[i]) for i in range(shape[0])]


@given(triples, shapes)
def test_transpose(ratings, shape):
    block = make(ratings, shape)
    turned = block.transpose()
    assert (turned.n_rows, turned.n_columns) == shape[::-1]
    assert read(turned) == sorted((j, i, positive) for i, j, positive in ratings)
    again = turned.transpose()
    np.testing.assert_array_equal(again.row_pointers, block.row_pointers)
    np.testing.assert_array_equal(again.codes, block.codes)


@given(triples, st.randoms())
def test_input_order_does_not_matter(ratings, random):
    shuffled = random.sample(ratings, len(ratings))
    np.testing.assert_array_equal(make(ratings, (8, 6)).codes, make(shuffled, (8, 6)).codes)


weighted_triples = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans(), st.floats(2**-20, 2.0**20, width=32)), max_size=60
)


def make_weighted(ratings, shape):
    rows, cols, positive, weights = (
        np.array([r[i] for r in ratings], t) for i, t in enumerate((np.int64, np.int64, bool, np.float32))
    )
    return RatingBlock.from_coordinates(rows, cols, positive, shape, weights)


def read_weighted(block):
    return [(*rating, float(weight)) for rating, weight in zip(read(block), block.weights, strict=True)]


@given(weighted_triples, shapes, st.randoms())
def test_weights_stay_with_their_ratings(ratings, shape, random):
    """Also when both are turned, kept by a coin or given in another order; ties of a code ascend by weight."""
    block = make_weighted(ratings, shape)
    assert read_weighted(block) == sorted(ratings)
    assert read_weighted(make_weighted(random.sample(ratings, len(ratings)), shape)) == sorted(ratings)
    turned = block.transpose()
    assert read_weighted(turned) == sorted((j, i, *rest) for i, j, *rest in ratings)
    assert read_weighted(turned.transpose()) == sorted(ratings)
    split, numbers = Split(3, 0.5), np.arange(shape[0])
    parts = read_weighted(split.part_of(block, numbers)) + read_weighted(split.part_of(block, numbers, those=False))
    assert sorted(parts) == sorted(ratings)
    plain = make([rating[:3] for rating in ratings], shape)
    for mine, other in ((split.part_of(block, numbers), split.part_of(plain, numbers)), (block, plain)):
        np.testing.assert_array_equal(mine.codes, other.codes)  # the coin does not know the weights
        np.testing.assert_array_equal(mine.distinct_counts, other.distinct_counts)
        np.testing.assert_array_equal(mine.row_counts, other.row_counts)


@given(weighted_triples, shapes)
def test_sums_of_weights(ratings, shape):
    block = make_weighted(ratings, shape)
    for turned, axis in ((block, 0), (block.transpose(), 1)):
        total, positive = np.zeros(shape[axis]), np.zeros(shape[axis])
        for rating in sorted(ratings, key=lambda rating: (rating[1 - axis], *rating[2:])):
            total[rating[axis]] += rating[3]
            positive[rating[axis]] += rating[3] * rating[2]
        np.testing.assert_array_equal(turned.row_weights, total)
        np.testing.assert_array_equal(turned.row_positive_weights, positive)


def test_without_weights_their_sums_are_the_counts():
    block = make([(0, 1, True), (0, 1, False), (2, 0, True)], (3, 2))
    assert block.weights is None
    assert block.row_weights is block.row_counts
    assert block.row_positive_weights is block.row_positives


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_block_refuses_weights_that_are_not_positive(wrong):
    with pytest.raises(ValueError, match="positive and finite"):
        make_weighted([(0, 1, True, 1.0), (1, 0, False, wrong)], (2, 2))


def test_a_block_refuses_weights_of_another_length_or_type():
    rows, positive = np.array([0, 1]), np.array([True, False])
    with pytest.raises(ValueError, match="2 ratings, 1 weights"):
        RatingBlock.from_coordinates(rows, rows, positive, (2, 2), np.ones(1, np.float32))
    with pytest.raises(TypeError, match="float32"):
        RatingBlock.from_coordinates(rows, rows, positive, (2, 2), np.ones(2))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 400))
def test_row_ranges_cover_every_row_once(counts, target):
    """In order, without gaps, none empty; and none holds more work than the target plus its last row."""
    rows = np.repeat(np.arange(len(counts)), counts)
    block = RatingBlock.from_coordinates(rows, np.zeros_like(rows), np.ones(len(rows), bool), (len(counts), 1))
    ranges = block.row_ranges(target)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(len(counts)))
    work = np.maximum(counts, 8)
    for lo, hi in ranges:
        assert lo < hi
        assert work[lo:hi].sum() - work[lo:hi].max() <= target


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_index_types(dtype):
    block = RatingBlock.from_coordinates(
        np.array([1, 0], dtype), np.array([0, 2], dtype), np.array([True, False]), (2, 3)
    )
    assert read(block) == [(0, 2, False), (1, 0, True)]


GOOD = {
    "row_pointers": np.array([0, 2, 2, 5]),
    "codes": np.array([1, 4, 2, 3, 7], np.int32),  # the drawing in RatingBlock's docstring
    "n_columns": 4,
}


def test_the_drawing_in_the_docstring():
    drawn = [(0, 0, True), (0, 2, False), (2, 1, False), (2, 1, True), (2, 3, True)]
    assert read(RatingBlock(**GOOD)) == drawn
    assert read(make(drawn[::-1], (3, 4))) == drawn


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"row_pointers": np.array([0, 2, 2, 5], np.int32)}, TypeError, "int64"),
        ({"codes": np.array([1, 4, 2, 3, 7], np.int64)}, TypeError, "int32"),
        ({"row_pointers": np.array([1, 2, 2, 5])}, ValueError, "start at 0"),
        ({"row_pointers": np.array([0, 2, 2, 4])}, ValueError, "end at the number"),
        ({"row_pointers": np.array([], np.int64)}, ValueError, "start at 0"),
        ({"row_pointers": np.array([[0, 2, 2, 5]])}, ValueError, "start at 0"),
        ({"row_pointers": np.array([0, 3, 2, 5])}, ValueError, "not decrease"),
        ({"n_columns": 3}, ValueError, "outside the block's 3 columns"),
        ({"codes": np.array([1, 4, -2, 3, 7], np.int32)}, ValueError, "outside"),
        ({"n_columns": -1}, ValueError, "at most 2\\^30 columns"),
        ({"n_columns": MAX_COLUMNS + 1}, ValueError, "at most 2\\^30 columns"),
    ],
)
def test_constructor_refuses(change, error, words):
    with pytest.raises(error, match=words):
        RatingBlock(**GOOD | change)


def test_from_coordinates_refuses_too_many_columns():
    """Before it allocates anything of that size."""
    with pytest.raises(ValueError, match="at most 2\\^30 columns"):
        RatingBlock.from_coordinates(np.array([0]), np.array([0]), np.array([True]), (1, MAX_COLUMNS + 1))


def test_from_coordinates_refuses_to_write_outside_its_arrays():
    """Two ratings of a 2 × 2 matrix. In an interpreter of its own: the compiled sort checks no bounds."""
    told = {  # rows and columns ─► what is wrong with them
        "[0, 9], [0, 1]": "row ",
        "[0, -1], [0, 1]": "row ",
        "[0, 1], [0, 5]": "column ",
        "[0, 1], [-1, 0]": "column ",
        "[0], [0, 1]": "lengths differ",
    }
    program = f"""
import numpy as np
from onebit_spark.core.blocks import RatingBlock
for rows, cols in [{", ".join(f"({indices})" for indices in told)}]:
    try:
        RatingBlock.from_coordinates(np.array(rows), np.array(cols), np.array([True, False]), (2, 2))
        print("accepted")
    except ValueError as refusal:
        print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for found, expected in zip(done.stdout.splitlines(), told.values(), strict=True):
        assert expected in found
        assert "row_pointers" not in found  # found in the input, not in the ruins
