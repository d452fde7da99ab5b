"""Whole fits on a GPU against the same fits on the CPU."""

import numpy as np
import pytest

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.core import model_selection
from onebit_spark.core.setup import form_of
from onebit_spark.engines.cuda import device, runner

FITS = {
    "default": {},
    "plain": {"implicit_features": False},
    "no intercepts": {"intercepts": False, "rank": 5},
    "gamma": {"prior": "gamma", "rank": 7},
    "random start": {"start": "random", "rank": 4},
    "spreads": {"covariance": "diagonal"},
    "twenty": {"rank": 20},
    "sixty-four": {"rank": 64, "max_iter": 3},
}


def agree(here, there):
    """At tol = 0: the objective to 1e−6 of it, and scores to 1e−4 of the largest."""
    assert len(here.history) == len(there.history)
    np.testing.assert_allclose(there.objective_history, here.objective_history, rtol=1e-6)
    rng = np.random.default_rng(0)
    row = rng.integers(0, here.rows.n_rows, 2000)
    col = rng.integers(0, here.cols.n_rows, 2000)
    largest = np.abs(here.score(row, col)).max()
    apart = np.abs(there.score(row, col) - here.score(row, col))
    assert apart.max() < 1e-4 * largest
    np.testing.assert_allclose(there.std(row, col), here.std(row, col), rtol=1e-3, atol=1e-4)


def on_both(*arguments, **more):
    """The fit on the CPU and on the GPU, which must agree."""
    here, there = (fit_arrays(*arguments, **more, device=place) for place in ("cpu", "cuda"))
    agree(here, there)
    return here, there


@pytest.mark.parametrize("name", FITS)
def test_the_same_fit(ratings, name):
    rows, cols, labels, shape, _ = ratings(1)
    config = FitConfig(
        **{"rank": 10, "tol": 0, "max_iter": 15, "likelihood_weight": 1.0, **FITS[name]}
    )
    on_both(rows, cols, labels, config, shape)


def test_weights(ratings):
    rows, cols, labels, shape, weights = ratings(2, weighted=True)
    config = FitConfig(rank=10, tol=0, max_iter=15, likelihood_weight=1.0)
    on_both(rows, cols, labels, config, shape, weights=weights)


def test_side_features(ratings):
    rows, cols, labels, shape, _ = ratings(3)
    known = np.random.default_rng(3).normal(size=(shape[0], 4))
    config = FitConfig(tol=0, max_iter=15, likelihood_weight=1.0, rank=4)
    here, there = on_both(rows, cols, labels, config, shape, row_features=known)
    np.testing.assert_allclose(
        there.scales.features["rows"], here.scales.features["rows"], atol=1e-4
    )


def test_chosen_weight_and_certificates(ratings):
    rows, cols, labels, shape, _ = ratings(4, n=9000)
    config = FitConfig(tol=0, max_iter=30, rank=5, implicit_features=False)
    here, there = on_both(rows, cols, labels, config, shape, certify=Terms())
    assert there.config.likelihood_weight == here.config.likelihood_weight
    for found, expected in zip(there.certificates, here.certificates, strict=True):
        assert found.name == expected.name
        assert found.bound == pytest.approx(expected.bound, rel=1e-4)
    found, expected = (fit.info.thresholds["answered"].values for fit in (there, here))
    np.testing.assert_allclose(found, expected, rtol=0.01)


def test_choices(ratings):
    """Rank, κ, implicit features and length by the last tenth: the same answers."""
    rows, cols, labels, shape, _ = ratings(9, n=12000)
    config = FitConfig(max_rank=20, tol=0, max_iter=40)
    here, there = on_both(rows, cols, labels, config, shape)
    assert there.config == here.config
    kept = [[entry["kept"] for entry in fit.info.choice["trail"]] for fit in (here, there)]
    assert kept[0] == kept[1]


def test_certificates_of_draws(ratings):
    rows, cols, labels, shape, _ = ratings(5, n=9000)
    config = FitConfig(tol=0, max_iter=12, rank=5, likelihood_weight=1.0, implicit_features=False)
    here, there = on_both(rows, cols, labels, config, shape, certify=Terms())
    assert there.certificates[0].bound == pytest.approx(here.certificates[0].bound, rel=1e-3)
    np.testing.assert_allclose(
        there.sample(rows[:99], cols[:99]), here.sample(rows[:99], cols[:99]), atol=1e-3
    )


