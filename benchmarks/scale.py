"""A large simulated matrix in local mode: seconds by phase, and the peak memory of the JVM and the Python workers.

    python benchmarks/scale.py [--ratings 30000000 --rows 1000000 --cols 100000] [--loss logistic] [--covariance full]

Power-law columns, rank 10, a 4 GB driver. Memory is the resident size of each process of the session, sampled from
/proc twice a second (Linux); pages that forked workers share are counted once for each of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from record import provenance
from session import local_session

from onebit_spark import NotConverged
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.simulate import power_law_ratings


class MemoryWatch:
    """Peak resident megabytes of the driver's Python, the JVM and all Python workers together."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            now: dict[str, float] = defaultdict(float)
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    pages = int((folder / "statm").read_text().split()[1])
                except OSError:
                    continue
                role = self._role(folder.name, command)
                if role:
                    now[role] += pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            now["all"] = sum(now.values())
            for role, megabytes in now.items():
                self.peaks[role] = max(self.peaks[role], megabytes)

    @staticmethod
    def _role(pid: str, command: str) -> str | None:
        if pid == str(os.getpid()):
            return "driver's Python"
        if "pyspark.daemon" in command:
            return "Python workers"
        return "JVM" if "java" in command and "spark" in command else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=30_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cols", type=int, default=100_000)
    parser.add_argument("--loss", default="logistic")
    parser.add_argument("--covariance", default="full")
    parser.add_argument("--iterations", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    print(provenance())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings"
        path.mkdir()
        write_ratings(options, path)
        spark = local_session(shuffle_partitions=200)  # Spark's default
        iterations: list[float] = []
        estimator = OneBitCompletion(
            loss=options.loss, covariance=options.covariance, maxIter=options.iterations, tol=0.0
        ).setProgress(lambda iteration: iterations.append(iteration.seconds))
        with MemoryWatch() as memory:
            began = time.perf_counter()
            model = estimator.fit(spark.read.parquet(str(path)))
            seconds = time.perf_counter() - began
        print(f"{options.ratings:,} ratings, {model.info.n_users:,} × {model.info.n_items:,}, {options.loss}, "
              f"{options.covariance} covariance: {seconds:.0f} s")  # fmt: skip
        print("seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in model.summary.seconds.items()))
        print("an iteration: " + ", ".join(f"{value:.1f}" for value in iterations))
        print("peak MB: " + ", ".join(f"{role} {megabytes:,.0f}" for role, megabytes in memory.peaks.items()))
        spark.stop()


def write_ratings(options: argparse.Namespace, path: Path) -> None:
    rows, cols, labels = power_law_ratings(options.rows, options.cols, options.ratings, seed=1)
    parts = 8
    for part in range(parts):
        chunk = slice(part * len(rows) // parts, (part + 1) * len(rows) // parts)
        table = pa.table({"user": rows[chunk], "item": cols[chunk], "label": labels[chunk]})
        pq.write_table(table, path / f"{part}.parquet")


if __name__ == "__main__":
    main()
