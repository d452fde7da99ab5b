"""Ratings from Parquet, read by Arrow and through the JVM: seconds, and CPU seconds of all
processes, side by side.

    python benchmarks/reading.py [--ratings 20000000 --rows 200000 --cols 20000] [--ids
    int|long|string] [--repeats 3]

``survey``: packed and counted by the executors (exchange broadcast). ``collect``: gathered by the
driver.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from memory import descendants
from record import provenance
from scale import IDS, write_ratings
from session import local_session

from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark import rating_files, survey
from onebit_spark.engines.spark import ratings as spark_ratings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--cols", type=int, default=20_000)
    parser.add_argument("--ids", default="int", choices=list(IDS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(provenance())
    with tempfile.TemporaryDirectory() as folder:
        write_ratings(options, Path(folder))
        spark = local_session(driver_memory="6g", spark_driver_maxResultSize="0")
        ratings = spark.read.parquet(folder)
        columns = Columns()
        size = spark_ratings.estimate_size(ratings, columns)

        def surveyed() -> None:
            with survey.survey_ratings(ratings, columns):
                pass

        works: dict[str, Callable[[], object]] = {
            "survey": surveyed,
            "collect": lambda: spark_ratings.collect_ratings(ratings, columns, size, 2**30),
        }
        for repeat in range(options.repeats):
            for name, work in works.items():
                print(
                    f"{name:<8} {repeat + 1}   by Arrow {measured(work)}   by the JVM "
                    f"{by_spark(work)}",
                    flush=True,
                )
        spark.stop()


def by_spark(work: Callable[[], object]) -> str:
    with (
        mock.patch.object(spark_ratings, "rating_files", return_value=None),
        mock.patch.object(rating_files, "rating_files", return_value=None),
    ):
        return measured(work)


def measured(work: Callable[[], object]) -> str:
    before = cpu_seconds()
    began = time.perf_counter()
    work()
    return f"{time.perf_counter() - began:5.1f} s, {cpu_seconds() - before:5.1f} CPU s"


def cpu_seconds() -> float:
    """Of this process and all below it (Linux).

    Spark ends Python workers that idle for a minute: these are lost.
    """
    times = 0
    for pid, _, _ in descendants(os.getpid()):
        times += sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
        )
    return times / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
