"""Both exchanges side by side: the driver's memory as the factor table grows, and the bytes that a
half step shuffles.

    python benchmarks/exchange.py [--rows 100000 1000000 10000000] [--exchanges broadcast shuffle]

Three ratings per row, as many columns as rows/10, rank 10, hinge, two iterations from the random
start, then the model is saved. The master is local-cluster: executors are separate processes, so
the driver's memory can be measured apart from theirs. Every fit has its own process. The lower
limit of a half step: each block gets every factor row that it refers to, once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from memory import MemoryWatch
from pyspark.sql import SparkSession
from record import provenance
from session import local_session

from onebit_spark import NotConverged
from onebit_spark.core.setup import form_of
from onebit_spark.engines.spark.blocking import Placement
from onebit_spark.spark.estimator import OneBitCompletion

RATINGS_PER_ROW = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--exchanges", nargs="+", default=["broadcast", "shuffle"])
    parser.add_argument("--driver-memory", default="512m")
    parser.add_argument("--executor-memory", default="4096")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # a child: the folder of the ratings
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options)))
        return
    print(provenance())
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            write_ratings(rows, Path(folder))
            for exchange in options.exchanges:
                command = [
                    sys.executable,
                    *sys.argv,
                    "--measure",
                    folder,
                    "--rows",
                    str(rows),
                    "--exchanges",
                    exchange,
                ]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
                told = (
                    json.loads(done.stdout.splitlines()[-1])["told"]
                    if done.returncode == 0
                    else "failed"
                )
                print(
                    f"{rows:>11,} rows, {rows // 10:>9,} columns, {exchange:<9} {told}", flush=True
                )


def measure(options: argparse.Namespace) -> dict[str, str]:
    warnings.simplefilter("ignore", NotConverged)
    spark = local_session(
        f"local-cluster[2,1,{options.executor_memory}]",
        driver_memory=options.driver_memory,
        spark_executor_memory=f"{options.executor_memory}m",
        spark_driver_maxResultSize="0",
    )
    shuffled: list[int] = []

    def note(_: Any) -> None:
        shuffled.append(_shuffle_written(spark))

    with tempfile.TemporaryDirectory() as work, MemoryWatch() as memory:
        estimator = OneBitCompletion(
            rank=10,
            loss="hinge",
            maxIter=2,
            tol=0.0,
            exchange=options.exchanges[0],
            checkpointDir=work,
        ).setProgress(note)
        began = time.perf_counter()
        model = estimator.fit(spark.read.parquet(options.measure))
        model.save(f"{work}/model")
        seconds = time.perf_counter() - began
    form = form_of(model.info.config)
    table = (model.info.n_users + model.info.n_items) * form.row_bytes
    driver = memory.peaks["driver's Python"], memory.peaks["JVM"]
    told = (
        f"table {table / 2**20:7,.0f} MB; driver: Python {driver[0]:6,.0f} MB, JVM "
        f"{driver[1]:6,.0f} MB; "
        f"{seconds:5.0f} s"
    )
    if options.exchanges[0] == "shuffle":
        blocks = estimator_blocks(spark, model)
        least = referenced(options.measure, blocks) * form.row_bytes
        sent = shuffled[1] - shuffled[0]
        told += (
            f"; an iteration shuffles {sent / 2**20:,.0f} MB, lower limit {least / 2**20:,.0f} MB"
        )
    spark.stop()
    return {"told": told}


def estimator_blocks(spark: SparkSession, model: Any) -> tuple[int, int]:
    from onebit_spark.engines.spark.engine import blocks_by_size

    info = model.info
    cores = spark.sparkContext.defaultParallelism
    users = info.n_users
    items = info.n_items
    form = form_of(info.config)
    return (
        blocks_by_size(info.n_ratings, users, items, form, cores),
        blocks_by_size(info.n_ratings, items, users, form, cores),
    )


def referenced(folder: str, blocks: tuple[int, int]) -> int:
    """Σ over blocks of both sides of the factor rows that a block refers to: what one iteration
    must send.
    """
    table = pq.read_table(folder)
    users, items = (
        np.unique(table[name].to_numpy(), return_inverse=True)[1] for name in ("user", "item")
    )
    total = 0
    for own, other, n_blocks in ((users, items, blocks[0]), (items, users, blocks[1])):
        block = Placement(n_blocks, np.empty(0, np.int64), np.empty(0, np.int32)).of(own)
        total += len(np.unique(block.astype(np.int64) * (int(other.max()) + 1) + other))
    return total


def _shuffle_written(spark: SparkSession) -> int:
    """Bytes that all stages so far wrote for a shuffle."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    return int(sum(executor.totalShuffleWrite() for executor in _each(store.executorList(False))))


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def write_ratings(rows: int, path: Path) -> None:
    """Every row has three ratings, of columns chosen at random."""
    rng = np.random.default_rng(1)
    parts = 8
    for part in range(parts):
        user = np.repeat(
            np.arange(part * rows // parts, (part + 1) * rows // parts, dtype=np.int32),
            RATINGS_PER_ROW,
        )
        item = rng.integers(0, rows // 10, len(user), dtype=np.int32)
        label = rng.choice(np.array([-1, 1], np.int8), len(user))
        pq.write_table(
            pa.table({"user": user, "item": item, "label": label}), path / f"{part}.parquet"
        )


if __name__ == "__main__":
    main()
