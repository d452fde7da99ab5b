"""A demonstration on simulated ratings: `python -m onebit_spark.demo --output DIR`. It takes a minute on a laptop."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark import cli
from onebit_spark.cli.running import spark_session
from onebit_spark.simulate import Simulation, simulate

USERS, ITEMS, RANK = 2_000, 1_000, 3
SEEN = 0.1  # share of the cells that have a rating
HELD_OUT = 0.1  # share of the ratings that are kept out of the fit
MAX_ERROR = "0.12"  # of the pairs that the model answers
FLIPPED = 0.1  # share of the labels that are wrong; nobody can predict better than this


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m onebit_spark.demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for all outputs of the demo")
    output = parser.parse_args(argv).output
    began = time.perf_counter()

    print(f"1. Simulating {USERS:,} users and {ITEMS:,} items; {SEEN:.0%} of the pairs are rated …", flush=True)
    made = {name: output / name for name in ("ratings", "pairs", "model", "predictions", "metrics.json")}
    write_ratings(simulate("B2", RANK, (USERS, ITEMS), SEEN, FLIPPED), made["ratings"], made["pairs"])
    paths = {name: str(path) for name, path in made.items()}

    fit = ["--ratings", paths["ratings"], "--output", paths["model"], "--holdout", "0.1", "--overwrite"]
    fit += ["--max-error", MAX_ERROR]
    predict = ["--predict", paths["pairs"], "--predictions", paths["predictions"]]
    evaluate = ["--model", paths["model"], "--ratings", paths["pairs"], "--output", paths["metrics.json"]]
    with spark_session("onebit_spark demo"):
        print("\n2. Fitting a model, certifying it, and predicting the pairs that were kept out …", flush=True)
        code = cli.fit([*fit, *predict])
        if code == 0:
            print("\n3. Comparing the predictions with the labels that were kept out …", flush=True)
            code = cli.evaluate([*evaluate, "--overwrite"])
    if code:
        return code

    figures = json.loads(made["metrics.json"].read_text(encoding="utf-8"))
    rank = json.loads((made["model"] / "metadata.json").read_text(encoding="utf-8"))["effective_rank"]
    print(
        f"""
Done in {time.perf_counter() - began:.0f} s. From {SEEN * (1 - HELD_OUT):.0%} of all pairs the model predicted \
{figures["n"]:,} others,
{1 - figures["error"]:.1%} of them right. Guessing gets {1 - figures["majority_error"]:.1%} right, and \
{1 - FLIPPED:.1%} is the most that anyone can,
for {FLIPPED:.0%} of the labels were flipped at random. The ratings were made with {RANK} hidden traits;
the model found {rank} by itself.

  {paths["ratings"]}        the ratings: user, item, label (−1 or 1)
  {paths["pairs"]}          the ratings that were kept out of the fit
  {paths["model"]}          the model
  {paths["model"]}/certificate.json   upper limits on its error rate, and their inputs
  {paths["model"]}/report.html        the fit in pictures, for a browser
  {paths["predictions"]}    score, std, probability, prediction and answered for each pair
  {paths["metrics.json"]}   the quality of the predictions"""
    )
    return 0


def write_ratings(simulation: Simulation, ratings: Path, pairs: Path) -> None:
    """Write the simulation as two Parquet folders: ratings to fit and held-out ratings. Cells are in random order."""
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
