"""The job on a standalone cluster whose workers do not have the package: it comes from the zip. And
a worker dies.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faultyfit import ClusterFit, assert_same_fit, quiet_fit, write_ratings

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.simulate import simulate

ROOT = Path(__file__).parents[2]


@pytest.mark.cluster
def test_the_job_runs_from_the_zip_and_equals_the_in_process_fit(cluster, package_zip, tmp_path):
    data = simulate("B2", rank=2, shape=(80, 60), fraction=0.3, seed=5)
    ratings = tmp_path / "ratings.parquet"
    model = tmp_path / "model"
    predictions = tmp_path / "predictions"
    pq.write_table(pa.table({"user": data.rows, "item": data.cols, "label": data.labels}), ratings)
    # A copy of the job alone: no package lies beside it.
    job = Path(shutil.copy(ROOT / "jobs" / "fit.py", tmp_path / "fit.py"))
    done = cluster.submit(
        "--py-files",
        package_zip,
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.executor.memory=700m",
        job,
        "--ratings",
        ratings,
        "--output",
        model,
        "--rank",
        3,
        "--max-iter",
        4,
        "--tol",
        0,
        "--predict",
        ratings,
        "--predictions",
        predictions,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fit = fit_arrays(data.rows, data.cols, data.labels, FitConfig(rank=3, max_iter=4, tol=0))
    metadata = json.loads((model / "metadata.json").read_text())
    np.testing.assert_allclose(metadata["objective_history"], fit.objective_history, rtol=1e-6)
    found = pq.read_table(predictions).to_pandas()
    expected = fit.score(found.user.to_numpy(), found.item.to_numpy())
    assert len(found) == len(data.rows)
    assert np.max(np.abs(found.score - expected)) <= 1e-5 * np.max(np.abs(expected))


@pytest.mark.cluster
def test_a_worker_dies_in_a_half_step_of_mixed(cluster, package_zip, tmp_path):
    """``test_faults.py`` has the other exchanges."""
    path = tmp_path / "ratings.parquet"
    iterations = 3
    phase = "iteration 2, cols"
    write_ratings(path)
    fit = ClusterFit(
        cluster,
        package_zip,
        tmp_path / "fit",
        path,
        "--max-iter",
        iterations,
        "--exchange",
        "mixed",
    )
    fit.disturbed({phase: cluster.kill_worker})
    assert fit.log.lost_tasks(phase)
    assert_same_fit(fit, quiet_fit(path, iterations, holdout=None))
