"""What a fit costs on a GPU: milliseconds per half step, beside the reads alone, and seconds from
host arrays to a fit.

    python benchmarks/gpu.py [--tables steps fits first] [--ratings 2e7 1e8 1e9] [--rank 10 32 64]
    [--iterations 20]

``steps``: the sums over ratings, the systems of the rows, and the whole half step. "reads" are the
sums without their arithmetic: the ceiling of this access pattern. ``fits``: whole fits of simulated
ratings, 10 users per item and 100 ratings per user. Sizes that do not fit the memory are reported
and skipped. ``first``: the first fit of a process, and the next one.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from record import provenance

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.core.losses import OTHER, SIDES, HalfStep, RowPrior, Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.setup import form_of, kappa_of, loss_of
from onebit_spark.engines.cuda.device import bytes_needed, cupy, download, usable_bytes
from onebit_spark.engines.cuda.ratings import DeviceRatings, orientations
from onebit_spark.engines.cuda.runner import (
    CudaEngine,
    DevicePrior,
    RatingSums,
    other_lines,
    rating_sums,
    row_lines,
    side_statistics,
    updated,
)
from onebit_spark.engines.cuda.shapes import MODE_READS, Shape
from onebit_spark.errors import RequestError

TABLES = ("first", "steps", "fits")
PIECE = 2**26  # ratings that are made at a time


def simulated(n: int, seed: int = 1) -> tuple[Any, Any, Any, tuple[int, int]]:
    """Rows, columns, labels and the shape, on the device: both sides heavy-tailed, three factors
    and intercepts.
    """
    cp = cupy()
    m = n // 100
    c = n // 1000
    rng = cp.random.default_rng(seed)
    left, right = (rng.standard_normal((size, 4), dtype=np.float32) for size in (m, c))
    order = [cp.random.RandomState(seed).permutation(size).astype(np.int32) for size in (m, c)]
    rows = cp.empty(n, np.int32)
    cols = cp.empty(n, np.int32)
    labels = cp.empty(n, np.int8)
    for lo in range(0, n, PIECE):
        part = slice(lo, lo + PIECE)
        k = min(PIECE, n - lo)
        low = 1e-3**0.1
        high = 1.001**0.1
        i = cp.clip(((low + rng.random(k) * (high - low)) ** 10 - 1e-3) * m, 0, m - 1).astype(
            np.int32
        )
        j = cp.clip(20 * cp.exp(rng.random(k) * np.log((c + 20) / 20)) - 20, 0, c - 1).astype(
            np.int32
        )
        i = order[0][i]
        j = order[1][j]
        score = (left[i, :3] * right[j, :3]).sum(axis=1) + 0.7 * (left[i, 3] + right[j, 3])
        rows[part] = i
        cols[part] = j
        labels[part] = cp.where(rng.random(k) < 1 / (1 + cp.exp(-score)), 1, -1)
    return rows, cols, labels, (m, c)


def milliseconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The median time on the device."""
    work()
    times = []
    cp = cupy()
    for _ in range(repeats):
        begin = cp.cuda.Event()
        end = cp.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