def test_same_bits(ratings):
    """Also when the ratings come in another order."""
    rows, cols, labels, shape, _ = ratings(6)
    config = FitConfig(tol=0, max_iter=10)
    order = np.random.default_rng(0).permutation(len(rows))
    first = fit_arrays(rows, cols, labels, config, shape, device="cuda")
    again = fit_arrays(rows[order], cols[order], labels[order], config, shape, device="cuda")
    assert again.objective_history == first.objective_history
    for name in ("location", "scale", "implicit"):
        assert np.array_equal(getattr(again.rows, name), getattr(first.rows, name))
        assert np.array_equal(getattr(again.cols, name), getattr(first.cols, name))


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16, bool])
def test_types_of_arrays(ratings, kind):
    rows, cols, labels, shape, _ = ratings(7, m=100, c=50)
    given = labels.astype(kind) if kind is bool else np.where(labels, 1, 0).astype(kind)
    index = np.int64 if kind is bool else kind
    fit = fit_arrays(
        rows.astype(index),
        cols.astype(index),
        given,
        FitConfig(tol=0, max_iter=2),
        shape,
        device="cuda",
    )
    assert fit.info.n_positive == labels.sum()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": [-1, 0, 1]}, "negative indices"),
        ({"cols": [0, 1, 9]}, "beyond the declared shape"),
        ({"labels": [1, 1, 1]}, "both classes"),
        ({"labels": [1, 0, -1]}, "mix 0 and −1"),
        ({"labels": [1, 0, 2]}, "must be ±1 or 0/1"),
        ({"labels": [1, 0]}, "differ in length"),
        ({"shape": (3, 3, 3)}, "shape must be two integers"),
        ({"shape": (3.5, 3)}, "shape must be two integers"),
    ],
)
def test_what_is_wrong_is_said_as_on_the_cpu(change, words):
    given = {"rows": [0, 1, 1], "cols": [0, 1, 2], "labels": [1, 0, 1], "shape": (3, 3), **change}
    shape = given.pop("shape")
    with pytest.raises(ValueError, match=words):
        fit_arrays(*map(np.array, given.values()), shape=shape, device="cuda")


def test_growth_stops_where_the_memory_ends(ratings, monkeypatch, caplog):
    rows, cols, labels, shape, _ = ratings(9, n=12000)
    monkeypatch.setattr(model_selection, "START_RANK", 1)
    whole = fit_arrays(rows, cols, labels, FitConfig(max_rank=8), shape, device="cuda")
    assert whole.config.rank > 1
    there = device.bytes_needed(len(rows), *shape, form_of(FitConfig(rank=1)), False)
    monkeypatch.setattr(device, "bytes_needed", lambda *sizes: there)
    monkeypatch.setattr(runner, "usable_bytes", lambda: there)
    monkeypatch.setattr(
        runner, "bytes_needed", lambda n, rows, cols, form, weighted: there + form.rank - 1
    )
    fit = fit_arrays(rows, cols, labels, FitConfig(max_rank=8), shape, device="cuda")
    assert fit.config.rank == 1
    assert "rank 8 is not tried: it takes about" in caplog.text


def test_too_little_memory(ratings, monkeypatch):
    rows, cols, labels, shape, _ = ratings(8)
    monkeypatch.setattr(device, "SPARE", 1e-9)
    with pytest.raises(ValueError, match=r"take about .* GB of GPU memory, and .* GB are free"):
        fit_arrays(rows, cols, labels, FitConfig(), shape, device="cuda")


def test_tables_by_ids(ratings, tmp_path):
    """In files as well: the job without Spark, with a checkpoint from which it goes on."""
    pa = pytest.importorskip("pyarrow")
    from onebit_spark import fit_table

    rows, cols, labels, _, _ = ratings(6)
    table = pa.table({"user": [f"u{row:04}" for row in rows], "item": cols, "label": labels})
    config = FitConfig(rank=4, tol=0, max_iter=10, likelihood_weight=1.0)
    here, there = (fit_table(table, config, device=place) for place in ("cpu", "cuda"))
    np.testing.assert_allclose(there.info.objective_history, here.info.objective_history, rtol=1e-6)
    expected = here.score(table["user"], table["item"])
    assert (
        np.abs(there.score(table["user"], table["item"]) - expected).max()
        < 1e-4 * np.abs(expected).max()
    )
    there.save(tmp_path / "model")
