"""Iterations and seconds until a fit is as good as done, plain and with the gauge.

    python benchmarks/convergence.py [--sets MovieLens-100K A2 …] [--losses logistic hinge] [--iterations 200]

A tenth of the ratings is held out. Two marks: the objective within 1e−4 (relative) of the lowest that any of the fits
reached, and the held-out loss (log loss, or the hinge) within .0005 of the lowest. In each cell: iterations, seconds of
these iterations (without start). A dash: not reached. Then the objective and the held-out loss where the default
stopping rule ends the fit, and where the last iteration does. ONEBIT_DATA: folder of the data sets, default ./data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from datasets import Ratings, assistments, movielens_1m, movielens_100k, senate, split
from record import provenance

from onebit_spark import FitConfig
from onebit_spark.core import prediction
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.scales import ScaleHierarchy
from onebit_spark.core.solver import Engine, Iteration, Outcome, solve
from onebit_spark.engines.local import LocalEngine
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
VARIANTS = {"plain": False, "gauge": True}

OBJECTIVE_MARK = 1e-4
HELD_OUT_MARK = 5e-4


@dataclass
class Curve:
    """A watch that measures the held-out loss after every iteration."""

    loss: str
    test: Ratings
    held_out: list[float] = field(default_factory=list)
    history: list[Iteration] = field(default_factory=list)

    def __call__(self, engine: Engine[RowPosterior], hierarchy: ScaleHierarchy, history: list[Iteration]) -> None:
        rows, cols = (engine.posterior(side, hierarchy.row_prior(side)) for side in SIDES)
        pairs = rows.take(self.test.rows), cols.take(self.test.cols)
        losses = LOSSES[self.loss].held_out(
            prediction.score(*pairs), prediction.variance(*pairs), self.test.labels.astype(np.float64)
        )
        self.held_out.append(float(np.mean(losses)))
        self.history = list(history)

    def best(self, outcome: Outcome[ScaleHierarchy]) -> Outcome[ScaleHierarchy]:
        return outcome

    @property
    def objective(self) -> list[float]:
        return [step.objective for step in self.history]

    def reached(self, curve: list[float], mark: float) -> str:
        """Iterations and seconds to the mark."""
        number = next((i + 1 for i, value in enumerate(curve) if value <= mark), None)
        if number is None:
            return "—"
        return f"{number} {sum(step.seconds for step in self.history[:number]):.1f}s"

    def stopped(self, tol: float) -> int:
        """The iteration in which the stopping rule ends a fit."""
        for step in self.history:
            if abs(step.decrease) <= tol and step.change <= tol:
                return step.number
        return len(self.history)


def curve(ratings: Ratings, config: FitConfig, gauge: bool) -> Curve:
    train, test = split(ratings, 0.1, seed=0)
    shape = int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1
    block = RatingBlock.from_coordinates(train.rows, train.cols, train.labels > 0, shape)
    watch = Curve(config.loss, test)
    with LocalEngine(block).running() as engine:
        solve(engine, config, watch=watch, gauge=gauge)
    return watch


def compare(name: str, loss: str, iterations: int) -> None:
    config = FitConfig(loss=loss, max_iter=iterations, tol=0)
    curves = {label: curve(SETS[name](), config, gauge) for label, gauge in VARIANTS.items()}
    lowest = min(min(found.objective) for found in curves.values())
    least = min(min(found.held_out) for found in curves.values())
    for label, found in curves.items():
        objective = found.reached(found.objective, lowest + OBJECTIVE_MARK * abs(lowest))
        held_out = found.reached(found.held_out, least + HELD_OUT_MARK)
        stop = found.stopped(FitConfig().tol)
        print(
            f"{name:16}{loss:10}{label:8}{objective:>14}{held_out:>14}{stop:6}{found.objective[stop - 1]:12.1f}"
            f"{found.held_out[stop - 1]:9.4f}{found.objective[-1]:12.1f}{found.held_out[-1]:9.4f}{least:9.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["logistic", "hinge"])
    parser.add_argument("--iterations", type=int, default=200)
    options = parser.parse_args()
    print(provenance())
    print(
        f"{'set':16}{'loss':10}{'fit':8}{'objective':>14}{'held out':>14}{'stop':>6}{'objective':>12}{'held out':>9}"
        f"{'at the end':>12}{'held out':>9}{'lowest':>9}"
    )
    for name in options.sets:
        for loss in options.losses:
            compare(name, loss, options.iterations)


if __name__ == "__main__":
    main()
