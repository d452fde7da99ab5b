"""Iterations and seconds until a fit is as good as done: plain, with the gauge, with
over-relaxation, with both.

    python benchmarks/convergence.py [--sets MovieLens-100K A2 …] [--losses logistic hinge] [--fits
    plain both]
                                     [--iterations 200] [--features] [--curves FILE]

A tenth of the ratings is held out. The marks:

    objective   within 1e−4 (relative) of the lowest that any of the fits reached
    held out    the held-out loss (log loss, or the hinge) within .0005 of the lowest, which is often passed on the way
    settled     from then on within .0005 of where the fit with the lowest objective ends

In each cell: iterations, and seconds of these iterations (without start). A dash: not reached. Then
objective and held-out loss where the default stopping rule ends the fit, and after the last
iteration; and the lowest held-out loss. ONEBIT_DATA: folder of the data sets, default ./data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import Ratings, assistments, movielens_1m, movielens_100k, senate, split
from record import provenance

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.scores import compute_scores, compute_variances
from onebit_spark.core.solver import Iteration, distance, solve
from onebit_spark.engines.threads import local_state
from onebit_spark.simulate import simulate


def simulated(kind: str) -> Ratings:
    made = simulate(kind)
    return Ratings(made.rows, made.cols, made.labels)


SETS: dict[str, Callable[[], Ratings]] = {
    "MovieLens-100K": movielens_100k,
    "MovieLens-1M": movielens_1m,
    "Senate": senate,
    "ASSISTments": assistments,
    "A2": lambda: simulated("A2"),
    "B3": lambda: simulated("B3"),
}
VARIANTS = {  # gauge, relaxed
    "plain": (False, False),
    "gauge": (True, False),
    "relaxed": (False, True),
    "both": (True, True),
}

ROW = "{:15}{:9}{:8}{:>12}{:>12}{:>12}{:>6}{:>12}{:>9}{:>12}{:>9}{:>9}"
NUMBERS = "{:.1f} {:.4f} {:.1f} {:.4f} {:.4f}"
OBJECTIVE_MARK = 1e-4
HELD_OUT_MARK = 5e-4


@dataclass
class Curve:
    """The held-out loss after every iteration."""

    loss: str
    test: Ratings
    held_out: list[float] = field(default_factory=list)
    history: list[Iteration] = field(default_factory=list)

    def __call__(
        self, state: FitState[RowPosterior], hierarchy: HyperPosterior, history: list[Iteration]
    ) -> None:
        rows, cols = (state.posterior(side, hierarchy.row_prior(side)) for side in SIDES)
        pairs = rows.take(self.test.rows), cols.take(self.test.cols)
        losses = LOSSES[self.loss].held_out(
            compute_scores(*pairs), compute_variances(*pairs), self.test.labels.astype(np.float64)
        )
        self.held_out.append(float(np.mean(losses)))
        self.history = list(history)

    @property
    def objective(self) -> list[float]:
        return [step.objective for step in self.history]

    @property
    def change(self) -> list[float]:
        return [step.change for step in self.history]

    def reached(self, curve: list[float], mark: float) -> str:
        """Iterations and seconds to the mark."""
        number = next((i + 1 for i, value in enumerate(curve) if value <= mark), None)
        if number is None:
            return "—"
        return f"{number} {sum(step.seconds for step in self.history[:number]):.1f}s"

    def worst_from_here(self, end: float) -> list[float]:
        """How far from ``end`` the held-out loss is, at most, from each iteration on."""
        distance = np.abs(np.array(self.held_out) - end)
        return [float(far) for far in np.maximum.accumulate(distance[::-1])[::-1]]

    def stopped(self, tol: float) -> int:
        """The iteration in which the stopping rule ends a fit."""
        numbers = range(1, len(self.history))
        return next((n for n in numbers if distance(self.history[:n]) <= tol), len(self.history))


def curve(ratings: Ratings, config: FitConfig, gauge: bool, relaxed: bool) -> Curve:
    train, test = split(ratings, 0.1, seed=0)
    shape = int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1
    block = RatingBlock.from_coordinates(train.rows, train.cols, train.labels > 0, shape)
    found = Curve(config.loss, test)
    with local_state(block).running() as state:
        solve(state, config, after_iteration=found, gauge=gauge, relaxed=relaxed)
    return found


def compare(
    name: str, loss: str, fits: list[str], iterations: int, features: bool, log: Path | None
) -> None:
    config = FitConfig(loss=loss, rank=10, max_iter=iterations, tol=0, implicit_features=features)
    curves = {label: curve(SETS[name](), config, *VARIANTS[label]) for label in fits}
    lowest = min(min(found.objective) for found in curves.values())
    least = min(min(found.held_out) for found in curves.values())
    end = min(curves.values(), key=lambda found: found.objective[-1]).held_out[-1]
    for label, found in curves.items():
        if log is not None:
            kept = {
                "objective": found.objective,
                "held_out": found.held_out,
                "change": found.change,
            }
            with log.open("a") as file:
                file.write(json.dumps({"set": name, "loss": loss, "fit": label, **kept}) + "\n")
        objective = found.reached(found.objective, lowest + OBJECTIVE_MARK * abs(lowest))
        held_out = found.reached(found.held_out, least + HELD_OUT_MARK)
        settled = found.reached(found.worst_from_here(end), HELD_OUT_MARK)
        stop = found.stopped(FitConfig().tol)
        ends = [
            value
            for n in (stop, iterations)
            for value in (found.objective[n - 1], found.held_out[n - 1])
        ]
        print(
            ROW.format(
                name,
                loss,
                label,
                objective,
                held_out,
                settled,
                stop,
                *NUMBERS.format(*ends, least).split(),
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["logistic", "hinge"])
    parser.add_argument("--fits", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument(
        "--features", action="store_true", help="with implicit features, which need no centring"
    )
    parser.add_argument(
        "--curves", type=Path, help="append all curves to this file, a line of JSON each"
    )
    options = parser.parse_args()
    print(provenance())
    ends = ["objective", "held out", "at the end", "held out", "lowest"]
    print(ROW.format("set", "loss", "fit", "objective", "held out", "settled", "stop", *ends))
    for name in options.sets:
        for loss in options.losses:
            compare(name, loss, options.fits, options.iterations, options.features, options.curves)


if __name__ == "__main__":
    main()
