"""A job on Spark Connect, as a process of its own; what it wrote is read by a classic session, and without Spark."""

import socket
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import ROOT, run

import onebit_spark
from onebit_spark import OneBitCompletionModel
from onebit_spark.simulate import simulate

pytest.importorskip("grpc", reason="a client of Spark Connect needs the extra connect")
PORT = 15002


@pytest.fixture(autouse=True)
def free_port():
    """A server that Spark starts for ``local[2]`` has this port."""
    with socket.socket() as there:
        if there.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something else listens at port {PORT}")


@pytest.mark.slow
def test_a_fit_with_predictions(spark, tmp_path):
    data = simulate("A2", rank=2, shape=(40, 30), fraction=0.6, seed=1)
    ratings = pa.table({"user": [f"u{i}" for i in data.rows], "item": data.cols, "label": data.labels})
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    model, predictions = tmp_path / "model", tmp_path / "predictions"
    done = run(
        [sys.executable, ROOT / "jobs" / "fit.py", "--remote", "local[2]", "--ratings", tmp_path / "ratings.parquet",
         "--output", model, "--predict", tmp_path / "ratings.parquet", "--predictions", predictions, "--max-iter", "5",
         "--no-report"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    found = pq.read_table(predictions).to_pandas().sort_values(["user", "item"])
    classic = OneBitCompletionModel.load(str(model)).transform(spark.createDataFrame(ratings))
    expected = classic.toPandas().sort_values(["user", "item"])
    served = onebit_spark.load(model).score(expected["user"], expected["item"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-6)
    np.testing.assert_allclose(served, expected["score"], rtol=1e-6)
