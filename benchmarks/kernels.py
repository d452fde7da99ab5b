"""Nanoseconds per rating and half step of the row kernels, compared with the time of the arithmetic alone.

    python benchmarks/kernels.py [--rank 8 10 16 32 64] [--threads 1 2] [--scaling]

The floor is the multiply-adds that the formulas need, at two float64 per cycle of a plain multiply-add loop measured in
the same run. A half step is the mean of an L step and an R step, which also returns the objective's data term.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numba
import numpy as np
from record import provenance

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import HalfStep, Side
from onebit_spark.core.scales import Scales
from onebit_spark.engines.local import LocalEngine
from onebit_spark.simulate import power_law_ratings

LOSSES = {
    "hinge": FitConfig(loss="hinge"),
    "logistic": FitConfig(loss="logistic"),
    "logistic, diagonal": FitConfig(loss="logistic", covariance="diagonal"),
}


def multiply_adds(loss: str, size: int) -> float:
    """Multiply-adds of one rating in the mean half step, with D̃ = ``size`` augmented coordinates."""
    packed = size * (size + 1) / 2
    return {
        "hinge": packed + 5 * size,  # Gram; two scores, right side, two spread sums
        "logistic": 2.5 * packed + size,  # ξ² (and in the R step once more), precision, right side
        "logistic, diagonal": packed + 9 * size,
    }[loss]


@numba.njit(fastmath=True)
def _multiply_add(a, b, repeats):  # type: ignore[no-untyped-def]
    total = 0.0
    for r in range(repeats):
        s = 0.0
        for k in range(len(a)):
            s += a[k] * b[k]
        total += s
        a[r % len(a)] += 1e-9
    return total


def nanoseconds_per_multiply_add() -> float:
    a, b = np.ones(1024), np.ones(1024)
    _multiply_add(a, b, 10)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        _multiply_add(a, b, 20_000)
        times.append(time.perf_counter() - began)
    return min(times) / (20_000 * 1024) * 1e9


def half_step_nanoseconds(ratings: RatingBlock, config: FitConfig, threads: int, repeats: int) -> float:
    """Median over repeats of an L and an R step, per rating and half step."""
    loss = config.make_loss()
    with LocalEngine(ratings, threads).running() as engine:
        engine.start(config, loss)
        scales = Scales.at_start(config.rank)

        def once(side: Side) -> None:
            prior = scales.prior(side, config.intercepts)
            engine.half_step(loss, HalfStep(side, 5, config.weight, prior, 1.0, want_data=side == "cols"))

        times = []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            once("rows")
            once("cols")
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) / (2 * ratings.n_ratings) * 1e9


def block(n_rows: int, n_cols: int, n_ratings: int) -> RatingBlock:
    rows, cols, labels = power_law_ratings(n_rows, n_cols, n_ratings, seed=1)
    return RatingBlock.from_coordinates(rows, cols, labels > 0, (n_rows, n_cols))


def by_rank(ranks: list[int], threads: list[int], repeats: int, intercepts: bool) -> None:
    unit = nanoseconds_per_multiply_add()
    told = "with intercepts (two more coordinates)" if intercepts else "no intercepts"
    print(f"# 6,040 × 3,706, 10⁶ ratings, {told}; one multiply-add {unit:.3f} ns")
    ratings = block(6040, 3706, 1_000_000)
    print(f"{'loss':20}{'rank':>5}{'threads':>8}{'ns/rating':>11}{'floor':>8}{'ratio':>7}")
    for name, config in LOSSES.items():
        for rank in ranks:
            floor = multiply_adds(name, rank + 2 * intercepts) * unit
            chosen = replace(config, rank=rank, intercepts=intercepts)
            for n in threads:
                ns = half_step_nanoseconds(ratings, chosen, n, repeats)
                print(f"{name:20}{rank:5}{n:8}{ns:11.1f}{floor / n:8.1f}{ns * n / floor:7.1f}", flush=True)


def by_size(repeats: int) -> None:
    print("# rank 10, all threads, power-law columns, 30 ratings per row")
    print(f"{'loss':20}{'ratings':>12}{'ns/rating':>11}")
    for n in (10**5, 10**6, 10**7, 3 * 10**7):
        ratings = block(n // 30, n // 300, n)
        for name, config in LOSSES.items():
            ns = half_step_nanoseconds(ratings, config, 0, repeats if n < 10**7 else 2)
            print(f"{name:20}{n:12,}{ns:11.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, nargs="+", default=[8, 10, 16, 32, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--intercepts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--scaling", action="store_true", help="also from 10⁵ to 3·10⁷ ratings")
    options = parser.parse_args()
    print(provenance())
    by_rank(options.rank, options.threads, options.repeats, options.intercepts)
    if options.scaling:
        by_size(options.repeats)


if __name__ == "__main__":
    main()
