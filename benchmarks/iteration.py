"""Seconds of an iteration by part, in process on one core, of this tree and of another one.

    python benchmarks/iteration.py [--rank 10 32 64] [--data movielens-1m sparse] [--ratings
    1000000]
                                   [--before PATH] [--repeats 3] [--iterations 4]

``sparse`` is a power law over .3·n × .3·n cells: about three ratings per row. Rank 64 of a million
such ratings needs 10 GB. ``--before`` is a checkout of another commit: both trees take turns, each
run in a process of its own. Figures are the least processor times over iterations and repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from datasets import Ratings, movielens_1m
from powerlaw import power_law_ratings
from record import provenance

from onebit_spark import FitConfig
from onebit_spark.core import work
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses.logistic import Logistic
from onebit_spark.core.posterior import RowMap
from onebit_spark.core.solver import solve
from onebit_spark.core.statistics import SideStatistics
from onebit_spark.engines.threads import local_state

# Who does what. A part whose function has another name in the other tree is not timed there.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "row updates": [(Logistic, "update_rows")],
    "gauge's maps": [(RowMap, "apply_to")],
    "statistics": [(SideStatistics, "of_rows")],
    "partners": [(Logistic, "other_lines")],
    "weights": [(work, "add_implicit_sums"), (work, "leave_residuals")],
}
DATA = ("movielens-1m", "sparse")
HERE = Path(__file__).resolve()

Seconds = dict[str, float]


def data_named(name: str, n: int) -> Ratings:
    if name == "movielens-1m":
        return movielens_1m()
    return Ratings(*power_law_ratings(3 * n // 10, 3 * n // 10, n, seed=1))


def timed(function: Callable[..., Any], part: str, spent: Seconds) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[part] += time.thread_time() - began

    return call


def measured(ratings: Ratings, rank: int, iterations: int) -> Seconds:
    """The parts of the fastest iteration after the first, each by itself, and the objective at the
    end.
    """
    spent: Seconds = defaultdict(float)
    for part, functions in PARTS.items():
        for owner, name in functions:
            if name not in vars(owner):
                continue
            bound = isinstance(vars(owner)[name], classmethod)
            wrapped = timed(
                vars(owner)[name].__func__ if bound else getattr(owner, name), part, spent
            )
            setattr(owner, name, classmethod(wrapped) if bound else wrapped)
    shape = int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1
    block = RatingBlock.from_coordinates(ratings.rows, ratings.cols, ratings.labels > 0, shape)
    config = FitConfig(rank=rank, likelihood_weight=1.0, tol=0.0, max_iter=iterations + 1)
    marks: list[Seconds] = []
    with local_state(block, threads=1).running() as state:
        outcome = solve(state, config, lambda _: marks.append({**spent, "all": time.thread_time()}))
    names = [*PARTS, "all"]
    least = {
        name: min(now.get(name, 0.0) - last.get(name, 0.0) for last, now in pairwise(marks))
        for name in names
    }
    return {**least, "objective": outcome.history[-1].objective}


def in_a_process(tree: Path, data: str, rank: int, options: argparse.Namespace) -> Seconds:
    command = [sys.executable, str(HERE), "--once", "--data", data, "--rank", str(rank)]
    command += ["--ratings", str(options.ratings), "--iterations", str(options.iterations)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def compared(data: str, rank: int, trees: dict[str, Path], options: argparse.Namespace) -> None:
    found: dict[str, list[Seconds]] = {name: [] for name in trees}
    for _ in range(options.repeats):
        for name, tree in trees.items():
            found[name].append(in_a_process(tree, data, rank, options))
    for name, runs in found.items():
        least = {part: min(run[part] for run in runs) for part in runs[0]}
        figures = "".join(f"{least[part]:14.3f}" for part in [*PARTS, "all"])
        print(f"{data:14}{rank:5}  {name:7}{figures}{least['objective']:18.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, nargs="+", default=[10, 32, 64])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--ratings", type=int, default=1_000_000, help="of the sparse data")
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        ratings = data_named(options.data[0], options.ratings)
        print(json.dumps(measured(ratings, options.rank[0], options.iterations)))
        return
    print(provenance())
    trees = (
        {"before": options.before, "now": HERE.parents[1]}
        if options.before
        else {"now": HERE.parents[1]}
    )
    print(
        f"{'data':14}{'rank':>5}  "
        f"{'tree':7}{''.join(f'{part:>14}' for part in [*PARTS, 'all'])}{'objective':>18}"
    )
    for data in options.data:
        for rank in options.rank:
            compared(data, rank, trees, options)


if __name__ == "__main__":
    main()
