"""A large simulated matrix beside MLlib ALS, in local mode: seconds by phase, and peak memory.

    python benchmarks/scale.py [--ratings 100000000 --rows 1000000 --cols 100000] [--methods als
    hinge diagonal full]
                               [--exchange auto|driver|broadcast|mixed|shuffle|local] [--ids
                               int|long|string]
    python benchmarks/scale.py --methods default als --iterations 10 --exchange local
    --driver-memory 10g

Power-law columns, rank 10, two iterations, the same driver memory for all; every method has a
process of its own, one after the other, on the same files. ALS's blocking and start are what a fit
of no iterations takes; its ids must be int. ``default`` is a fit with all defaults, which chooses
its rank, κ and length itself. With ``--exchange local`` our fits run without Spark, from Parquet to
a saved model; "survey" is the reading.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from memory import MemoryWatch
from numpy.typing import NDArray
from powerlaw import power_law_chunks
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame
from record import provenance, save
from session import local_session

from onebit_spark import FitConfig, NotConverged, fit_arrays, fit_table
from onebit_spark.model_info import ModelInfo
from onebit_spark.settings import available_cores
from onebit_spark.spark.estimator import OneBitCompletion

OURS: dict[str, dict[str, Any]] = {
    "hinge": {"loss": "hinge"},
    "diagonal": {"loss": "logistic", "covariance": "diagonal"},
    "full": {"loss": "logistic", "covariance": "full"},
}
METHODS = ["als", *OURS, "default"]
IDS: dict[str, Callable[[NDArray[np.integer]], pa.Array]] = {
    "int": lambda numbers: pa.array(numbers.astype(np.int32)),
    "long": lambda numbers: pa.array(numbers.astype(np.int64) * 1_000_003 - 7),
    "string": lambda numbers: pc.binary_join_element_wise(
        "id", pa.array(numbers).cast(pa.string()), "-"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=100_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cols", type=int, default=100_000)
    parser.add_argument("--methods", nargs="+", default=["als", *OURS], choices=METHODS)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--exchange", default="auto")
    parser.add_argument("--ids", default="int", choices=list(IDS), help="long: of a wide range")
    parser.add_argument("--driver-memory", default="6g")
    parser.add_argument("--save", action="store_true", help="seconds in all, into results.json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # a child: the folder of the ratings
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options, options.methods[0])))
        return
    print(provenance())
    shape = f"{options.rows:,} × {options.cols:,}, {options.ids} ids"
    asked = f"rank 10, {options.iterations} iterations, {options.driver_memory} driver"
    print(f"{options.ratings:,} ratings, {shape}, {asked}")
    with tempfile.TemporaryDirectory() as folder:
        write_ratings(options, Path(folder))
        for method in options.methods:
            command = [sys.executable, *sys.argv, "--measure", folder, "--methods", method]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                print(f"{method}: failed with exit code {done.returncode}", flush=True)
                continue
            figures = json.loads(done.stdout.splitlines()[-1])
            if options.save:
                save("scale", str(options.ratings), method, {"seconds": figures["all"]})
            print(
                f"{method:<9} {figures['iteration']:6.1f} s per iteration, {figures['all']:6.0f} "
                "s in all "
                f"({figures['phases']}); peak MB: {figures['memory']}",
                flush=True,
            )


def measure(options: argparse.Namespace, method: str) -> dict[str, object]:
    warnings.simplefilter("ignore", NotConverged)
    if options.exchange == "local" and method != "als":
        with MemoryWatch() as memory:
            figures = without_spark(options.measure, settings_of(method, options.iterations))
        return {**figures, "memory": memory.told()}
    spark = local_session(driver_memory=options.driver_memory, spark_driver_maxResultSize="0")
    ratings = spark.read.parquet(options.measure)
    with MemoryWatch() as memory:
        if method == "als":
            figures = als(ratings, options.iterations)
        else:
            figures = ours(ratings, settings_of(method, options.iterations), options.exchange)
    spark.stop()
    return {**figures, "memory": memory.told()}


def settings_of(method: str, iterations: int) -> FitConfig:
    return (
        FitConfig()
        if method == "default"
        else FitConfig(rank=10, max_iter=iterations, tol=0.0, **OURS[method])
    )


def als(ratings: DataFrame, asked: int) -> dict[str, object]:
    def seconds(iterations: int) -> float:
        began = time.perf_counter()
        model = ALS(rank=10, maxIter=iterations, regParam=0.1, ratingCol="label", seed=0).fit(
            ratings
        )
        model.userFactors.count(), model.itemFactors.count()
        return time.perf_counter() - began

    whole = seconds(asked)
    before = seconds(0)
    return {
        "iteration": (whole - before) / asked,
        "all": whole,
        "phases": f"before the first {before:.0f}",
    }


def ours(ratings: DataFrame, config: FitConfig, exchange: str) -> dict[str, object]:
    began = time.perf_counter()
    iterations: list[float] = []
    estimator = OneBitCompletion(
        rank=config.rank,
        maxIter=config.max_iter,
        tol=config.tol,
        loss=config.loss,
        covariance=config.covariance,
        exchange=exchange,
    )
    model = estimator.setProgress(lambda step: iterations.append(step.seconds)).fit(ratings)
    cores = ratings.sparkSession.sparkContext.defaultParallelism
    exchange = model.info.exchange["exchange"]
    return figures_of(
        model.info, iterations, time.perf_counter() - began, cores, f"exchange {exchange}"
    )


def without_spark(path: str, config: FitConfig) -> dict[str, object]:
    """From Parquet to a saved model, in this process."""
    iterations: list[float] = []
    # So that nothing is compiled below
    fit_arrays([0, 0, 1], [0, 1, 0], [1, 0, 1], replace(config, rank=2))
    began = time.perf_counter()
    model = fit_table(path, config, on_iteration=lambda step: iterations.append(step.seconds))
    fitted = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
    saving = time.perf_counter() - fitted
    return figures_of(
        model.info,
        iterations,
        time.perf_counter() - began,
        available_cores(),
        f"saving {saving:.1f}, without Spark",
    )


def figures_of(
    info: ModelInfo, iterations: list[float], seconds: float, cores: int, where: str
) -> dict[str, object]:
    share = cores * 1e9 / info.n_ratings
    phases = ", ".join(
        f"{name} {value:.1f} ({share * value:.0f} core-ns per rating)"
        for name, value in info.seconds.items()
        if name != "fit"
    )
    return {
        "iteration": sum(iterations) / len(iterations),
        "all": seconds,
        "phases": f"{phases}; {where}",
    }


def write_ratings(options: argparse.Namespace, path: Path) -> None:
    """Files of about 12·10⁶ ratings, eight at least; only a chunk is in memory at a time."""
    parts = max(8, options.ratings // 12_000_000)
    writer: pq.ParquetWriter | None = None
    writing = -1
    written = 0
    for rows, cols, labels in power_law_chunks(options.rows, options.cols, options.ratings, seed=1):
        table = pa.table(
            {"user": IDS[options.ids](rows), "item": IDS[options.ids](cols), "label": labels}
        )
        part = written * parts // options.ratings
        if writer is None or part > writing:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(path / f"{part}.parquet", table.schema)
            writing = part
        writer.write_table(table)
        written += len(labels)
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    main()
