"""The GPU's kernels on ratings, run on the CPU (``cudaoncpu``), against the functions of the CPU."""

import cudaoncpu
import cudatwins as twins
import numpy as np
import pytest

from onebit_spark.core.blocks import RatingBlock, repeats_of
from onebit_spark.core.config import FitConfig
from onebit_spark.core.losses import Logistic
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.prediction import (
    BINS,
    HIGHEST_OCTAVE,
    HISTOGRAM_BINS,
    LOWEST_OCTAVE,
    PER_OCTAVE,
    WIDEST,
    HoldoutLoss,
    count_confidences,
)
from onebit_spark.core.randomness import UNITS, Draws, Split, count_errors
from onebit_spark.core.spectral import CountedRows, Keyed, Numbered
from onebit_spark.engines.cuda.runner import weight_unit
from onebit_spark.engines.cuda.shapes import Shape

pytestmark = pytest.mark.skipif(cudaoncpu.COMPILER is None, reason="needs g++ to compile the kernels")

M, C, N = 40, 9, 700
MACROS = {"TASK": 16}
REPEATED = 0x7FFFFFFF


class Ratings:
    """Ratings of a block, as the device has them: cells that are rated again, long rows, rows without ratings."""

    def __init__(self, weighted=False, seed=0):
        rng = np.random.default_rng(seed)
        rows, cols = rng.integers(0, M - 3, N), rng.integers(0, C, N)
        rows[:200] = 5
        weights = rng.integers(1, 9, N).astype(np.float32) / 4 if weighted else None
        self.block = block = RatingBlock.from_coordinates(rows, cols, rng.random(N) < 0.6, (M, C), weights)
        self.codes = np.full(N, 0, np.uint32)
        plain = block.codes.view(np.uint32)
        run("mark_repeated", 32 * M, block.row_pointers, plain, self.codes, np.int64(M))
        self.first_rows = twins.first_rows(block.row_pointers, MACROS["TASK"])
        self.places = block.row_pointers, self.first_rows, np.int32(len(self.first_rows)), np.int64(M)
        self.rows = np.repeat(np.arange(M), block.row_counts)


