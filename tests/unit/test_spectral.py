"""The spectral start against a full decomposition, and its independence of the numbering."""

import numpy as np
import pytest
from powerlaw import power_law_ratings
from scipy.sparse import coo_array, diags_array

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core import spectral
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import SIDES
from onebit_spark.core.spectral import OVERSAMPLING, CountedRows, Keyed
from onebit_spark.engines.start import StartTables
from onebit_spark.engines.threads import ThreadEngine
from onebit_spark.simulate import simulate


def engine(rows, cols, labels, shape=None):
    shape = shape or (rows.max() + 1, cols.max() + 1)
    return StartTables(
        ThreadEngine(RatingBlock.from_coordinates(rows, cols, labels > 0, shape), threads=1)
    )


def spectral_start(matrix, rank, seed):
    """The rows of both tables of the start."""
    tables = spectral.spectral_start(matrix, rank, seed)
    return [matrix.rows(side, table) for side, table in zip(SIDES, tables, strict=True)]


def reference(rows, cols, labels, rank, oversampling):
    """L Rᵀ = t² D_r^{−½} U F Σ Vᵀ D_c^{−½}, in which signs and rotations cancel; σ_+ = σ_{rank +
    oversampling}.
    """
    y = coo_array((labels.astype(float), (rows, cols))).tocsr()  # repeated cells are summed
    row_root, col_root = (np.bincount(index) ** -0.5 for index in (rows, cols))
    u, sigma, vt = np.linalg.svd((diags_array(row_root) @ y @ diags_array(col_root)).toarray())
    left = row_root[:, None] * u[:, :rank]
    right = col_root[:, None] * vt[:rank].T
    shrinkage = (1 - sigma[rank + oversampling - 1] ** 2 / sigma[:rank] ** 2) ** 2
    product = left * (shrinkage * sigma[:rank]) @ right.T
    return 0.5 * product / np.mean(labels * product[rows, cols]), sigma


def gapped():
    """A1 of rank 3, 120 × 90, 70% observed, each rating up to three times: three strong
    directions.
    """
    simulation = simulate("A1", shape=(120, 90), fraction=0.7, seed=1)
    rng = np.random.default_rng(0)
    pick = np.concatenate(
        [np.arange(len(simulation.rows)), rng.integers(len(simulation.rows), size=3000)]
    )
    return simulation.rows[pick], simulation.cols[pick], simulation.labels[pick]


def test_against_a_full_decomposition(monkeypatch):
    """The default leaves an error near (σ4/σ3)^5 ≈ 2% of the smallest direction.

    Over the whole space there is only that of the products, which are rounded to 24 bits.
    """
    data = gapped()
    expected, sigma = reference(*data, rank=3, oversampling=OVERSAMPLING)
    assert sigma[3] < 0.5 * sigma[2]
    rows, cols = spectral_start(engine(*data), 3, seed=0)
    assert np.linalg.norm(rows @ cols.T - expected) < 0.02 * np.linalg.norm(expected)
    monkeypatch.setattr("onebit_spark.core.spectral.OVERSAMPLING", 87)
    expected, _ = reference(*data, rank=3, oversampling=87)
    rows, cols = spectral_start(engine(*data), 3, seed=0)
    assert np.linalg.norm(rows @ cols.T - expected) < 1e-4 * np.linalg.norm(expected)
    # Balanced: both sides carry √σ, so D_r^½ L and D_c^½ R have the same norms, column by column,
    # and are orthogonal.
    left = rows * np.bincount(data[0])[:, None] ** 0.5
    right = cols * np.bincount(data[1])[:, None] ** 0.5
    grams = left.T @ left, right.T @ right
    np.testing.assert_allclose(np.diag(grams[0]) / np.diag(grams[1]), 1.0, rtol=1e-3)
    for gram in grams:
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-3 * gram.max()


def test_the_mean_margin_is_one_half():
    """Σ_l y_l u_l = t² Σ_k f_k σ_k² with t² = n / (2 Σ_k f_k σ_k²)."""
    i, j, y = gapped()
    rows, cols = spectral_start(engine(i, j, y), 5, 0)
    assert np.mean(y * np.sum(rows[i] * cols[j], axis=1)) == pytest.approx(0.5, rel=1e-9)


