"""Fits on the cluster that are disturbed in a chosen phase, and what became of them."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from powerlaw import power_law_ratings

import onebit_spark
from onebit_spark import FitConfig, Terms, fit_table
from support.eventlog import EventLog, event_log_settings
from support.jvm import QUICK
from support.standalone import WORKERS, send, unfinished_tasks, wait_for

ROOT = Path(__file__).parents[2]

RANK = 5
ITERATIONS = 6
BLOCKS = 4
PATIENCE = 1200  # seconds until a fit counts as stuck: a busy machine takes several minutes for one
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "700m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.codegen.wholeStage": "false",
    # No job before both executors are there: each has its share of every phase.
    "spark.cores.max": 2,
    "spark.scheduler.minRegisteredResourcesRatio": 1,
    # Phases of several tasks, long enough to be hit.
    "spark.sql.files.maxPartitionBytes": "200k",
    "spark.sql.shuffle.partitions": 4,
    # Do not wait long for those who hold a block but do not answer.
    "spark.locality.wait": "500ms",
    "spark.shuffle.io.retryWait": "500ms",
}


def write_ratings(path):
    """200,000 ratings as Parquet."""
    rows, cols, labels = power_law_ratings(3_000, 800, 200_000, seed=8)
    pq.write_table(
        pa.table({"user": rows, "item": cols, "label": labels}), path, row_group_size=25_000
    )


class ClusterFit:
    """One spark-submit of jobs/fit.py to the cluster; all that it writes is in ``folder``."""

    def __init__(self, cluster, package_zip, folder, ratings, *arguments, settings=None):
        self.model = folder / "model"
        self._output = folder / "output.txt"
        self._cluster = cluster
        events = folder / "events"
        events.mkdir(parents=True)
        self.log = EventLog(events)
        job = shutil.copy(ROOT / "jobs" / "fit.py", folder)  # alone: the package comes from the zip
        settings = {**SETTINGS, **event_log_settings(events), **(settings or {})}
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self._command = cluster.command(
            "--py-files",
            package_zip,
            *flags,
            job,
            "--ratings",
            ratings,
            "--output",
            self.model,
            "--rank",
            RANK,
            "--max-iter",
            ITERATIONS,
            "--tol",
            0,
            "--row-blocks",
            BLOCKS,
            "--col-blocks",
            BLOCKS,
            *arguments,
        )

    def run(self):
        """Undisturbed, to its good end."""
        with self.started() as process:
            self.ends_well(process)
        return self

    def disturbed(self, faults):
        """In each phase, cause its fault to an executor that is at a task; to the fit's good end
        all the same.
        """
        with self.started() as process:
            for phase, fault in faults.items():
                self.reaches(phase, process)
                fault(self.stopped_executor(phase))
            self.ends_well(process)
        return self

    def stopped_executor(self, phase):
        """The process of an executor that stands still (SIGSTOP) in the middle of a task of the
        phase.

        Waits for a task that has begun. If it ends before the executor is stopped, the next task is
        waited for.
        """
        stages = self.log.stages(phase)
        executors = self._cluster.executors()
        found = []

        def stop_one():
            if len(executors) < len(WORKERS):  # one was killed, and another starts in its place
                executors[:] = self._cluster.executors()
            for executor in executors:
                if unfinished_tasks(executor, stages):
                    send(signal.SIGSTOP, [executor])
                    if unfinished_tasks(executor, stages):
                        found.append(executor)
                        return True
                    send(signal.SIGCONT, [executor])
            return False

        wait_for(stop_one, PATIENCE, f"a task of the phase {phase}", every=0)
        return found[0]

    @contextmanager
    def started(self):
        """The running process, which does not outlive the block."""
        with self._output.open("w") as stream:
            process = subprocess.Popen(
                self._command,
                env=self._cluster.environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    self.kill_driver(process)

    def reaches(self, phase, process):
        """Wait for the first job of the phase; returns its number."""
        wait_for(
            lambda: self.log.jobs(phase) or process.poll() is not None,
            PATIENCE,
            f"the phase {phase}",
            every=0.01,
        )
        assert process.poll() is None, self.output()
        return self.log.jobs(phase)[0]

    def kill_driver(self, process):
        """kill −9 of spark-submit, the driver's JVM and its Python process."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def ends_well(self, process):
        assert process.wait(timeout=PATIENCE) == 0, self.output()

    def output(self):
        """The end of what the job has printed."""
        return self._output.read_text()[-6000:]

    @property
    def objectives(self):
        return np.array(json.loads((self.model / "metadata.json").read_text())["objective_history"])

    @property
    def bounds(self):
        content = json.loads((self.model / "certificate.json").read_text())
        return {item["name"]: item["bound"] for item in content["certificates"]}

    @property
    def scores(self):
        """Of every user on every item."""
        return all_scores(onebit_spark.load(self.model))


def all_scores(model):
    users, items = (
        index.ravel()
        for index in np.meshgrid(*map(np.sort, (model.users.ids, model.items.ids)), indexing="ij")
    )
    return model.score(users, items)


def quiet_fit(ratings, max_iter=ITERATIONS, holdout=0.1, **settings):
    """The same fit in this process."""
    config = FitConfig(rank=RANK, max_iter=max_iter, tol=0, **settings)
    return fit_table(str(ratings), config, holdout=holdout, certify=Terms())


def assert_same_fit(found, expected):
    """What a fault may change is at most the order of sums. Prints by how much it did."""
    objective = np.max(np.abs(found.objectives / expected.objective_history - 1))
    scores = all_scores(expected)
    score = np.max(np.abs(found.scores - scores)) / np.max(np.abs(scores))
    print(
        f"largest difference: objective {objective:.1e} relative, score {score:.1e} of the largest"
    )
    assert objective <= 1e-6
    assert score <= 1e-5
