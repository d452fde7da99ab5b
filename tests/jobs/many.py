"""Runs the jobs of FOLDER/cases.json one after the other in one Spark session; see run_all in running.py."""

import contextlib
import io
import json
import sys
from pathlib import Path

from onebit_spark import cli
from onebit_spark.cli.running import spark_session
from onebit_spark.ml import evaluation

folder = Path(sys.argv[1])
results = {}
with spark_session("tests") as spark:
    spark.sparkContext.setLogLevel("OFF")
    for name, (job, arguments) in json.loads((folder / "cases.json").read_text()).items():
        evaluation.COLLECT_LIMIT = 0 if "binned" in name else 5_000_000
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = getattr(cli, job)(arguments)
        results[name] = (code, out.getvalue(), err.getvalue())
(folder / "results.json").write_text(json.dumps(results))
