"""A small fit as a model folder, without Spark."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from support.modelfolders import info_of, text_ids, write_folder

import onebit_spark
from onebit_spark import FitConfig, fit_arrays


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(8)
    users = rng.integers(0, 28, 500)
    items = rng.integers(0, 18, 500)
    taste = rng.normal(size=28)[users] * rng.normal(size=18)[items] + 0.5 * rng.normal(size=500)
    return users, items, np.where(taste > -0.2, 1, -1)


@pytest.fixture(scope="module")
def make_fit(ratings):
    fits = {}

    def make(**choices):
        key = tuple(sorted(choices.items()))
        if key not in fits:
            settings = {"rank": 2, "max_iter": 5, "tol": 0, "alpha": 5.0, "beta": 1.0, **choices}
            fits[key] = fit_arrays(*ratings, FitConfig(**settings), shape=(30, 20), threads=1)
        return fits[key]

    return make


@pytest.fixture
def make_folder(make_fit, tmp_path):
    """A fit as a model folder: row i of the rated ones has the text id ``ui``, column j the integer
    10·j.
    """

    def make(
        info=None,
        users=None,
        types=("string", "int"),
        name="model",
        certificates=(),
        params=None,
        **choices,
    ):
        fit = make_fit(**choices)
        users = text_ids("u", 28) if users is None else users
        items = pa.array(10 * np.arange(18, dtype=np.int32))
        info_written = info_of(fit, dict(zip(("user", "item"), types, strict=True)))
        info_written = dataclasses.replace(info_written, **(info or {}))
        sides = (users, fit.rows.take(slice(28))), (items, fit.cols.take(slice(18)))
        return write_folder(
            tmp_path / name,
            info_written,
            *sides,
            {"headline": None, "certificates": [*certificates]},
            params,
        )

    return make


@pytest.fixture
def make_model(make_folder):
    return lambda **choices: onebit_spark.load(make_folder(**choices))
