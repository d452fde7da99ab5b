"""RatingBlock against a dictionary; ratings packed by tasks; what more than 2³¹ rows and ratings
rest on.
"""

import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark import FitFailed
from onebit_spark.core import blocks
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import form_of
from onebit_spark.core.work import PlacedBlock
from onebit_spark.data.limits import MAX_COLUMNS
from onebit_spark.data.ratings import ITEM, LABEL, USER
from onebit_spark.engines.layout import RowLayout
from onebit_spark.engines.spark import frames, packing
from onebit_spark.engines.spark.blocking import (
    Placement,
    _encode_numbers,
    ascending_cell,
    build,
    distinct,
    positions,
    read_ascending,
    routed,
    routes_of,
)
from onebit_spark.engines.spark.frames import binary_line, cell_array
from onebit_spark.engines.spark.packing import NO_WEIGHTS, CountIds, Pack, read_bundles, sum_counts
from onebit_spark.engines.spark.rating_files import RowGroup, even_tasks
from onebit_spark.engines.spark.runner import RunWork
from onebit_spark.engines.start import Multiply
from onebit_spark.settings import FitConfig

triples = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.booleans()), max_size=60)
# A few rows and columns beyond the ratings
shapes = st.tuples(st.integers(8, 11), st.integers(6, 9))


def make(ratings, shape):
    rows, cols, positive = (
        np.array([r[i] for r in ratings], t) for i, t in enumerate((np.int64, np.int64, bool))
    )
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
def test_without_empty_rows_and_columns(ratings, shape):
    block, rows, columns = make(ratings, shape).compacted()
    assert [(rows[i], columns[j], positive) for i, j, positive in read(block)] == sorted(ratings)
    assert (block.n_rows, block.n_columns) == (
        len({i for i, _, _ in ratings}),
        len({j for _, j, _ in ratings}),
    )


@given(triples, shapes)
def test_transpose(ratings, shape):
    block = make(ratings, shape)
    turned = block.transpose()
    assert (turned.n_rows, turned.n_columns) == shape[::-1]
    assert read(turned) == sorted((j, i, positive) for i, j, positive in ratings)
    again = turned.transpose()
    np.testing.assert_array_equal(again.row_pointers, block.row_pointers)
    np.testing.assert_array_equal(again.codes, block.codes)


weighted_triples = st.lists(
    st.tuples(
        st.integers(0, 7), st.integers(0, 5), st.booleans(), st.floats(2**-20, 2.0**20, width=32)
    ),
    max_size=60,
)


def make_weighted(ratings, shape):
    rows, cols, positive, weights = (
        np.array([r[i] for r in ratings], t)
        for i, t in enumerate((np.int64, np.int64, bool, np.float32))
    )
    return RatingBlock.from_coordinates(rows, cols, positive, shape, weights)


def read_weighted(block):
    return [
        (*rating, float(weight)) for rating, weight in zip(read(block), block.weights, strict=True)
    ]


@given(weighted_triples, shapes, st.randoms())
def test_weights_stay_with_their_ratings(ratings, shape, random):
    """Also when both are turned, kept by a coin or given in another order; ties of a code ascend by
    weight.
    """
    block = make_weighted(ratings, shape)
    assert read_weighted(block) == sorted(ratings)
    assert read_weighted(make_weighted(random.sample(ratings, len(ratings)), shape)) == sorted(
        ratings
    )
    turned = block.transpose()
    assert read_weighted(turned) == sorted((j, i, *rest) for i, j, *rest in ratings)
    assert read_weighted(turned.transpose()) == sorted(ratings)
    split = Split(3, 0.5)
    numbers = tuple(map(np.arange, shape))
    parts = read_weighted(split.part_of(block, *numbers)) + read_weighted(
        split.part_of(block, *numbers, those=False)
    )
    assert sorted(parts) == sorted(ratings)
    plain = make([rating[:3] for rating in ratings], shape)
    for mine, other in (
        (split.part_of(block, *numbers), split.part_of(plain, *numbers)),
        (block, plain),
    ):
        np.testing.assert_array_equal(mine.codes, other.codes)  # the coin does not know the weights
        np.testing.assert_array_equal(mine.distinct_counts, other.distinct_counts)
        np.testing.assert_array_equal(mine.row_counts, other.row_counts)


@given(weighted_triples, shapes)
def test_sums_of_weights(ratings, shape):
    block = make_weighted(ratings, shape)
    for turned, axis in ((block, 0), (block.transpose(), 1)):
        total = np.zeros(shape[axis])
        positive = np.zeros(shape[axis])
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


