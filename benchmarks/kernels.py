"""Nanoseconds per rating and half step of the row kernels, compared with the time of the arithmetic
alone.

    python benchmarks/kernels.py [--tables rank rows large sparse scaling] [--rank 8 10 16 32 64]
    [--threads 1 2]
                                 [--no-implicit-features] [--no-intercepts]

``rank``: 10⁶ ratings at several ranks. ``rows``: a row by its number of ratings. ``large``: 2·10⁷
ratings, whose tables do not fit a cache. ``sparse``: about three ratings per row. ``scaling``: from
10⁵ to 3·10⁷ ratings.

The floor is the multiply-adds that the formulas need, at two float64 per cycle of a plain
multiply-add loop measured in the same run. A half step is the mean of an L step and an R step,
which also returns the objective's data term.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
from powerlaw import power_law_ratings
from record import provenance

from onebit_spark import FitConfig
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.losses import HalfStep, RowPrior, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.setup import factor_prior, intercept_prior, kappa_of, loss_of
from onebit_spark.engines.threads import local_state

TABLES = ("rank", "rows", "large", "sparse", "scaling")
LOSSES = {
    "hinge": FitConfig(loss="hinge", rank=10),
    "logistic": FitConfig(loss="logistic", rank=10),
    "logistic, diagonal": FitConfig(loss="logistic", rank=10, covariance="diagonal"),
}


def multiply_adds(loss: str, size: int) -> float:
    """Multiply-adds of one rating in the mean half step, with D̃ = ``size`` augmented
    coordinates.
    """
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
    a = np.ones(1024)
    b = np.ones(1024)
    _multiply_add(a, b, 10)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        _multiply_add(a, b, 20_000)
        times.append(time.perf_counter() - began)
    return min(times) / (20_000 * 1024) * 1e9


class Seconds(NamedTuple):
    """Of an L step and an R step, medians over repeats."""

    rows: float
    cols: float


def half_steps(ratings: RatingBlock, config: FitConfig, threads: int, repeats: int) -> Seconds:
    """How long the two half steps of an iteration take; of one thread its processor time, for busy
    machines.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    loss = loss_of(config)
    with local_state(ratings, threads).running() as state:
        state.start(config, loss)
        scales = HyperPosterior(
            factor_prior(config, 1), intercept_prior(config), np.ones(config.factors)
        )

        def once(side: Side) -> float:
            prior = scales.row_prior(side)
            began = clock()
            state.half_step(
                loss, HalfStep(side, 5, kappa_of(config), prior, 1.0, want_data=side == "cols")
            )
            return clock() - began

        times = [(once("rows"), once("cols")) for _ in range(repeats + 1)]
    return Seconds(*(statistics.median(side) for side in zip(*times[1:], strict=True)))


def half_step_nanoseconds(
    ratings: RatingBlock, config: FitConfig, threads: int, repeats: int
) -> float:
    """The mean half step, per rating."""
    return sum(half_steps(ratings, config, threads, repeats)) / (2 * ratings.n_ratings) * 1e9


