"""The jobs as subprocesses, and tables on disk for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from jvm import SHORT_LIVED

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SUBMIT = [str(SPARK_SUBMIT), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
SUBMIT += ["--conf", "spark.sql.shuffle.partitions=2"]


def environment(**more):
    """This process's, without what would lead Spark elsewhere."""
    elsewhere = ("SPARK_REMOTE", "SPARK_API_MODE", "HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    clean = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**clean, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": SHORT_LIVED, **more}


def run(command, env=None, cwd=None):
    """Run to the end; stdout and stderr in one, as a terminal shows them."""
    return subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
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


def write(path, table):
    """A table as Parquet, whatever is given as columns."""
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path)
    return path