def test_bad_weights_and_too_many_columns_are_refused():
    rows = np.array([0, 1])
    positive = np.array([True, False])
    for weights, error, words in (
        *(
            (np.array([1.0, wrong], np.float32), ValueError, "positive and finite")
            for wrong in (0, -1, np.nan, np.inf)
        ),
        (np.ones(1, np.float32), ValueError, "2 ratings, 1 weights"),
        (np.ones(2), TypeError, "float32"),
    ):
        with pytest.raises(error, match=words):
            RatingBlock.from_coordinates(rows, rows, positive, (2, 2), weights)
    # Before anything of that size is allocated
    with pytest.raises(ValueError, match="at most 2\\^30 columns"):
        RatingBlock.from_coordinates(rows, rows, positive, (2, MAX_COLUMNS + 1))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 400))
def test_row_ranges_cover_every_row_once(counts, target):
    """In order, without gaps, none empty; and none holds more work than the target plus its last
    row.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    block = RatingBlock.from_coordinates(
        rows, np.zeros_like(rows), np.ones(len(rows), bool), (len(counts), 1)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RANGE", target)
        ranges = block.ranges
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


def test_from_coordinates_refuses_to_write_outside_its_arrays():
    """Two ratings of a 2 × 2 matrix.

    In an interpreter of its own: the compiled sort checks no bounds.
    """
    problems = {  # rows and columns ─► what is wrong with them
        "[0, 9], [0, 1]": "row ",
        "[0, -1], [0, 1]": "row ",
        "[0, 1], [0, 5]": "column ",
        "[0, 1], [-1, 0]": "column ",
        "[0], [0, 1]": "lengths differ",
    }
    program = f"""
import numpy as np
from onebit_spark.core.blocks import RatingBlock
for rows, cols in [{", ".join(f"({indices})" for indices in problems)}]:
    try:
        RatingBlock.from_coordinates(np.array(rows), np.array(cols), np.array([True, False]), (2, 2))
        print("accepted")
    except ValueError as refusal:
        print(refusal)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for found, expected in zip(done.stdout.splitlines(), problems.values(), strict=True):
        assert expected in found
        assert "row_pointers" not in found  # found in the input, not in the ruins


@given(st.lists(st.integers(0, 1_000), max_size=40), st.integers(1, 12))
def test_tasks_are_runs_of_about_equal_size(sizes, n_tasks):
    groups = [RowGroup("a", place, n) for place, n in enumerate(sizes)]
    tasks = even_tasks(groups, n_tasks)
    found = [group for task in tasks for group in task if group.n]
    assert found == [group for group in groups if group.n]
    assert len(tasks) <= n_tasks
    rows = [sum(group.n for group in task) for task in tasks]
    assert all(0 < n < sum(sizes) / n_tasks + max(sizes) for n in rows)


def test_as_many_tasks_as_asked_for():
    assert [len(task) for task in even_tasks([RowGroup("a", k, 5) for k in range(12)], 4)] == [
        3,
        3,
        3,
        3,
    ]


ratings = st.lists(
    st.tuples(
        st.sampled_from("abcdefg"), st.integers(-3, 9) | st.integers(0, 2**40), st.booleans()
    ),
    max_size=80,
)


@given(ratings, st.integers(1, 30))
def test_bundles_hold_the_ratings(lines, bundle):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BUNDLE", bundle)
        patch.setattr("onebit_spark.data.ratings.TABLE_BYTES", 1)
        packed = list(Pack(None)(iter(raw_batches(lines, 3))))
        found = []
        for part in read_bundles(iter(packed)):
            users = part.user_ids.to_pylist()
            items = part.item_ids.to_pylist()
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
    monkeypatch.setattr(packing, "BUNDLE", 100)
    monkeypatch.setattr("onebit_spark.data.ratings.TABLE_BYTES", 1)
    monkeypatch.setattr("onebit_spark.data.hashes.KEPT", 50)
    rng = np.random.default_rng(1)
    lines = [("a", int(item), True) for item in rng.integers(0, 10**6, 1000)]
    cells = [
        cell_array(line.column("cells")[0], np.int64)
        for line in Pack(None)(iter(raw_batches(lines, 100)))
    ]
    whole = raw_batches(lines, 1000)[0]
    hashes = np.sort(whole.column("__onebit_hash").to_numpy())
    kept = np.sort(np.concatenate(cells))
    limit = packing.limit_for(1000)
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
    """Numbers that were found for a bundle before it was packed again, with its ids in another
    order, are refused.
    """
    lines = [("b", 3, True), ("a", 1, False), ("c", 1, True)]
    (bundle,) = Pack(None)(iter(raw_batches(lines, 3)))
    bundles = pa.Table.from_batches([bundle])
    encode = partial(
        _encode_numbers, Placement(1, np.empty(0, np.int64), np.empty(0, np.int32)), False
    )
    users = {"places": np.array([0, 1, 2], np.int32), "numbers": np.array([1, 0, 2])}
    items = {"places": np.array([0, 1], np.int32), "numbers": np.array([0, 1])}
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
    (bundle,) = Pack(None)(iter(raw_batches([("b", 3, True), ("a", 3, False)], 2)))
    encode = partial(
        _encode_numbers, Placement(1, np.empty(0, np.int64), np.empty(0, np.int32)), False
    )
    users = {"places": np.array([0, 1], np.int32), "numbers": np.array([8, 5])}
    items = {"places": np.array([0], np.int32), "numbers": np.array([4])}
    (chunk,) = encode(pa.Table.from_batches([bundle]), returned(users, items)).to_pylist()
    assert np.frombuffer(chunk["rows"], np.int32).tolist() == [8, 5]
    assert np.frombuffer(chunk["codes"], np.int32).tolist() == [9, 8]


