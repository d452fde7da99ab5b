"""Prepared ratings: the same fits from a folder as from the source, which is not read; other ratings are refused."""

import json
import shutil
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input import packing, preparedratings
from onebit_spark.input.defects import Columns
from onebit_spark.input.preparedratings import open_prepared, prepare_ratings
from onebit_spark.simulate import power_law_ratings

SHAPE = (60, 30)


def table(n=900, seed=3, ids=lambda numbers: [f"u{i:03}" for i in numbers]):
    rows, cols, labels = power_law_ratings(*SHAPE, n, seed=seed)
    weights = pa.array(np.random.default_rng(seed).uniform(0, 2, n).round(1))
    return pa.table({"user": ids(rows), "item": pa.array(cols), "label": pa.array(labels), "weight": weights})


@pytest.fixture
def source(tmp_path):
    """Three files of ratings."""
    folder = tmp_path / "ratings"
    folder.mkdir()
    ratings = table()
    for part in range(3):
        pq.write_table(ratings.slice(part * 300, 300), folder / f"{part}.parquet")
    return folder


@pytest.fixture
def ratings(spark, source):
    return spark.read.parquet(str(source))


def estimator(folder=None, **params):
    chosen = {"rank": 2, "maxIter": 2, "tol": 0.0, "blocksDir": None if folder is None else str(folder), **params}
    return OneBitCompletion(**chosen)


def told(model):
    """All that a fit says, but its seconds and the reason of the exchange."""
    factors = [frame.orderBy("id").collect() for frame in (model.users, model.items)]
    info = model.info
    return factors, info.objective_history, info.fingerprint, info.repeats, info.total_weight, model.certificate


def spoil(source):
    """Make the ratings unreadable, so that nothing but the names, lengths and times of the files is there."""
    for path in source.glob("*.parquet"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        import os

        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for path in source.glob(".*.crc"):
        path.unlink()


@pytest.mark.parametrize("params", [{}, {"weightCol": "weight"}], ids=["", "weights"])
def test_the_same_fit_without_the_source(ratings, source, tmp_path, params, monkeypatch):
    """To the bit, by every exchange, from bundles of a few ratings; and the sketch of what was fitted."""
    monkeypatch.setattr(packing, "BUNDLE", 40)
    exchanges = ("driver", "broadcast", "shuffle")
    expected = {exchange: estimator(exchange=exchange, **params).fit(ratings) for exchange in exchanges}
    estimator(**params).prepare(ratings, str(tmp_path / "prepared"))
    spoil(source)
    for exchange, model in expected.items():
        found = estimator(tmp_path / "prepared", exchange=exchange, **params).fit(ratings)
        assert told(found) == told(model)
        assert found.info.exchange["exchange"] == exchange
        assert np.array_equal(found.fitted.hashes, model.fitted.hashes)
        assert np.array_equal(found.fitted.ratings, model.fitted.ratings)