def row_microseconds(config: FitConfig, length: int, repeats: int) -> float:
    """The update of a row with ``length`` ratings, on one core: the least over repeats, by many
    such rows.

    The mean of an update with and one without the data term, as in the two half steps of an
    iteration.
    """
    n_rows = max(300_000 // max(length, 15), 100)
    n_cols = 1000
    rng = np.random.default_rng(1)
    rows = np.repeat(np.arange(n_rows), length)
    cols = rng.integers(n_cols, size=n_rows * length)
    ratings = RatingBlock.from_coordinates(
        rows, cols, rng.random(len(rows)) < 0.6, (n_rows, n_cols)
    )
    loss = loss_of(config)
    dimension = config.dimension
    before, other = (
        RowPosterior.isotropic(
            rng.normal(scale=0.5, size=(n, dimension)).astype(np.float32),
            0.3,
            loss.kind,
            config.intercepts,
        )
        for n in (n_rows, n_cols)
    )
    prior = RowPrior(np.zeros((1, dimension)), np.full((1, dimension), 2.0))
    partners = loss.other_lines(other)
    least = [np.inf, np.inf]
    for _ in range(repeats + 1):
        for want_data in (False, True):
            after = before.copy()
            step = HalfStep("rows", 5, kappa_of(config), prior, 1.0, want_data=want_data)
            began = time.thread_time()
            loss.update_rows(ratings, 0, n_rows, partners, after, step)
            least[want_data] = min(least[want_data], time.thread_time() - began)
    return sum(least) / (2 * n_rows) * 1e6


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
                print(
                    f"{name:20}{rank:5}{n:8}{ns:11.1f}{floor / n:8.1f}{ns * n / floor:7.1f}",
                    flush=True,
                )


def by_size(repeats: int) -> None:
    print("# rank 10, all threads, power-law columns, 30 ratings per row")
    print(f"{'loss':20}{'ratings':>12}{'ns/rating':>11}")
    for n in (10**5, 10**6, 10**7, 3 * 10**7):
        ratings = block(n // 30, n // 300, n)
        for name, config in LOSSES.items():
            ns = half_step_nanoseconds(ratings, config, 0, repeats if n < 10**7 else 2)
            print(f"{name:20}{n:12,}{ns:11.1f}", flush=True)


def by_length(rank: int, repeats: int) -> None:
    print(f"# rank {rank} with intercepts, one core, 1,000 partners; µs per row by its ratings")
    lengths = (1, 3, 10, 30, 100, 1000)
    print(f"{'loss':20}" + "".join(f"{length:9,}" for length in lengths))
    for name, config in LOSSES.items():
        times = (
            row_microseconds(replace(config, rank=rank), length, repeats) for length in lengths
        )
        print(f"{name:20}" + "".join(f"{us:9.2f}" for us in times), flush=True)


def beyond_the_cache(n_ratings: int, repeats: int) -> None:
    n_rows = n_ratings // 50
    n_cols = n_ratings // 500
    print(f"# {n_rows:,} × {n_cols:,}, {n_ratings:,} ratings, rank 10, one core; ns per rating")
    print(f"{'loss':20}{'L step':>9}{'R step':>9}{'mean':>9}")
    ratings = block(n_rows, n_cols, n_ratings)
    for name, config in LOSSES.items():
        ns = [1e9 * seconds / n_ratings for seconds in half_steps(ratings, config, 1, repeats)]
        print(f"{name:20}{ns[0]:9.1f}{ns[1]:9.1f}{sum(ns) / 2:9.1f}", flush=True)


def very_sparse(repeats: int) -> None:
    print("# 300,000 × 300,000, 10⁶ ratings, rank 10, one core; seconds per iteration")
    ratings = block(300_000, 300_000, 1_000_000)
    for name, config in LOSSES.items():
        print(f"{name:20}{sum(half_steps(ratings, config, 1, repeats)):9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=["rank", "rows"], metavar="NAME"
    )
    parser.add_argument("--rank", type=int, nargs="+", default=[8, 10, 16, 32, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--intercepts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--large", type=int, default=2 * 10**7, help="ratings of the table 'large'")
    parser.add_argument("--implicit-features", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    print(provenance())
    for name, config in LOSSES.items():
        LOSSES[name] = replace(config, implicit_features=options.implicit_features)
    tables = {
        "rank": lambda: by_rank(options.rank, options.threads, options.repeats, options.intercepts),
        "rows": lambda: by_length(10, options.repeats),
        "large": lambda: beyond_the_cache(options.large, options.repeats),
        "sparse": lambda: very_sparse(options.repeats),
        "scaling": lambda: by_size(options.repeats),
    }
    for table in options.tables:
        tables[table]()


if __name__ == "__main__":
    main()