def test_numbering_does_not_matter():
    """Same factors, line by line, signs included; the data have no gap after σ_K on purpose."""
    i, j, y = power_law_ratings(300, 120, 6000, seed=3)
    rng = np.random.default_rng(0)
    order = rng.permutation(6000)
    new_row = rng.permutation(300)
    new_col = rng.permutation(120)
    rows, cols = spectral_start(engine(i, j, y, (300, 120)), 8, seed=0)
    other = engine(new_row[i[order]], new_col[j[order]], y[order], (300, 120))
    other_rows, other_cols = spectral_start(other, 8, seed=0)
    np.testing.assert_allclose(other_rows[new_row], rows, atol=1e-9 * np.abs(rows).max())
    np.testing.assert_allclose(other_cols[new_col], cols, atol=1e-9 * np.abs(cols).max())


def test_empty_rows_and_columns_start_at_zero_and_change_nothing():
    i, j, y = gapped()
    rows, cols = spectral_start(engine(i, j, y), 3, seed=0)
    wide_rows, wide_cols = spectral_start(engine(i, j, y, (130, 100)), 3, seed=0)
    np.testing.assert_array_equal(wide_rows[120:], 0.0)
    np.testing.assert_array_equal(wide_cols[90:], 0.0)
    np.testing.assert_allclose(wide_rows[:120], rows, atol=1e-12)
    np.testing.assert_allclose(wide_cols[:90], cols, atol=1e-12)


def test_columns_beyond_the_rank_are_small_noise():
    """A fully observed A1 of rank 2 has two singular values; the other columns differ from each
    other and from 0.
    """
    simulation = simulate("A1", rank=2, shape=(30, 25), fraction=1.0)
    rows, cols = spectral_start(
        engine(simulation.rows, simulation.cols, simulation.labels), 6, seed=0
    )
    sizes = np.linalg.norm(rows, axis=0) * np.linalg.norm(cols, axis=0)
    assert np.all(sizes[2:] > 0)
    assert sizes[2:].max() < 1e-2 * sizes[:2].min()
    assert np.linalg.matrix_rank(cols[:, 2:] / np.linalg.norm(cols[:, 2:], axis=0)) > 1


def test_keyed_normals_are_normal_and_keyed():
    """A line depends on the seed and the column's two counts only; over 2,000 different counts they
    look normal.
    """

    counts = np.concatenate([np.arange(1, 2001), [5]])
    rows = CountedRows(np.arange(2001), counts, counts // 2)
    normals = Keyed(5, seed=0)(rows)
    np.testing.assert_array_equal(normals[4], normals[2000])
    assert np.abs(normals.mean()) < 5 / np.sqrt(normals.size)
    assert normals.var() == pytest.approx(1.0, abs=5 * np.sqrt(2 / normals.size))
    np.testing.assert_allclose(np.corrcoef(normals[:2000].T), np.eye(5), atol=5 / np.sqrt(2000))
    assert not np.any(normals == Keyed(5, seed=1)(rows))


def test_tables_are_made_in_parts(monkeypatch):
    """More lines than are computed at a time: the same start, but for the rounding of sums."""
    data = gapped()
    whole = spectral_start(engine(*data), 5, seed=0)
    monkeypatch.setattr("onebit_spark.engines.start.HELD_ROWS", 7)
    for found, expected in zip(spectral_start(engine(*data), 5, seed=0), whole, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def test_columns_of_noise_start_small_and_die():
    """Type B of rank 3 under heavy noise, K = 10.

    At full size two columns of noise survive the hinge's first steps.
    """
    simulation = simulate("B3", seed=0)
    data = simulation.rows, simulation.cols, simulation.labels
    rows, cols = spectral_start(engine(*data), 10, seed=0)
    sizes = np.linalg.norm(rows, axis=0) * np.linalg.norm(cols, axis=0)
    assert sizes[3:].max() < 0.5 * sizes[2]
    config = FitConfig(loss="hinge", prior="gamma", intercepts=False, max_iter=100, tol=0)
    assert fit_arrays(*data, config).effective_rank == 3


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_labels_that_cancel_in_every_cell_start_from_noise():
    """Y = 0: there is no singular value to divide by."""
    rows, cols = (index.ravel().repeat(2) for index in np.indices((6, 5)))
    start = spectral_start(engine(rows, cols, np.tile([1, -1], 30)), 2, seed=0)
    for table in start:
        assert np.all(np.isfinite(table))
        assert np.all(np.any(table != 0, axis=1))
