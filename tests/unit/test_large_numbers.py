"""What more than 2³¹ rows, columns and ratings rest on, without as many; and the routes between blocks."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit_spark import FitFailed
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.config import FitConfig
from onebit_spark.core.engine import PlacedBlock, RowLayout
from onebit_spark.engines.blocking import (
    Placement,
    ascending_cell,
    build,
    distinct,
    positions,
    read_ascending,
    routed,
    routes_of,
)
from onebit_spark.engines.spark_runner import RunStep
from onebit_spark.engines.threads import Product
from onebit_spark.input.batches import NO_WEIGHTS
from onebit_spark.platform import binary_cells
from onebit_spark.platform.binary_cells import binary_line, cell_array


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
    assert binary_cells.MOST_BYTES == 2**31 - 1
    monkeypatch.setattr(binary_cells, "MOST_BYTES", 15)
    binary_line(codes=np.zeros(1))
    with pytest.raises(FitFailed, match="less than 2 GiB: set more row and column blocks"):
        binary_line(codes=np.zeros(2))


def test_routes():
    """Which rows a block of the other side refers to, by a plain loop."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 6, 20), rng.integers(0, 9, 20)
    ratings = RatingBlock.from_coordinates(rows, cols, rows > 2, (6, 9))
    there = Placement(4, np.empty(0, np.int64), np.empty(0, np.int32))
    routes, ends = routes_of(PlacedBlock(0, np.arange(6), np.arange(9) * 7, ratings, 0), there)
    for target in range(4):
        expected = {int(i) for i, j in zip(rows, cols, strict=True) if there.of(np.array([j * 7]))[0] == target}
        assert routes[ends[target] : ends[target + 1]].tolist() == sorted(expected)


class TestABlockThatASplitHasEmptied:
    """It has rows and no columns, so no line of a partner tells how wide lines are."""

    THERE = Placement(4, np.empty(0, np.int64), np.empty(0, np.int32))

    def made(self, step, format):
        nothing, members = np.empty(0, np.int32), np.arange(2, dtype=np.int32)
        chunk = binary_line(block=0, rows=nothing, codes=nothing, weights=NO_WEIGHTS, members=members)
        blocks = routed(partial(build, None, False), np.zeros(1, np.int32), self.THERE, [chunk])
        [line] = RunStep(step, self.THERE, [], format).alone(blocks)
        return line

    def test_its_lines_in_the_start_are_as_wide_as_those_of_the_others(self):
        line = self.made(Product(3, measures_gram=True), RowLayout("float32"))
        assert cell_array(line["values"][0], np.float32).tolist() == [0.0] * 6
        assert cell_array(line["sums"][0], np.float64).tolist() == [0.0] * 9

    @pytest.mark.parametrize("settings", [{}, {"loss": "hinge", "implicit_features": False}], ids=str)
    def test_its_partners_are_rows_of_the_posterior(self, settings):
        form = FitConfig(rank=3, **settings).form
        seen = []

        def look(block, own, partners):
            seen.append(partners)
            return None, np.empty(0)

        self.made(look, RowLayout.of(form))
        assert seen[0].n_rows == 0
        assert seen[0].packed().shape == (0, form.width)
