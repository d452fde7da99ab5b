"""Accuracy and seconds beside Spark MLlib's ALS, in one session, on a 90/10 split of a real data
set.

    python benchmarks/als.py [--data ml-1m|senate|assistments|congress] [--repeats 5] [--master 'local[*]']
    python benchmarks/als.py --no-ours --save      # ALS alone; its figures into results.json, for pages.py

Both start from the same cached DataFrame and end with counted factors; both are warm (one untimed
fit each before); seconds are medians. ALS: rank 10, 10 iterations, labels ±1, the better of
regParam .05 and .1; its sign is its prediction, and the majority class where it has none.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
from datasets import Ratings, assistments, congress, movielens_1m, senate, split
from pyspark.ml.recommendation import ALS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from record import provenance, save
from session import local_session

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.predict.metrics import auc
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

DATA: dict[str, Callable[[], Ratings]] = {
    "ml-1m": movielens_1m,
    "senate": senate,
    "assistments": assistments,
    "congress": congress,
}


def frame(spark: SparkSession, ratings: Ratings) -> DataFrame:
    import pyarrow as pa

    table = pa.table(
        {
            "user": ratings.rows.astype(np.int32),
            "item": ratings.cols.astype(np.int32),
            "label": ratings.labels.astype(np.float32),
        }
    )
    df = spark.createDataFrame(table).repartition(spark.sparkContext.defaultParallelism).cache()
    df.count()
    return df


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of ``work`` after one run that is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def counted(model: object) -> None:
    model.userFactors.count()  # type: ignore[attr-defined]
    model.itemFactors.count()  # type: ignore[attr-defined]


def als_figures(
    train: DataFrame, test: DataFrame, reg: float, majority: float
) -> tuple[float, float]:
    """Accuracy and AUC."""
    model = ALS(rank=10, maxIter=10, regParam=reg, ratingCol="label", seed=0).fit(train)
    found = model.transform(test).select("prediction", "label").toArrow()
    scores, labels = (found[name].to_numpy() for name in ("prediction", "label"))
    scores = np.nan_to_num(scores)
    return float(np.mean(np.where(scores == 0, majority, np.sign(scores)) == labels)), auc(
        labels, scores
    )


def our_accuracy(model: OneBitCompletionModel, test: DataFrame) -> float:
    right = model.transform(test).select(
        F.avg((F.col("prediction") == F.col("label")).cast("double"))
    )
    return float(right.first()[0])  # type: ignore[index]


def by_iteration(train: Ratings, test: Ratings, upto: int) -> list[float]:
    """Accuracy after 1, 2, … iterations, by the in-process fit, which the Spark fit equals."""
    accuracies = []
    for n in range(1, upto + 1):
        fit = fit_arrays(*train, FitConfig(max_iter=n, tol=0))
        accuracies.append(float(np.mean(fit.predict(test.rows, test.cols) == test.labels)))
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=DATA, default="ml-1m")
    parser.add_argument(
        "--repeats", type=int, default=5, help="0: ALS alone and no seconds, on a busy machine"
    )
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--no-ours", action="store_true", help="measure ALS alone")
    parser.add_argument("--save", action="store_true", help="into results.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    spark = local_session(options.master)
    print(provenance())
    train, test = split(DATA[options.data](), 0.1, seed=0)
    training = frame(spark, train)
    testing = frame(spark, test)
    majority = 1.0 if np.mean(train.labels) >= 0 else -1.0
    print(f"# {options.data}: {len(train.rows):,} ratings to fit, {len(test.rows):,} to test")

    (accuracy, area), reg = max(
        (als_figures(training, testing, reg, majority), reg) for reg in (0.05, 0.1)
    )
    als = ALS(rank=10, maxIter=10, regParam=reg, ratingCol="label", seed=0)
    found = {"correct": accuracy, "auc": area}
    if options.repeats:
        found["seconds"] = als_seconds = timed(lambda: counted(als.fit(training)), options.repeats)
    told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    print(f"ALS, 10 iterations, regParam {reg}:          {told}", flush=True)
    if options.save:
        save("als", options.data, "ALS", found)
    if options.no_ours or not options.repeats:
        return

    default = OneBitCompletion()
    seconds = timed(lambda: counted(default.fit(training)), options.repeats)
    right = our_accuracy(default.fit(training), testing)
    print(
        f"OneBitCompletion with its defaults:          {right:.4f} correct, {seconds:.2f} s",
        flush=True,
    )
    print(
        f"ratio of seconds {seconds / als_seconds:.2f}, difference of accuracy "
        f"{right - accuracy:+.4f}"
    )
    if options.save:
        save("als", options.data, "default", {"correct": right, "seconds": seconds})

    ours = OneBitCompletion(rank=10, maxIter=6)
    seconds = timed(lambda: counted(ours.fit(training)), options.repeats)
    model = ours.fit(training)
    right = our_accuracy(model, testing)
    print(
        f"OneBitCompletion, 6 iterations:              {right:.4f} correct, {seconds:.2f} s",
        flush=True,
    )
    if options.save:
        save("als", options.data, "six", {"correct": right, "seconds": seconds})
    print(
        f"ratio of seconds {seconds / als_seconds:.2f}, difference of accuracy "
        f"{right - accuracy:+.4f}"
    )
    phases = ", ".join(f"{name} {value:.2f}" for name, value in model.summary.seconds.items())
    iterations = model.summary.seconds["fit"] - sum(
        model.summary.seconds[name] for name in ("choosing", "start")
    )
    print(f"seconds by phase: {phases}; per half step {iterations / 12:.3f}")

    accuracies = by_iteration(train, test, 8)
    passed = next((n for n, value in enumerate(accuracies, 1) if value > accuracy), None)
    print("accuracy by iteration: " + " ".join(f"{value:.4f}" for value in accuracies))
    print(f"ALS's accuracy is passed in iteration {passed}")
    if passed is not None:
        quick = OneBitCompletion(rank=10, maxIter=passed)
        to_pass = timed(lambda: counted(quick.fit(training)), options.repeats)
        print(
            f"OneBitCompletion, {passed} iterations: {to_pass:.2f} s, {to_pass / als_seconds:.2f} "
            "of ALS's seconds"
        )
    converged = OneBitCompletion(rank=10).fit(training)
    summary = converged.summary
    right = our_accuracy(converged, testing)
    print(
        f"OneBitCompletion at its end ({summary.totalIterations} iterations, {summary.reason}): "
        f"{right:.4f} correct"
    )
    print(f"difference of accuracy {right - accuracy:+.4f}")
    spark.stop()


if __name__ == "__main__":
    main()
