"""Tables of four ratings, and jobs on them, in one Spark session or without Spark."""

import pyarrow as pa
import pytest
from running import run_here

FAST = ["--max-iter", "2", "--tol", "0", "--rank", "2"]
NO_HEADER = "a,x,1\na,y,0\nb,x,1\n"  # as CSV


def table(user=("a", "a", "b", "b"), item=("x", "y", "x", "y"), label=(1, -1, 1, 1), **more):
    return pa.table({"user": user, "item": item, "label": label, **more})


TABLES = {
    "good": table(),
    "one_class": table(label=(1, 1, 1, 1)),
    "stars": table(label=(5, 1, 4, 2)),
    "booleans": table(user=("a", "a", "b", "b"), item=("x", "x", "x", "y"), label=(True, False, True, True)),
    "integers": table(user=(1, 1, 2, 2), item=(7, 8, 7, 8)),
}


def run_job(command, folder, runtime="spark"):
    """Run ``fit --ratings {}/good …``, where ``{}`` is the folder: exit code, stdout, stderr.

    Fits are short, and draw a report only with ``--report``. A job that names no output is given one, absent-0.
    """
    job, *arguments = (word.format(folder) for word in command.split())
    if job == "fit":
        arguments += FAST if "--report" in arguments else [*FAST, "--no-report"]
    if "--output" not in arguments and job != "evaluate":
        arguments += ["--output", f"{folder}/absent-0"]
    with pytest.MonkeyPatch.context() as patch:
        if runtime == "spark":
            patch.setenv("PYSPARK_GATEWAY_PORT", "0")  # as under spark-submit: only Spark can tell what a path means
        return run_here(job, *arguments, runtime=runtime)