def steps(n: int, rank: int, implicit: bool) -> None:
    """The parts of a half step of both sides."""
    form = form_of(FitConfig(rank=rank, implicit_features=implicit))
    extent = (n // 100, n // 1000)
    if (needed := bytes_needed(n, *extent, form, False)) > usable_bytes():
        print(
            f"| {n:.0e} | {rank} | {'yes' if implicit else 'no'} | {needed / 1e9:.0f} GB |",
            flush=True,
        )
        return
    rows, cols, labels, extent = simulated(n)
    ratings = orientations(rows, cols, (labels > 0).view(np.uint8), extent)
    del rows, cols, labels
    config = FitConfig(rank=rank, implicit_features=implicit, likelihood_weight=1.0)
    posteriors = CudaEngine(ratings).start(config, loss_of(config))
    for side in SIDES:
        sums, reads, systems, whole = parts(
            ratings[side], side, posteriors[side], posteriors[OTHER[side]]
        )
        print(
            f"| {n:.0e} | {rank} | {'yes' if implicit else 'no'} | {side} | {sums:.2f} | "
            f"{reads / sums:.2f} | "
            f"{systems:.2f} | {whole:.2f} | {1e6 * whole / n:.3f} |",
            flush=True,
        )


def parts(
    ratings: DeviceRatings, side: Side, rows: RowPosterior, others: RowPosterior
) -> tuple[float, ...]:
    """Milliseconds of the sums over ratings, of their reads alone, of the systems, and of the whole
    half step.
    """
    shape = Shape.of(rows.form)
    size = rows.dimension
    of_rows = row_lines(shape, rows)
    of_others = other_lines(shape, others)
    sums = milliseconds(lambda: rating_sums(ratings, shape.line, of_rows, of_others))
    reads = milliseconds(
        lambda: rating_sums(ratings, shape.line, of_rows, of_others, mode=MODE_READS)
    )
    step = HalfStep(side, 0, 1.0, RowPrior(np.zeros((1, size)), np.ones((1, size))), 1.0)
    prior = DevicePrior.of(step, None)

    def half_step() -> None:
        new, implicit_means, scalars = updated(
            ratings, step, RatingSums.of(ratings, rows, others, 1.0), prior
        )
        side_statistics(ratings, rows.location, new, prior, implicit_means, scalars, False, None)

    found = RatingSums.of(ratings, rows, others, 1.0)
    return (
        sums,
        reads,
        milliseconds(lambda: updated(ratings, step, found, prior)),
        milliseconds(half_step),
    )


def timed_fit(host: list[Any], **settings: Any) -> str:
    ended: list[float] = []
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        config = FitConfig(**settings)
        rows, cols, labels = host
        on_iteration = lambda _: ended.append(time.perf_counter() - began)  # noqa: E731
        fit = fit_arrays(rows, cols, labels, config, device="cuda", on_iteration=on_iteration)
    whole = time.perf_counter() - began
    last = np.diff(ended)
    return (
        f"{whole:.2f} s, of which {ended[0]:.2f} to the end of the first iteration; {len(ended)} "
        "iterations of "
        f"{1e3 * np.median(last):.1f} ms; rank {fit.config.rank}, κ {kappa_of(fit.config):g}"
    )


def fits(n: int, ranks: list[int], iterations: int) -> None:
    """Whole fits, from host arrays to host factors."""
    *arrays, _ = simulated(n)
    host = [download(array) for array in arrays]
    del arrays
    plain = {"tol": 0, "likelihood_weight": 1.0, "implicit_features": False, "max_iter": iterations}
    asked: dict[str, dict[str, Any]] = {
        f"plain, rank {rank}": {"rank": rank, **plain} for rank in ranks
    }
    asked["rank 10, 100 iterations"] = {"rank": 10, "tol": 0, "likelihood_weight": 1.0}
    asked["all defaults"] = {}
    for name, settings in asked.items():
        cupy().get_default_memory_pool().free_all_blocks()
        try:
            # Which compiles
            timed_fit(host, **{**settings, **({"max_iter": 2} if settings else {})})
            print(f"{n:.0e}, {name}: {timed_fit(host, **settings)}", flush=True)
        except RequestError as error:
            print(f"{n:.0e}, {name}: {error}", flush=True)


def first() -> None:
    """The first use: CuPy, the context of the device, and the compiler."""
    began = time.perf_counter()
    cupy().zeros(1)
    print(f"CuPy and a context: {time.perf_counter() - began:.2f} s")
    rng = np.random.default_rng(0)
    host = [rng.integers(0, 1000, 10_000), rng.integers(0, 500, 10_000), rng.integers(0, 2, 10_000)]
    for name in ("first", "next"):
        print(
            f"{name} fit of 10,000 ratings: "
            f"{timed_fit(host, rank=10, tol=0, likelihood_weight=1.0, max_iter=10)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--ratings", nargs="+", type=float, default=[2e7, 1e8])
    parser.add_argument("--rank", nargs="+", type=int, default=[10, 32, 64])
    parser.add_argument("--iterations", type=int, default=20)
    given = parser.parse_args()
    properties = cupy().cuda.runtime.getDeviceProperties(0)
    print(provenance(), properties["name"].decode(), f"CuPy {cupy().__version__}")
    if "first" in given.tables:
        first()
    if "steps" in given.tables:
        print(
            "| ratings | rank | implicit | side | sums, ms | reads | systems, ms | half step, ms "
            "| ns per rating |"
        )
        for n in given.ratings:
            for rank in given.rank:
                for implicit in (False, True):
                    cupy().get_default_memory_pool().free_all_blocks()
                    steps(int(n), rank, implicit)
    if "fits" in given.tables:
        for n in given.ratings:
            fits(int(n), given.rank, given.iterations)


if __name__ == "__main__":
    main()
