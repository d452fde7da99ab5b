"""New ratings without a refit: yesterday's model, updated in parts, beside a fit of everything.

    python benchmarks/update.py [--parts 5]                   # ONEBIT_DATA: folder of the data sets, default ./data

MovieLens-100K in the order of time. The first 80,000 ratings are fitted. The next 10,000 come in
parts, each by ``model.update``. The last 10,000 are predicted by the old model, by the updated one,
and by a new fit of the 90,000.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
from datasets import folder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from record import provenance
from session import local_session

from onebit_spark import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

OLD = 80_000
TEST = 10_000


def in_time() -> pa.Table:
    user, item, stars, when = np.loadtxt(folder() / "ml-100k" / "u.data", dtype=np.int64).T
    order = np.argsort(when, kind="stable")
    return pa.table(
        {"user": user[order], "item": item[order], "label": np.where(stars[order] > 3.5, 1, -1)}
    )


def figures(model: OneBitCompletionModel, ratings: DataFrame) -> tuple[float, float]:
    """Error and log loss."""
    positive = F.col("label") > 0
    chance = F.when(positive, F.col("probability")).otherwise(1 - F.col("probability"))
    wrong = (F.col("prediction") != F.col("label")).cast("double")
    line = (
        model.transform(ratings)
        .agg(F.avg(wrong), -F.avg(F.log(F.greatest(chance, F.lit(1e-12)))))
        .first()
    )
    assert line is not None
    return line[0], line[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=5)
    options = parser.parse_args()
    table = in_time()
    print(provenance())
    spark = local_session()
    old = spark.createDataFrame(table.slice(0, OLD))
    test = spark.createDataFrame(table.slice(len(table) - TEST))
    began = time.perf_counter()
    yesterday = OneBitCompletion().fit(old)
    fitted = time.perf_counter()
    updated = yesterday
    seconds = []
    edges = np.linspace(OLD, len(table) - TEST, options.parts + 1).astype(int)
    for lo, hi in pairwise(edges):
        part = spark.createDataFrame(table.slice(lo, hi - lo))
        start = time.perf_counter()
        updated = updated.update(part)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    again = OneBitCompletion().fit(spark.createDataFrame(table.slice(0, len(table) - TEST)))
    refitted = time.perf_counter() - start
    print(f"{'':24}{'error':>8}{'log loss':>10}{'seconds':>9}")
    for name, model, took in (
        ("yesterday's model", yesterday, fitted - began),
        (f"updated in {options.parts} parts", updated, float(np.median(seconds))),
        ("a new fit", again, refitted),
    ):
        error, loss = figures(model, test)
        print(f"{name:24}{error:8.4f}{loss:10.4f}{took:9.2f}", flush=True)
    print("seconds of an update: the median of the parts")


if __name__ == "__main__":
    main()