def returned(users, items):
    return pa.Table.from_batches(
        [binary_line(bundle=0, side=side, **cells) for side, cells in enumerate((users, items))]
    )


def test_positions_of_large_numbers():
    numbers = np.array([5, 2**40, 5, 2**33, 7])
    ascending = distinct(numbers)
    assert ascending.tolist() == [5, 7, 2**33, 2**40]
    assert positions(ascending, numbers).tolist() == [0, 3, 0, 2, 1]
    small = np.array([4, 1, 4])
    assert positions(distinct(small), small).tolist() == [1, 0, 1]


@given(st.sets(st.integers(0, 2**62)), st.booleans())
def test_ascending_numbers_in_a_cell(numbers, close):
    """Close ones take a byte each, and none is too large."""
    if close:
        numbers = {number % 200 for number in numbers}
    ascending = np.array(sorted(numbers), np.int64)
    line = binary_line(rows=ascending_cell(ascending))
    assert read_ascending(line["rows"][0]).tolist() == ascending.tolist()
    if close:
        assert line["rows"][0].as_buffer().size <= 15 + len(ascending)


def test_placement_of_large_numbers():
    placement = Placement(5, np.array([2**40]), np.array([3], np.int32))
    blocks = placement.of(np.array([1, 2**40, 2**40 + 1]))
    assert blocks[1] == 3
    assert blocks.max() < 5


def test_a_cell_beyond_two_gigabytes_is_refused(monkeypatch):
    assert frames.MOST_BYTES == 2**31 - 1
    monkeypatch.setattr(frames, "MOST_BYTES", 15)
    binary_line(codes=np.zeros(1))
    with pytest.raises(FitFailed, match="less than 2 GiB: set more row and column blocks"):
        binary_line(codes=np.zeros(2))


def test_routes():
    """Which rows a block of the other side refers to, by a plain loop."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 6, 20)
    cols = rng.integers(0, 9, 20)
    ratings = RatingBlock.from_coordinates(rows, cols, rows > 2, (6, 9))
    there = Placement(4, np.empty(0, np.int64), np.empty(0, np.int32))
    routes, ends = routes_of(PlacedBlock(0, np.arange(6), np.arange(9) * 7, ratings, 0), there)
    for target in range(4):
        expected = {
            int(i)
            for i, j in zip(rows, cols, strict=True)
            if there.of(np.array([j * 7]))[0] == target
        }
        assert routes[ends[target] : ends[target + 1]].tolist() == sorted(expected)


class TestABlockThatASplitHasEmptied:
    """It has rows and no columns, so the width of a line cannot be taken from a partner."""

    THERE = Placement(4, np.empty(0, np.int64), np.empty(0, np.int32))

    def made(self, step, format):
        nothing = np.empty(0, np.int32)
        members = np.arange(2, dtype=np.int32)
        chunk = binary_line(
            block=0, rows=nothing, codes=nothing, weights=NO_WEIGHTS, members=members
        )
        blocks = routed(partial(build, None, False), np.zeros(1, np.int32), self.THERE, [chunk])
        [line] = RunWork(step, self.THERE, {}, format).alone(blocks)
        return line

    def test_its_lines_in_the_start_are_as_wide_as_those_of_the_others(self):
        line = self.made(Multiply(3, measures_gram=True), RowLayout("float32"))
        assert cell_array(line["values"][0], np.float32).tolist() == [0.0] * 6
        assert cell_array(line["sums"][0], np.float64).tolist() == [0.0] * 9

    @pytest.mark.parametrize(
        "settings", [{}, {"loss": "hinge", "implicit_features": False}], ids=str
    )
    def test_its_partners_are_rows_of_the_posterior(self, settings):
        form = form_of(FitConfig(rank=3, **settings))
        seen = []

        class Look:
            def on_block(self, block, own, partners):
                seen.append(partners)
                return None, np.empty(0)

        self.made(Look(), RowLayout.of(form))
        assert seen[0].n_rows == 0
        assert seen[0].packed().shape == (0, form.width)
