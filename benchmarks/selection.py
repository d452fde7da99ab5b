"""What a default fit costs and finds, beside fits whose rank is given.

    python benchmarks/selection.py [--sets ml-100k senate …] [--ranks 10 20 32 64] [--trail]
    [--device cuda] [--save]

A tenth of the ratings is held out. One pass is one iteration over all ratings of the fit.
``weighted`` counts a pass with D coordinates a row as (D/11)², the work of its sums beside rank 10.
CPU counts the seconds of all cores. ONEBIT_DATA: folder of the data sets, default ./data.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from datasets import Ratings, assistments, congress, movielens_1m, movielens_100k, senate, split
from powerlaw import power_law_ratings
from record import provenance, save

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.losses import HalfStep, Loss
from onebit_spark.core.model_selection import trial_table
from onebit_spark.core.setup import kappa_of
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.predict.metrics import auc, log_loss
from onebit_spark.simulate import simulate


def paper(kind: str) -> Ratings:
    """The paper's simulation of this kind: rank 3, 1000 × 1000, a fifth observed, a tenth of the
    labels switched.
    """
    drawn = simulate(kind, 3, (1000, 1000), 0.2, 0.1)
    return Ratings(drawn.rows, drawn.cols, drawn.labels)


SETS = {
    "ml-100k": movielens_100k,
    "ml-1m": movielens_1m,
    "assistments": assistments,
    "senate": senate,
    "congress": congress,
    "simulated": lambda: Ratings(*power_law_ratings(200_000, 20_000, 20_000_000, seed=1)),
    "decaying": lambda: Ratings(
        *power_law_ratings(200_000, 20_000, 20_000_000, 12, seed=1, decay=1.0)
    ),
    "A2": lambda: paper("A2"),
    "B2": lambda: paper("B2"),
}
HEADER = "{:15}{:10}{:>8}{:>10}{:>6}{:>6}{:>10}{:>9}{:>9}{:>9}{:>9}"
ROW = "{:15}{:10}{:8.1f}{:10.1f}{:6}{:6g}{:10.4f}{:9.4f}{:9.4f}{:9.1f}{:9.2f}"
FIGURES = ("passes", "weighted", "rank", "weight", "log_loss", "auc", "correct", "cpu", "seconds")
half_step = FitState.half_step


class Passes:
    """Counts the half steps of a fit of n ratings."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.count = 0.0
        self.weighted = 0.0

    def half_step(self, state: FitState[Any], loss: Loss, step: HalfStep) -> SideStatistics:
        share = state.engine.n_ratings / self.n / 2
        self.count += share
        self.weighted += share * (state.posteriors[step.side].form.dimension / 11) ** 2
        return half_step(state, loss, step)


def measure(
    name: str,
    label: str,
    parts: tuple[Ratings, Ratings],
    config: FitConfig,
    how: argparse.Namespace,
) -> None:
    train, test = parts
    passes = Passes(len(train.rows))
    FitState.half_step = lambda *of: passes.half_step(*of)  # type: ignore[method-assign]
    began = time.perf_counter()
    worked = time.process_time()
    fit = fit_arrays(*train, config, device=how.device)
    seconds = time.process_time() - worked, time.perf_counter() - began
    probability = fit.probability(test.rows, test.cols)
    score = fit.score(test.rows, test.cols)
    right = np.mean(np.where(score > 0, 1, -1) == test.labels)
    loss = log_loss(test.labels, probability)
    area = auc(test.labels, score)
    found = (
        passes.count,
        passes.weighted,
        fit.config.factors,
        kappa_of(fit.config),
        loss,
        area,
        right,
        *seconds,
    )
    print(ROW.format(name, label, *found), flush=True)
    if how.save:
        save("selection", name, label, dict(zip(FIGURES, found, strict=True)))
    if how.trail and fit.info.choice is not None:
        print(*trial_table(fit.info.choice), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS)[:4])
    parser.add_argument(
        "--ranks", nargs="*", type=int, default=[], help="given ranks, besides the default fit"
    )
    parser.add_argument("--trail", action="store_true", help="also print what was tried")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--save", action="store_true", help="into results.json")
    options = parser.parse_args()
    print(provenance())
    figures = "passes", "weighted", "rank", "κ", "log loss", "AUC", "correct", "CPU", "seconds"
    print(HEADER.format("data", "rank", *figures))
    for name in options.sets:
        parts = split(SETS[name](), 0.1, seed=0)
        measure(name, "chosen", parts, FitConfig(), options)
        for rank in options.ranks:
            measure(name, str(rank), parts, FitConfig(rank=rank), options)


if __name__ == "__main__":
    main()
