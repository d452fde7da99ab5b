"""Ratings and small fitted models in the Spark session. Most files have ratings of their own."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from powerlaw import power_law_ratings
from support.modelfolders import info_of, model_of

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core import model_selection
from onebit_spark.model_info import factor_table
from onebit_spark.simulate import simulate


@pytest.fixture
def on_executors(monkeypatch):
    """No model is small enough to be scored, asked or changed on the driver."""
    monkeypatch.setattr("onebit_spark.spark.scoring.MOST_BYTES", -1)


@pytest.fixture(params=["here", pytest.param("on executors", marks=pytest.mark.slow)])
def both_ways(request):
    """What small models do on the driver, and what others do on the executors.

    By default a test of each method compares the two.
    """
    if request.param == "on executors":
        request.getfixturevalue("on_executors")


@pytest.fixture
def quick_search(monkeypatch):
    """A search that begins with two factors, on few ratings, in few iterations."""
    few = {"FEWEST_RATINGS": 100, "SHORTEST_FIT": 1, "START_RANK": 2, "FEWEST_IN_SLICE": 300}
    few |= {"FIRST_ITERATIONS": 2, "TRIAL_ITERATIONS": 1, "FINAL_ITERATIONS": 4}
    for name, value in few.items():
        monkeypatch.setattr(model_selection, name, value)


@pytest.fixture(scope="session")
def data():
    """Ratings of 70 users on 40 items by a power law, so that some rows are heavy and cells
    repeat.
    """
    return power_law_ratings(70, 40, 1500, seed=2)


@pytest.fixture(scope="session")
def weights():
    """Of these ratings: some are zero, and some are no whole numbers."""
    return np.random.default_rng(0).integers(0, 4, 1500) / 2


@pytest.fixture(scope="session")
def ratings(spark, data, weights):
    """The users are text whose order is that of the numbers, so that a fit in process numbers them
    alike.
    """
    rows, cols, labels = data
    users = [f"u{i:03}" for i in rows]
    frame = spark.createDataFrame(
        pa.table({"user": users, "item": cols, "label": labels, "w": weights})
    ).cache()
    assert frame.count() == 1500
    return frame


@pytest.fixture(scope="session")
def once_rated(spark):
    """A thousand cells of 50 users and 40 items, which are numbers, each rated once."""
    data = simulate("B2", rank=2, shape=(50, 40), fraction=0.5, seed=2)
    return spark.createDataFrame(
        pa.table({"user": data.rows, "item": data.cols, "label": data.labels})
    ).cache()


@pytest.fixture(scope="session")
def make_fit():
    """A small fit of 30 × 20 by ``fit_arrays``; the last two rows and columns have no rating."""
    fits = {}

    def make(**choices):
        key = tuple(sorted(choices.items()))
        if key not in fits:
            rng = np.random.default_rng(5)
            rows = rng.integers(0, 28, 400)
            cols = rng.integers(0, 18, 400)
            signs = np.sign(rng.normal(size=30)[rows] * rng.normal(size=20)[cols] + 0.5)
            config = FitConfig(
                **{"rank": 3, "max_iter": 5, "tol": 0, "alpha": 1.0, "beta": 0.5, **choices}
            )
            fits[key] = fit_arrays(rows, cols, signs, config, shape=(30, 20), threads=1)
        return fits[key]

    return make


@pytest.fixture(scope="session")
def make_model(spark, make_fit):
    """A fit as a model: row i of the rated ones has the id ``user_ids[i]``, by default i."""

    def make(user_ids=None, item_ids=None, id_types=None, info=None, **choices):
        fit = make_fit(**choices)
        user_ids = pa.array(np.arange(28)) if user_ids is None else user_ids
        item_ids = pa.array(np.arange(18)) if item_ids is None else item_ids
        users = factor_table(user_ids, fit.rows.take(slice(len(user_ids))))
        items = factor_table(item_ids, fit.cols.take(slice(len(item_ids))))
        types = id_types or {"user": "bigint", "item": "bigint"}
        described = dataclasses.replace(info_of(fit, types), **(info or {}))
        return model_of(spark, described, users, items)

    return make