def run(name, n, *arguments, source="ratings", macros=None):
    cudaoncpu.run(source, name, MACROS if macros is None else macros, -(-n // 64), 64, *arguments)


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def ratings(request):
    return Ratings(request.param)


def test_repeated_cells_are_marked_and_counted(ratings):
    block, again = ratings.block, ratings.codes >> 31 == 1
    expected = np.append(False, (block.codes[1:] >> 1 == block.codes[:-1] >> 1) & (np.diff(ratings.rows) == 0))
    assert np.array_equal(again, expected)
    assert np.array_equal(ratings.codes & REPEATED, block.codes)
    counts = np.zeros(3, np.uint64)
    run("count_repeats", N, ratings.codes, counts, np.int64(N))
    found = repeats_of(block)
    assert counts.tolist() == [found.repeated_cells, found.repeated, found.conflicting]


def test_keys_codes_and_pointers(ratings):
    """Both orientations, from ratings in any order and from those of the rows."""
    block, order = ratings.block, np.random.default_rng(1).permutation(N)
    rows, cols = ratings.rows.astype(np.int32), (block.codes >> 1).astype(np.int32)
    positive = (block.codes & 1).astype(np.uint8)
    keys, again, codes = np.empty(N, np.uint64), np.empty(N, np.uint64), np.empty(N, np.uint32)
    run("fill_keys", N, rows[order], cols[order], positive[order], keys, np.int64(N))
    keys.sort()
    run("fill_codes", N, keys, codes, np.int64(N))
    assert np.array_equal(codes, ratings.codes)
    pointers = np.empty(M + 1, np.int64)
    run("fill_pointers", M + 1, keys, pointers, np.int64(M), np.int64(N))
    assert np.array_equal(pointers, block.row_pointers)
    run("fill_keys", N, cols, rows, positive, keys, np.int64(N))
    run("fill_transposed_keys", N, *ratings.places, ratings.codes, again, np.int64(N))
    assert np.array_equal(again, keys)
    first_rows = np.empty(len(ratings.first_rows), np.int32)
    run("fill_first_rows", len(first_rows), block.row_pointers, np.int64(M), first_rows, np.int32(len(first_rows)))
    assert np.array_equal(first_rows, ratings.first_rows)


def test_sums_of_rows_and_their_normals(ratings):
    block = ratings.block
    found = np.empty(M), np.empty(M), np.empty(M), np.empty(M, np.int32)
    run("count_rows", 32 * M, block.row_pointers, ratings.codes, block.weights, *found, np.int64(M))
    total, positive, root, distinct = found
    counted = CountedRows(np.arange(M), block.row_weights, block.row_positive_weights)
    np.testing.assert_array_equal(total, counted.counts)
    np.testing.assert_array_equal(positive, counted.positives)
    np.testing.assert_allclose(root, counted.scale[:, 0], rtol=1e-15)
    np.testing.assert_array_equal(distinct, block.distinct_counts)
    keys, counts = np.empty(M, np.uint64), np.zeros(1, np.uint64)
    run("hash_rows", M, total, positive, keys, np.int64(M))
    keys.sort()
    run("count_changes", M, keys, counts, np.int64(M))
    assert counts[0] == len(np.unique(np.stack([total, positive]), axis=1).T)
    for make, sums in ((Keyed(3, 11), (total, positive)), (Numbered(3, 12, 0.5), (None, None))):
        normals, deviation = np.empty((M, 3)), getattr(make, "std", 1.0)
        seed = np.uint64(make.seed), np.int32(3), np.float64(deviation)
        run("keyed_normals", 3 * M, block.row_pointers, *sums, *seed, normals, np.int64(M))
        np.testing.assert_allclose(normals, make(counted), atol=1e-12)


def test_marks_are_counted():
    marked, counts = (np.arange(200) % 3 == 0).astype(np.uint8), np.zeros(1, np.uint64)
    run("count_marked", 200, marked, counts, np.int64(200))
    assert counts[0] == 67


@pytest.mark.parametrize("by", UNITS)
def test_splits(ratings, by):
    block, split = ratings.block, Split(7, 0.6, by)
    numbers = np.arange(M), np.arange(block.n_columns)
    coin = np.uint64(split.seed), np.float64(split.fraction), np.int32(UNITS.index(by))
    counts = np.empty(M, np.int64)
    run("count_split", 32 * M, block.row_pointers, ratings.codes, *coin, counts, np.int64(M))
    for wanted, expected in (
        (1, split.part_of(block, *numbers)),
        (0, split.part_of(block, *numbers, those=False)),
    ):
        kept = np.append(0, np.cumsum(counts if wanted else block.row_counts - counts))
        assert np.array_equal(kept, expected.row_pointers)
        codes, weights = np.empty(kept[-1], np.uint32), None
        if block.weights is not None:
            weights = np.empty(kept[-1], np.float32)
        run(
            "write_split", 32 * M, block.row_pointers, ratings.codes, block.weights, *coin, np.int32(wanted), kept,
            codes, weights, np.int64(M),
        )  # fmt: skip
        assert np.array_equal(codes & REPEATED, expected.codes)
        again = np.append(False, expected.codes[1:] >> 1 == expected.codes[:-1] >> 1)
        again[expected.row_pointers[:-1][expected.row_counts > 0]] = False
        assert np.array_equal(codes >> 31 == 1, again)
        assert weights is None or np.array_equal(weights, expected.weights)


FORMS = {
    "full": {"rank": 4},
    "no intercepts": {"rank": 5, "intercepts": False},
    "spreads": {"rank": 10, "covariance": "diagonal"},
}
NAMES = ["full", *(pytest.param(name, marks=pytest.mark.slow) for name in FORMS if name != "full")]


def _posterior(config, n, seed):
    rng, size = np.random.default_rng(seed), config.dimension
    location = rng.normal(size=(n, size)).astype(np.float32)
    scale = rng.uniform(0.1, 0.9, (n, size))
    if config.make_loss().kind == "covariance":
        root = 0.4 * rng.normal(size=(n, size, size))
        scale = (root @ root.transpose(0, 2, 1) + 0.05 * np.eye(size))[:, *np.tril_indices(size)]
    scale = np.ascontiguousarray(scale, np.float32)
    return RowPosterior(location, scale, config.make_loss().kind, config.intercepts)


class Case:
    def __init__(self, name, weighted=False):
        self.config = config = FitConfig(**FORMS[name])
        self.ratings, self.rows, self.cols = Ratings(weighted), _posterior(config, M, 1), _posterior(config, C, 2)
        self.rows.location[3], self.cols.location[2] = 0.0, 0.0  # scores of 0
        self.shape = Shape.of(self.rows.form)
        self.macros = {**self.shape.pair_macros, **MACROS}
        self.arrays = self.rows.location, self.rows.scale, self.cols.location, self.cols.scale

    def run(self, name, n, *arguments, source="pairs"):
        run(name, n, *self.ratings.places, self.ratings.codes, *arguments, source=source, macros=self.macros)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", NAMES)
def test_left_out_ratings(name, weighted):
    case = Case(name, weighted)
    sums, margins = _left_out(case, weight_unit(case.ratings.block.row_weights.sum()))
    expected = HoldoutLoss.of_ratings("logistic", case.ratings.block, 0, M, case.rows, case.cols)
    total, squares, weight, errors = sums.sum(axis=1)
    np.testing.assert_allclose(
        [total, squares, weight], [expected.total, expected.squares, expected.total_weight], rtol=1e-12
    )
    assert errors == expected.errors
    np.testing.assert_array_equal(margins, expected.margins)


@pytest.mark.parametrize("weight", [1e-9, 1e9])
def test_no_weight_is_lost_among_the_margins(weight):
    case = Case("full", weighted=True)
    case.ratings.block.weights[:] = weight
    total = N * float(np.float32(weight))
    _, margins = _left_out(case, weight_unit(total))
    assert margins.sum() == pytest.approx(total, rel=1e-12)


def _left_out(case, unit):
    """Sums by blocks, and the weights in the bins of the margins."""
    blocks = 2
    sums, margins = np.full((4, blocks), np.nan), np.zeros(BINS, np.uint64)
    cudaoncpu.run(
        "pairs", "holdout_loss", case.macros, blocks, 256, *case.ratings.places, case.ratings.codes,
        case.ratings.block.weights, *case.arrays, np.float64(Logistic.score_noise), np.float64(WIDEST),
        np.int32(BINS), np.float64(1 / unit), sums, margins, np.int64(N),
    )  # fmt: skip
    return sums, margins * unit


@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize("name", NAMES)
def test_confidences(name, stride):
    case = Case(name)
    noise, counts = Logistic.score_noise, np.zeros(2 * HISTOGRAM_BINS, np.uint64)
    case.run(
        "confidences", 8 * N, *case.arrays, np.float64(noise), np.int64(stride), np.float64(LOWEST_OCTAVE),
        np.float64(HIGHEST_OCTAVE), np.int32(PER_OCTAVE), counts, np.int64(N),
    )  # fmt: skip
    block = case.ratings.block
    np.testing.assert_array_equal(
        counts, count_confidences(block, 0, M, np.arange(M), case.rows, case.cols, noise, stride)
    )


@pytest.mark.parametrize("name", NAMES)
def test_residuals(name):
    case = Case(name, weighted=True)
    weights, out = case.ratings.block.weights, np.full(N, np.nan, np.float32)
    case.run("residuals", N, weights, case.rows.location, case.cols.location, out, np.int64(N))
    codes, rows = case.ratings.block.codes, case.ratings.rows
    scores = np.einsum("lk,lk->l", case.rows.mean[rows].astype(float), case.cols.mean[codes >> 1].astype(float))
    if case.config.intercepts:
        scores += case.rows.intercept[rows].astype(float) + case.cols.intercept[codes >> 1]
    np.testing.assert_allclose(out, weights / (1 + np.exp(np.where(codes & 1, scores, -scores))), rtol=1e-6)


@pytest.mark.parametrize("draws", [Draws(5, 3), Draws(6, 2, Split(3, 0.7))], ids=["all", "unseen"])
@pytest.mark.parametrize("name", NAMES)
def test_draws(name, draws):
    case, counts = Case(name), np.zeros(2, np.uint64)
    roots = np.full(case.rows.scale.shape, np.nan)
    (blocks,), (threads,) = case.shape.row_blocks(M)
    arguments = blocks, threads, case.rows.scale, roots, np.int64(M)
    cudaoncpu.run("maps", "roots", case.shape.map_macros, *arguments, shared=case.shape.root_bytes)
    seed, fraction = (-1, 0.0) if draws.unseen_by is None else (draws.unseen_by.seed, draws.unseen_by.fraction)
    case.run(
        "count_errors", N, case.rows.location, roots, case.cols.location, case.cols.scale, np.uint64(draws.seed),
        np.int32(draws.per_rating), np.int64(seed), np.float64(fraction), counts, np.int64(N), source="draws",
    )  # fmt: skip
    expected = count_errors(case.ratings.block, 0, M, np.arange(M), case.rows, case.cols, draws)
    assert counts.tolist() == list(expected)
