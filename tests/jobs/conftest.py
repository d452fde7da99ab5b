"""Small tables on disk, and the jobs as subprocesses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onebit_spark.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SUBMIT = [str(SPARK_SUBMIT), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
SUBMIT += ["--conf", "spark.sql.shuffle.partitions=2"]
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the time of a JVM that lives for seconds is compiling


def environment(**more):
    """This process's, without what would lead Spark elsewhere."""
    elsewhere = ("SPARK_REMOTE", "SPARK_API_MODE", "HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    clean = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**clean, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": SHORT_LIVED, **more}


def run(command, env=None, cwd=None):
    """Run to the end; stdout and stderr in one, as a terminal shows them."""
    return subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        env=environment(**(env or {})), cwd=cwd,
    )  # fmt: skip


def submit(job, *arguments):
    return run([*SUBMIT, ROOT / "jobs" / f"{job}.py", *arguments])


def run_all(cases, folder):
    """Run many jobs in one Spark application: {name: (job, arguments)} ─► {name: (exit code, stdout, stderr)}."""
    (folder / "cases.json").write_text(json.dumps({name: [job, list(map(str, a))] for name, (job, a) in cases.items()}))
    done = run([*SUBMIT, Path(__file__).with_name("many.py"), folder])
    assert done.returncode == 0, done.stdout
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def ratings():
    """1,200 of the 60 × 40 cells of a matrix of rank 2: user, item (text), label (±1)."""
    truth = simulate("B1", 2, (60, 40), 0.5, seed=3)
    users, items = np.char.add("u", truth.rows.astype(str)), np.char.add("i", truth.cols.astype(str))
    return pa.table({"user": users, "item": items, "label": truth.labels.astype(np.int32)})


def write(path, table):
    """A table as Parquet, whatever is given as columns."""
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    return path
