"""The jobs as a user starts them: spark-submit, plain Python in a bare checkout, Spark Connect;
killed, interrupted.
"""

import json
import os
import re
import shutil
import signal
import site
import socket
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from support.running import ROOT, TABLES, run, run_here, started, submit, wait_for, write

import onebit_spark
from onebit_spark import OneBitCompletionModel
from onebit_spark.settings import available_cores
from onebit_spark.simulate import simulate

KNOWN_PAIR = ("u1", "i1")
UNKNOWN = [("u1", "never"), ("never", "i1"), ("never", "never")]


@pytest.fixture(scope="module")
def ratings():
    """1,200 of the 60 × 40 cells of a matrix of rank 2: user, item (text), label (±1)."""
    truth = simulate("B1", 2, (60, 40), 0.5, seed=3)
    users = np.char.add("u", truth.rows.astype(str))
    items = np.char.add("i", truth.cols.astype(str))
    return pa.table({"user": users, "item": items, "label": truth.labels.astype(np.int32)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ratings):
    """Ratings as CSV with `;`, pairs with ids never seen, a config file."""
    folder = tmp_path_factory.mktemp("jobs")
    options = pyarrow.csv.WriteOptions(delimiter=";", quoting_style="none")
    pyarrow.csv.write_csv(ratings, folder / "ratings.csv", options)
    pairs = [KNOWN_PAIR, *UNKNOWN]
    (folder / "pairs.csv").write_text(
        "item;user\n" + "".join(f"{item};{user}\n" for user, item in pairs)
    )
    (folder / "job.toml").write_text(
        f'ratings = "{folder}/ratings.csv"\nformat = "csv"\nrank = 9\nmax-iter = 4\ntol = '
        '0\n[option]\nsep = ";"\n'
    )
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """What a good fit printed: config file and flags, CSV, text ids, predictions of unknown pairs."""
    return submit(
        "fit",
        "--config",
        folder / "job.toml",
        "--rank",
        "3",
        "--output",
        folder / "model",
        "--predict",
        folder / "pairs.csv",
        "--predictions",
        folder / "predictions",
    )


def test_a_fit_under_spark_submit(folder, fitted):
    assert fitted.returncode == 0, fitted.stdout
    assert "Fitted 1,200 ratings of 60 users on 40 items" in fitted.stdout
    assert "Stopped after 4 iterations" in fitted.stdout
    assert fitted.stdout.lower().count("exchange: ") == 1
    assert "iteration 1 of 4: objective" in fitted.stdout
    assert f"model: {folder}/model\npredictions: {folder}/predictions\n" in fitted.stdout
    metadata = json.loads((folder / "model" / "metadata.json").read_text())
    assert metadata["parameters"]["rank"] == 3  # the flag wins over the file's 9
    assert metadata["parameters"]["max_iter"] == 4  # the file over the default
    assert metadata["iterations"] == 4
    assert metadata["id_types"] == {"user": "string", "item": "string"}
    assert (folder / "model" / "report.html").read_text(encoding="utf-8").endswith("</html>")


def test_predictions_of_unknown_pairs_are_whole(folder, fitted):
    table = pq.read_table(folder / "predictions")
    assert table.column_names == ["user", "item", "score", "std", "probability", "prediction"]
    assert {(line["user"], line["item"]) for line in table.to_pylist()} == {KNOWN_PAIR, *UNKNOWN}
    lines = {(line["user"], line["item"]): line for line in table.to_pylist()}
    for line in lines.values():
        assert abs(line["score"]) < float("inf")  # neither null nor NaN
        assert 0 < line["probability"] < 1
        assert line["prediction"] in (-1, 1)
    assert str(table.schema.field("prediction").type) == "int32"
    assert lines["never", "never"]["std"] > 0


@pytest.mark.parametrize(
    "where", ["here", pytest.param("under spark-submit", marks=pytest.mark.slow)]
)
def test_another_process_predicts_the_same(spark, folder, fitted, where):
    output = folder / f"again {where}"
    arguments = [
        "--model",
        folder / "model",
        "--pairs",
        folder / "pairs.csv",
        "--format",
        "csv",
        "--option",
        "sep=;",
    ]
    arguments += ["--output", output, "--quiet"]
    if where == "here":
        code, printed, _ = run_here("predict", *arguments)
    else:
        done = submit("predict", *arguments)
        code = done.returncode
        printed = done.stdout
    assert code == 0, printed
    assert f"\n{output}\n" in f"\n{printed}"
    key = [("user", "ascending"), ("item", "ascending")]
    assert (
        pq.read_table(output)
        .sort_by(key)
        .equals(pq.read_table(folder / "predictions").sort_by(key))
    )
    assert sorted(path.name for path in folder.glob(".*")) == []  # nothing hidden is left behind


@pytest.mark.slow
def test_bad_data_ends_with_one_line_after_spark_stopped(folder, ratings):
    """With Spark's own log at its default level, which is talkative."""
    bad = ratings.to_pylist()
    for line, label in zip(bad, (None, None, 7), strict=False):
        line["label"] = label
    path = write(
        folder / "bad.parquet",
        {name: [line[name] for line in bad] for name in ratings.column_names},
    )
    done = submit("fit", "--ratings", path, "--output", folder / "none")
    assert done.returncode == 2
    last = done.stdout.splitlines()[-1]
    assert last.startswith("error: 2 ratings with null or NaN in column 'label', such as (")
    assert "1 rating with label outside" in last
    assert "Traceback" not in done.stdout
    assert not (folder / "none").exists()


@pytest.mark.slow
def test_bad_arguments_end_before_spark_starts(folder):
    done = submit("fit", "--ratings", folder / "ratings.csv", "--rank", "0")
    assert done.returncode == 2
    # Of Spark 4.0
    lines = [line for line in done.stdout.splitlines() if " INFO ShutdownHookManager" not in line]
    assert lines[-1] == (
        "error: 2 problems: (1) --output is required; (2) --rank must be an integer of at least 1 "
        "or auto, not 0"
    )
    assert "SparkContext" not in done.stdout


@pytest.fixture(scope="module")
def bare(folder):
    """fit.py of a checkout and a Python without the package installed: the job finds it beside
    itself.
    """
    checkout = folder / "checkout"
    python = folder / "bare-python"
    for name in ("jobs", "onebit_spark", "conf"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site: no editable install
    python.chmod(0o755)
    bare_only = {"PYTHONPATH": site.getsitepackages()[0], "PYSPARK_PYTHON": str(python)}
    done = run([python, "-c", "import onebit_spark"], env=bare_only, cwd="/")
    assert "No module named 'onebit_spark'" in done.stdout
    return [python, checkout / "jobs" / "fit.py"], bare_only


@pytest.mark.slow
def test_killed_half_way_and_resumed_by_plain_python_from_a_bare_checkout(folder, fitted, bare):
    """SIGKILL in the middle of the iterations: no output, a checkpoint; resumed, it ends at the
    undisturbed fit.

    The package reaches the workers too: they run the same bare Python.
    """
    job, bare_only = bare
    log = folder / "killed.log"
    kept = folder / "checkpoints"
    command = [*job, "--config", folder / "job.toml", "--rank", "3", "--output", "plain"]
    command = [*map(str, command), "--checkpoint-dir", str(kept), "--checkpoint-interval", "1"]
    command += ["--exchange", "broadcast"]  # in Python workers
    with started([*command, "--max-iter", "100000"], log, env=bare_only, cwd=folder) as process:
        wait_for(lambda: list(kept.glob("iteration-00000[2-9]")), process, log)
    assert not [path.name for path in folder.iterdir() if "plain" in path.name]
    newest = max(path.name for path in kept.iterdir() if not path.name.startswith("."))
    done = run(
        [*command, "--resume", "--max-iter", str(max(4, int(newest[-6:])))],
        env=bare_only,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout
    assert " INFO " not in done.stdout
    assert "model: plain" in done.stdout
    found, expected = (
        json.loads((folder / name / "metadata.json").read_text()) for name in ("plain", "model")
    )
    # It looked at its rows in every iteration, the other fit did not: the same to rounding
    # (docs/MATH.md, §7.2).
    assert found["objective_history"][:4] == pytest.approx(expected["objective_history"], rel=1e-7)
    assert not list(kept.iterdir())


def test_help_needs_no_spark():
    """Of one job as a process; tests/unit/test_imports.py asks the others in this one."""
    done = run([sys.executable, ROOT / "jobs" / "fit.py", "--help"], env={"JAVA_HOME": "/nowhere"})
    assert done.returncode == 0
    assert done.stdout.startswith("usage: fit.py")


# ---- interrupted from outside ------------------------------------------------------------------


@pytest.fixture
def workers_apart(tmp_path_factory):
    """A Python for Spark's workers whose stderr is a file: a worker that is killed may leave half a
    traceback.
    """
    folder = tmp_path_factory.mktemp("workers")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" 2>>{folder}/stderr\n')
    python.chmod(0o755)
    return {"PYSPARK_PYTHON": str(python)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143)],
    ids=["Ctrl-C", "kill"],
)
def test_interrupted_and_resumed(spark, tmp_path, workers_apart, send, number, code):
    """Ctrl-C reaches all processes of a terminal, Java too; ``kill`` reaches one."""
    kept = tmp_path / "checkpoints"
    log = tmp_path / "log"
    flags = [
        "--ratings",
        write(tmp_path / "ratings.parquet", TABLES["good"]),
        "--output",
        tmp_path / "model",
    ]
    flags += [
        "--rank",
        2,
        "--tol",
        0,
        "--no-report",
        "--checkpoint-dir",
        kept,
        "--checkpoint-interval",
        1,
    ]
    command = [sys.executable, ROOT / "jobs" / "fit.py", *flags, "--max-iter", 100_000]
    with started(command, log, env=workers_apart) as process:
        wait_for(lambda: list(kept.glob("iteration-*")), process, log)
        send(process.pid, number)
        assert process.wait(900) == code, log.read_text()
    *before, last = log.read_text().splitlines()
    assert all(
        re.match("iteration|exchange: |compiling kernels|WARNING: Using incubator", line)
        for line in before
    ), before
    newest = max(kept.glob("iteration-*"))
    assert last == (
        f"interrupted. The checkpoint file:{newest} is complete: to continue from it, run the "
        "same command with "
        "--resume."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "log",
        "ratings.parquet",
    ]
    reached = int(newest.name[-6:])
    code, _, err = run_here("fit", *flags, "--resume", "--max-iter", reached + 1)
    assert code == 0, err
    assert f"resuming after iteration {reached}, from the checkpoint file:{newest}\n" in err
    assert f"iteration {reached + 1} of {reached + 1}: " in err


@pytest.mark.skipif(available_cores() < 2, reason="compiles in the process of the fit")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_processes_that_compile_end_with_the_job(tmp_path, number):
    """The signal reaches the job alone."""
    log = tmp_path / "log"
    flags = ["--ratings", write(tmp_path / "ratings.parquet", TABLES["good"])]
    command = [sys.executable, "-m", "onebit_spark", "fit", *flags, "--output", tmp_path / "model"]

    def processes():
        listed = run(["ps", "-A", "-o", "pgid=,stat="]).stdout.splitlines()
        alive = [group for group, state in map(str.split, listed) if not state.startswith("Z")]
        return alive.count(str(job.pid))

    with started(command, log, env={"ONEBIT_CACHE": str(tmp_path / "cache")}) as job:
        # The job, the process that it starts, and two that compile
        wait_for(lambda: processes() > 3, job, log)
        os.kill(job.pid, number)
        assert job.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
        ended = time.monotonic()
        printed = log.read_text()
        while processes():
            assert time.monotonic() < ended + 10
            time.sleep(0.1)
    assert log.read_text() == printed
    assert number == signal.SIGKILL or printed.splitlines()[-1].startswith("interrupted.")


# ---- Spark Connect -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fit_on_spark_connect(spark, tmp_path):
    """What it wrote is read by a classic session, and without Spark."""
    pytest.importorskip("grpc", reason="a client of Spark Connect needs the extra connect")
    port = 15002  # of a server that Spark starts for ``local[2]``
    with socket.socket() as there:
        if there.connect_ex(("127.0.0.1", port)) == 0:
            pytest.skip(f"something else listens at port {port}")
    data = simulate("A2", rank=2, shape=(40, 30), fraction=0.6, seed=1)
    ratings = pa.table(
        {"user": [f"u{i}" for i in data.rows], "item": data.cols, "label": data.labels}
    )
    pq.write_table(ratings, tmp_path / "ratings.parquet")
    model = tmp_path / "model"
    predictions = tmp_path / "predictions"
    done = run(
        [
            sys.executable,
            ROOT / "jobs" / "fit.py",
            "--remote",
            "local[2]",
            "--ratings",
            tmp_path / "ratings.parquet",
            "--output",
            model,
            "--predict",
            tmp_path / "ratings.parquet",
            "--predictions",
            predictions,
            "--max-iter",
            "5",
            "--no-report",
        ],
    )
    assert done.returncode == 0, done.stdout
    found = pq.read_table(predictions).to_pandas().sort_values(["user", "item"])
    classic = OneBitCompletionModel.load(str(model)).transform(spark.createDataFrame(ratings))
    expected = classic.toPandas().sort_values(["user", "item"])
    served = onebit_spark.load(model).score(expected["user"], expected["item"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-6)
    np.testing.assert_allclose(served, expected["score"], rtol=1e-6)
