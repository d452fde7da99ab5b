"""What a fitted model does afterwards, on MovieLens-1M: fold-in, recommendations beside ALS,
calibration, no Spark.

    python benchmarks/serving.py {foldin,recommend,calibration,load} [--master 'local[*]']

foldin       a tenth of the users are kept out of the fit and folded in from half of their ratings; accuracy on their
             other half, beside a fit that had those halves from the start
recommend    recommendForAllUsers(10) beside ALSModel's, in turn and in one session: the factors of MovieLens-1M, and
             random ones of rank 10 (--random N per side, default 100,000); seconds are medians
             after one untimed run
calibration  expected calibration error on a tenth of the ratings, before and after a calibration on another tenth
load         onebit_spark.load and what the model does in this process, on MovieLens-1M and on random factors of rank 10
             (--random N per side): milliseconds, medians after one untimed run
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from als import frame, our_accuracy
from datasets import movielens_1m, split
from pyspark.ml.recommendation import ALS, ALSModel
from pyspark.sql import DataFrame, SparkSession
from record import provenance
from session import local_session

from onebit_spark import FitConfig, NotConverged, fit_arrays, load
from onebit_spark.core.calibration import Calibration
from onebit_spark.core.posterior import RowPosterior, packed_size
from onebit_spark.engines.spark.engine import factor_frame, factor_schema
from onebit_spark.model_info import SIDE_OF, factor_table
from onebit_spark.predict.metrics import log_loss, reliability
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

FILES = 10


def foldin(spark: SparkSession, options: argparse.Namespace) -> None:
    ratings = movielens_1m()
    rng = np.random.default_rng(0)
    users = rng.permutation(ratings.rows.max() + 1)
    new = np.isin(ratings.rows, users[: len(users) // 10])
    second_half = rng.random(len(ratings.rows)) < 0.5
    old, known, test = (
        frame(spark, ratings.take(np.flatnonzero(chosen)))
        for chosen in (~new, new & ~second_half, new & second_half)
    )
    estimator = OneBitCompletion(rank=10, maxIter=options.iterations, tol=0.0)
    model = estimator.fit(old)
    model.foldIn(known)
    began = time.perf_counter()
    folded = model.foldIn(known)
    seconds = time.perf_counter() - began
    refit = estimator.fit(old.unionByName(known).cache())
    n = folded.info.n_users - model.info.n_users
    print(
        f"{n} new users from {known.count():,} ratings, tested on {test.count():,}: not folded in "
        f"{our_accuracy(model, test):.4f}, folded in {our_accuracy(folded, test):.4f}, "
        f"full refit {our_accuracy(refit, test):.4f}; {1000 * seconds / n:.2f} s a thousand users"
    )


# ---- recommendations ---------------------------------------------------------------------------


def recommend(spark: SparkSession, options: argparse.Namespace) -> None:
    training = frame(spark, movielens_1m())
    ours = OneBitCompletion(rank=10, maxIter=6, tol=0.0).fit(training)
    als = ALS(rank=10, maxIter=5, regParam=0.1, ratingCol="label", seed=0).fit(training)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/ml1m")
        beside(
            f"MovieLens-1M, {ours.info.n_users:,} × {ours.info.n_items:,}",
            options,
            als,
            {
                "logistic, full covariance": OneBitCompletionModel.load(f"{folder}/ml1m"),
            },
        )
        n = options.random
        random = {
            name: random_model(spark, ours, n, kind, folder)
            for name, kind in (
                ("logistic, full covariance", "full"),
                ("logistic, diagonal covariance", "diagonal"),
            )
            if kind in options.covariance
        }
        beside(f"random factors, {n:,} × {n:,}", options, random_als(als, n, folder), random)


def beside(
    title: str, options: argparse.Namespace, als: ALSModel, models: dict[str, OneBitCompletionModel]
) -> None:
    works: dict[str, Callable[[], DataFrame]] = {"ALSModel": lambda: als.recommendForAllUsers(10)}
    for name, model in models.items():
        works[name] = lambda model=model: model.recommendForAllUsers(10)  # type: ignore[misc]
        if options.lower:
            works[f"{name}, z = 1"] = lambda model=model: model.recommendForAllUsers(10, z=1.0)  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + options.repeats):
        for name, work in works.items():
            began = time.perf_counter()
            work().write.format("noop").mode("overwrite").save()
            seconds[name].append(time.perf_counter() - began)
    print(f"{title}:")
    reference = statistics.median(seconds["ALSModel"][1:] or seconds["ALSModel"])
    for name, values in seconds.items():
        median = statistics.median(values[1:] or values)
        print(f"  {name:<38} {median:7.2f} s   ratio {median / reference:.2f}", flush=True)


def random_model(
    spark: SparkSession, like: OneBitCompletionModel, n: int, covariance: str, folder: str
) -> OneBitCompletionModel:
    """Normal factors with small spreads, saved and loaded, as a model of its size would be."""
    rng = np.random.default_rng(0)
    sides = []
    for _ in range(2):
        location = rng.normal(scale=0.5, size=(n, 11)).astype(np.float32)
        spread = rng.uniform(0.1, 0.3, (n, 11)).astype(np.float32)
        if covariance == "diagonal":
            sides.append(RowPosterior(location, spread, "spread", True).with_implicit())
            continue
        packed = np.zeros((n, packed_size(11)), np.float32)
        packed[:, np.cumsum(np.arange(1, 12)) - 1] = spread**2
        sides.append(RowPosterior(location, packed, "covariance", True).with_implicit())
    info = replace(
        like.info,
        n_users=n,
        n_items=n,
        parameters={**like.info.parameters, "covariance": covariance},
    )
    ids = pa.array(np.arange(n, dtype=np.int32))
    tables = {who: factor_table(ids, side) for who, side in zip(SIDE_OF, sides, strict=True)}
    users, items = (
        factor_frame(spark, table, factor_schema(info, who, table.column_names))
        for who, table in tables.items()
    )
    model = OneBitCompletionModel(info, users, items)
    model.save(f"{folder}/{covariance}")
    return OneBitCompletionModel.load(f"{folder}/{covariance}")


def random_als(like: ALSModel, n: int, folder: str) -> ALSModel:
    """An ALSModel whose folder was given other factors."""
    like.save(f"{folder}/als")
    rng = np.random.default_rng(0)
    for side in ("userFactors", "itemFactors"):
        features = rng.normal(scale=0.5, size=(n, 10)).astype(np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 10).cast(
            pa.list_(pa.float32())
        )
        target = Path(folder) / "als" / side
        for old in list(target.iterdir()):
            old.unlink()
        table = pa.table({"id": pa.array(np.arange(n, dtype=np.int32)), "features": lists})
        for part in range(FILES):  # as many as ALS has blocks: a single one would be a single task
            low = part * n // FILES
            high = (part + 1) * n // FILES
            pq.write_table(table.slice(low, high - low), target / f"{part}.parquet")
    return ALSModel.load(f"{folder}/als")


# ---- calibration -------------------------------------------------------------------------------


def calibration(_: SparkSession, options: argparse.Namespace) -> None:
    rest, test = split(movielens_1m(), 0.1, seed=0)
    train, held_out = split(rest, 1 / 9, seed=1)
    for loss in ("logistic", "hinge"):
        fit = fit_arrays(
            *train, FitConfig(loss=loss, rank=10, max_iter=options.iterations, tol=0.0)
        )
        positive = (held_out.labels > 0).astype(float)
        pairs = held_out.rows, held_out.cols
        learnt = Calibration.fit(fit.score(*pairs), fit.std(*pairs) ** 2, positive, 1 - positive)
        score = fit.score(test.rows, test.cols)
        std = fit.std(test.rows, test.cols)
        before = fit.probability(test.rows, test.cols)
        after = learnt.probability(score, std**2)
        for name, p in (("as it is", before), ("calibrated", after)):
            error = reliability(test.labels, p).error
            print(
                f"{loss:<9} {name:<11} calibration error {error:.4f}, log loss "
                f"{log_loss(test.labels, p):.4f}"
            )


# ---- without Spark -----------------------------------------------------------------------------


def in_process(spark: SparkSession, options: argparse.Namespace) -> None:
    ratings = movielens_1m()
    ours = OneBitCompletion(rank=10, maxIter=6, tol=0.0).fit(frame(spark, ratings))
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/ml1m")
        serve("MovieLens-1M", f"{folder}/ml1m")
        random_model(spark, ours, options.random, "full", folder)
        serve("random factors", f"{folder}/full")


def serve(title: str, folder: str) -> None:
    """Milliseconds of requests of several sizes. A newcomer has rated 100 items."""
    began = time.perf_counter()
    model = load(folder)
    seconds_to_load = time.perf_counter() - began
    print(
        f"{title}, {model.info.n_users:,} × {model.info.n_items:,}: loaded in "
        f"{seconds_to_load:.2f} s"
    )
    rng = np.random.default_rng(0)
    users, items = (side.ids.to_numpy() for side in (model.users, model.items))

    def pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.choice(users, n), rng.choice(items, n)

    rated = rng.choice(items, 100, replace=False)
    labels = rng.choice([-1, 1], 100)
    newcomer = int(users.max()) + 1
    works: dict[str, Callable[[], object]] = {
        "score, std, probability, prediction of 1 pair": lambda: model.predictions(*pairs(1)),
        "the same of 1,000 pairs": lambda: model.predictions(*pairs(1000)),
        "the same of 100,000 pairs": lambda: model.predictions(*pairs(100_000)),
        "the 10 best items of a user": lambda: model.recommend(rng.choice(users), 10),
        "a newcomer folded in (only_new)": lambda: model.fold_in(
            newcomer, rated, labels, only_new=True
        ),
        "a newcomer folded in, with all old users": lambda: model.fold_in(newcomer, rated, labels),
    }
    for name, work in works.items():
        seconds: list[float] = []
        while len(seconds) < 4 or (sum(seconds) < 1.0 and len(seconds) < 200):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        print(
            f"  {name:<48} {1000 * statistics.median(seconds[1:]):8.2f} ms   first "
            f"{1000 * seconds[0]:8.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=WORKS)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--iterations", type=int, default=20, help="of the fits")
    parser.add_argument(
        "--random", type=int, default=100_000, help="users and items with random factors"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="timed runs after one that is not counted; 0: only one",
    )
    parser.add_argument("--lower", action="store_true", help="rank by score − std too")
    parser.add_argument(
        "--covariance", nargs="+", default=["full", "diagonal"], help="of the random factors"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    spark = local_session(options.master)
    print(provenance())
    WORKS[options.what](spark, options)
    spark.stop()


WORKS = {"foldin": foldin, "recommend": recommend, "calibration": calibration, "load": in_process}


if __name__ == "__main__":
    main()
