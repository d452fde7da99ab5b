"""A demonstration on simulated ratings: `python -m onebit_spark.demo --output DIR`. It takes a
minute on a laptop.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from onebit_spark import cli
from onebit_spark.cli.running import spark_session
from onebit_spark.simulate import Simulation, simulate
from onebit_spark.spark.estimator import OneBitCompletion

NAMES = (
    "ratings",
    "pairs",
    "model",
    "model-by-blocks",
    "model-without-spark",
    "predictions",
    "metrics.json",
)
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that ends within a minute
USERS = 2_000
ITEMS = 1_000
RANK = 3
SEEN = 0.1  # share of the cells that have a rating
HELD_OUT = 0.1  # share of the ratings that are kept out of the fit
MAX_ERROR = "0.15"  # of the pairs that the model answers
TOLERANCE = 1e-6  # by which the objectives of two exchanges may differ, relative to their size
FLIPPED = 0.1  # share of flipped labels; no model can err on fewer


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m onebit_spark.demo", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="folder for all outputs of the demo",
    )
    output = parser.parse_args(argv).output
    began = time.perf_counter()

    print(
        f"1. Simulating {USERS:,} users and {ITEMS:,} items; {SEEN:.0%} of the pairs are rated …",
        flush=True,
    )
    files = {name: output / name for name in NAMES}
    write_ratings(
        simulate("B2", RANK, (USERS, ITEMS), SEEN, FLIPPED), files["ratings"], files["pairs"]
    )
    paths = {name: str(path) for name, path in files.items()}

    shared = ["--ratings", paths["ratings"], "--holdout", "0.1", "--overwrite"]
    fit = [*shared, "--output", paths["model"], "--exchange", "driver", "--calibrate"]
    fit += ["--max-error", MAX_ERROR]
    blocks = [
        *shared,
        "--output",
        paths["model-by-blocks"],
        "--exchange",
        "broadcast",
        "--no-report",
    ]
    alone = [*fit, "--quiet", "--output", paths["model-without-spark"]]  # the last --output counts
    predict = ["--predict", paths["pairs"], "--predictions", paths["predictions"]]
    evaluate = [
        "--model",
        paths["model"],
        "--ratings",
        paths["pairs"],
        "--output",
        paths["metrics.json"],
    ]
    started = time.perf_counter()
    with spark_session("onebit_spark demo", java_options=SHORT_LIVED) as spark:
        start = time.perf_counter() - started
        print(
            "\n2. Warming up: compiling, once on a machine, and starting Python workers …",
            flush=True,
        )
        print(f"It took {warm_up(spark):.0f} s. The times below are without it.", flush=True)
        print(
            "\n3. Fitting a model, certifying it, and predicting the pairs that were kept out …",
            flush=True,
        )
        fitting = time.perf_counter()
        code = cli.fit([*fit, *predict])
        on_spark = start + time.perf_counter() - fitting
        if code == 0:
            print(
                "\n4. The same fit as on a cluster, by map steps over blocks of the ratings …",
                flush=True,
            )
            code = cli.fit([*blocks, "--quiet"])
        if code == 0:
            print(agreement(files["model"], files["model-by-blocks"]))
            print("\n5. Comparing the predictions with the labels that were kept out …", flush=True)
            code = cli.evaluate([*evaluate, "--overwrite"])
    if code == 0:
        print("\n6. The same model without Spark and Java, by a process of its own …", flush=True)
        fitting = time.perf_counter()
        code = subprocess.run([sys.executable, "-m", "onebit_spark", "fit", *alone]).returncode
    if code:
        return code
    print(
        comparison(
            files["model"], files["model-without-spark"], on_spark, time.perf_counter() - fitting
        )
    )

    figures = json.loads(files["metrics.json"].read_text(encoding="utf-8"))
    rank = json.loads((files["model"] / "metadata.json").read_text(encoding="utf-8"))[
        "effective_rank"
    ]
    print(
        f"""
