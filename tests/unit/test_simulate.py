import dataclasses
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from powerlaw import power_law_ratings
from scipy.special import expit
from scipy.stats import binom

from onebit_spark.simulate import KINDS, main, simulate

UNLIKELY = (
    1e-6  # of a binomial count outside its limits; the seeds are fixed, so a pass stays a pass
)


def flips(simulation):
    return int(np.sum(simulation.labels != simulation.bayes_sign[simulation.rows, simulation.cols]))


def assert_binomial(count, n, p):
    low, high = binom.interval(1 - UNLIKELY, n, p)
    assert low <= count <= high


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rank", "shape"), [(1, (40, 60)), (3, (200, 200)), (5, (70, 30))])
def test_truth_has_the_rank_and_the_sample_the_fraction(kind, rank, shape):
    s = simulate(kind, rank=rank, shape=shape, fraction=0.25)
    assert s.truth.shape == shape
    assert np.linalg.matrix_rank(s.truth) == rank
    assert s.rows.size == s.cols.size == s.labels.size == shape[0] * shape[1] // 4
    assert (s.rows.dtype, s.cols.dtype, s.labels.dtype) == (np.int64, np.int64, np.int8)
    assert set(np.unique(s.labels)) == {-1, 1}
    assert np.unique(s.rows * shape[1] + s.cols).size == s.rows.size  # without replacement


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 8), st.floats(0.1, 1), st.data())
def test_any_shape_rank_and_fraction(kind, m1, m2, fraction, data):
    rank = data.draw(st.integers(1, min(m1, m2)))
    n = round(fraction * m1 * m2)
    if n == 0:
        with pytest.raises(ValueError, match="not a single cell"):
            simulate(kind, rank=rank, shape=(m1, m2), fraction=fraction)
        return
    s = simulate(kind, rank=rank, shape=(m1, m2), fraction=fraction)
    assert s.truth.shape == (m1, m2)
    assert s.rows.size == n
    assert s.rows.max() < m1
    assert s.cols.max() < m2


def test_type_a_columns_are_copies_of_the_first_r_up_to_sign():
    m = simulate("A1", rank=4, shape=(50, 80)).truth
    assert set(np.unique(m)) == {-1, 1}
    assert (np.abs(m[:, :4].T @ m).max(axis=0) == 50).all()


def test_type_b_entries_have_variance_r():
    m = simulate("B1", rank=3, shape=(1000, 1000)).truth
    assert m.mean() == pytest.approx(0, abs=0.02)
    assert m.var() == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "switch"), [*product(["A2", "B2"], [0.0, 0.1, 0.25, 0.5]), ("A1", 0.0), ("B1", 0.0)]
)
def test_switch_flips_at_its_level(kind, switch):
    s = simulate(kind, switch=switch)
    assert_binomial(flips(s), s.labels.size, switch)


def test_a3_keeps_a_label_with_probability_731():
    s = simulate("A3", shape=(400, 400), fraction=1.0)
    keep = np.e / (1 + np.e)
    assert keep == pytest.approx(0.731, abs=1e-4)
    assert_binomial(s.labels.size - flips(s), s.labels.size, keep)


def test_b3_is_logistic_in_every_range_of_m():
    s = simulate("B3", shape=(400, 400), fraction=1.0)
    m = s.truth[s.rows, s.cols]
    for low, high in [(-np.inf, -2), (-2, -0.5), (-0.5, 0), (0, 0.5), (0.5, 2), (2, np.inf)]:
        here = (low <= m) & (m < high)
        p = expit(m[here])
        assert (s.labels[here] == 1).sum() == pytest.approx(
            p.sum(), abs=5 * np.sqrt((p * (1 - p)).sum())
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind):
    first, again, other = (
        simulate(kind, shape=(30, 20), fraction=0.5, seed=seed) for seed in (7, 7, 8)
    )
    for field in dataclasses.fields(first):
        assert np.array_equal(getattr(first, field.name), getattr(again, field.name))
        assert not np.array_equal(getattr(first, field.name), getattr(other, field.name))


def test_noises_levels_and_fractions_of_one_seed_share_their_draws():
    small = simulate("A2", fraction=0.1)
    large = simulate("A2", fraction=0.3, switch=0.2)
    n = small.rows.size
    assert np.array_equal(small.truth, large.truth)
    assert np.array_equal(small.truth, simulate("A3").truth)
    assert np.array_equal(small.rows, large.rows[:n])
    assert np.array_equal(small.cols, large.cols[:n])
    clean = small.bayes_sign[small.rows, small.cols]
    assert (
        (large.labels[:n] != clean) | (small.labels == clean)
    ).all()  # flipped at .1, then also at .2


def test_error_counts_all_cells_and_zeros():
    s = simulate("B1", shape=(4, 5), rank=2)
    assert s.bayes_sign.dtype == np.int8
    assert s.error(s.truth) == 0
    assert s.error(-s.truth) == 1
    assert s.error(np.zeros((4, 5))) == 1
    scores = s.truth.copy()
    scores[0, 0], scores[1, 1], scores[2, 2] = 0, -scores[1, 1], 1e-9 * scores[2, 2]
    assert s.error(scores) == 2 / 20
    with pytest.raises(ValueError, match="shape"):
        s.error(s.truth.T)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ValueError, match="A1, A2, A3, B1, B2, B3") as caught:
        simulate("C1", rank=9, shape=(5, 8), fraction=0.0, switch=0.7)
    for name in ("rank", "fraction", "switch"):
        assert name in str(caught.value)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.5])
def test_power_law_columns_and_uniform_rows(exponent):
    rows, cols, labels = power_law_ratings(100, 50, 100_000, exponent=exponent)
    assert (rows.dtype, cols.dtype, labels.dtype) == (np.int64, np.int64, np.int8)
    assert rows.size == cols.size == labels.size == 100_000
    assert set(np.unique(labels)) == {-1, 1}
    p = np.arange(1.0, 51) ** -exponent
    p /= p.sum()
    counts = np.sort(np.bincount(cols, minlength=50))[::-1]
    assert np.abs(counts / 100_000 - p).max() < 0.005
    assert np.bincount(rows, minlength=100) == pytest.approx(1000, abs=5 * np.sqrt(1000))


def test_the_files_of_the_guides_hold_every_rating_once(tmp_path, capsys):
    main([str(tmp_path), "--users", "30", "--items", "20", "--ratings", "300"])
    parts = [
        pq.read_table(tmp_path / name)
        for name in ("ratings.parquet", "held_out.parquet", "incoming")
    ]
    assert [part.num_rows for part in parts] == [240, 30, 30]
    cells = {
        cell
        for part in parts
        for cell in zip(*part.select(["user", "item"]).to_pydict().values(), strict=True)
    }
    assert len(cells) == 300
    for part in parts:
        assert ((part["stars"].to_numpy() > 3.5) == (part["label"].to_numpy() > 0)).all()
    pairs = pq.read_table(tmp_path / "pairs.parquet")
    assert pairs.equals(parts[1].select(["user", "item"]))
    films, new = (pq.read_table(tmp_path / name) for name in ("films.parquet", "new_films.parquet"))
    assert (films.num_rows, new["item"].to_pylist()) == (20, [20, 21])
    assert "ratings.parquet" in capsys.readouterr().out