Done in {time.perf_counter() - began:.0f} s. From {SEEN * (1 - HELD_OUT):.0%} of all pairs \
the model predicted \
{figures["n"]:,} others,
{1 - figures["error"]:.1%} of them right. Guessing gets {1 - figures["majority_error"]:.1%} \
right, and \
{1 - FLIPPED:.1%} is the most that anyone can,
for {FLIPPED:.0%} of the labels were flipped at random. The ratings were made with {RANK} hidden \
traits;
the model found {rank} by itself. Of the pairs that it calls 80% likely, about 80% are positive: \
its probabilities
are off by {figures["calibration_error"]:.3f} on average. --calibrate learnt this from ratings \
that were kept out of \
the fit.

  {paths["ratings"]}        the ratings: user, item, label (−1 or 1)
  {paths["pairs"]}          the ratings that were kept out of the fit
  {paths["model"]}          the model; the same by blocks, {paths["model-by-blocks"]},
                                 and without Spark, {paths["model-without-spark"]}
  {paths["model"]}/certificate.json   upper limits on its error rate, and their inputs
  {paths["model"]}/report.html        the fit in pictures, for a browser
  {paths["predictions"]}    score, std, probability, prediction and answered for each pair
  {paths["metrics.json"]}   the quality of the predictions"""
    )
    return 0


def warm_up(spark: SparkSession) -> float:
    """Fit a few ratings in both ways, before the compiler can delay a fit. Returns the seconds."""
    began = time.perf_counter()
    pairs = [
        (f"user-{row}", f"item-{col}", 1 if (row + col) % 3 else -1)
        for row in range(8)
        for col in range(8)
    ]
    few = spark.createDataFrame(pairs, "user string, item string, label int")
    for exchange in ("driver", "broadcast"):
        OneBitCompletion(exchange=exchange, maxIter=2, tol=0.0).fit(few)
    return time.perf_counter() - began


def agreement(driver: Path, blocks: Path) -> str:
    """Compare the same fit in two ways, in words, and the seconds that each took."""
    infos = [
        json.loads((model / "metadata.json").read_text(encoding="utf-8"))
        for model in (driver, blocks)
    ]
    first, second = (info["objective_history"][-1] for info in infos)
    apart = abs(first - second) / abs(first)
    verdict = "agree" if apart <= TOLERANCE else "DISAGREE"
    here, there = (
        sum(info["seconds"][phase] for phase in ("survey", "blocking", "fit")) for info in infos
    )
    return (
        f"Both {verdict}: the objectives, {first:.6f} and {second:.6f}, differ by {apart:.0e} of "
        "their size.\n"
        f"The fit took {here:.0f} s on the driver and {there:.0f} s by blocks. Blocks are for "
        "ratings that do not fit "
        "one machine."
    )


def comparison(spark: Path, alone: Path, on_spark: float, here: float) -> str:
    """Whether two models are the same to the last bit, and how long each took from the shell, in
    words.
    """
    tables = [
        [pq.read_table(model / side).sort_by("id") for side in ("users", "items")]
        for model in (spark, alone)
    ]
    same = all(one.equals(two) for one, two in zip(*tables, strict=True))
    return (
        f"The two models {'are the same to the last bit' if same else 'DIFFER'}. From the start "
        "of Spark to the saved "
        f"model it took {on_spark:.0f} s,\nand without Spark {here:.0f} s."
    )


def write_ratings(simulation: Simulation, ratings: Path, pairs: Path) -> None:
    """Write the simulation as two Parquet folders: ratings to fit and held-out ratings. Cells are
    in random order.
    """
    held_out = round(HELD_OUT * len(simulation.labels))
    for folder, part in ((ratings, slice(held_out, None)), (pairs, slice(None, held_out))):
        table = pa.table(
            {
                "user": np.char.add("user-", simulation.rows[part].astype(str)),
                "item": np.char.add("item-", simulation.cols[part].astype(str)),
                "label": simulation.labels[part].astype(np.int32),
            }
        )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "part-0.parquet")


if __name__ == "__main__":
    sys.exit(main())
