"""Which share of the positives is found at a certified precision, on real data and on a simulated
rare class.

    python benchmarks/precision.py [--data movielens-1m senate simulated] [--splits 3] [--rank 10]

In every split, 85% of the ratings are fitted with the default settings or a given rank, and 10%
certify each request separately at δ = .05. The last 5% show precision and recall on ratings that
were neither fitted nor used to certify. The figures are medians over the splits, with the smallest
and the largest in brackets. How often certified precisions are violated where the truth is known:
``python tests/support/knownrisk.py precision``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from datasets import Ratings, movielens_1m, senate
from record import provenance, save
from selective import parts, told

from onebit_spark import FitConfig, FittedModel, NotConverged, Terms, fit_arrays

DELTA = 0.05
REQUESTS = (0.7, 0.8, 0.9)


def simulated(
    positive: float = 0.02, shape: tuple[int, int] = (2000, 1000), n: int = 300_000
) -> Ratings:
    """Different cells, of which the given share is positive: logit u = s·L·R + b, rank 3."""
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(size, 3)) for size in shape)
    rows, cols = np.divmod(rng.choice(shape[0] * shape[1], n, replace=False), shape[1])
    u = 3.0 * np.einsum("lk,lk->l", left[rows], right[cols]) + rng.logistic(size=n)
    return Ratings(rows, cols, np.where(u > np.quantile(u, 1 - positive), 1, -1).astype(np.int8))


DATA: dict[str, Callable[[], Ratings]] = {
    "movielens-1m": partial(movielens_1m, 4.5),
    "senate": senate,
    "simulated": simulated,
}


def measure(
    fit: FittedModel, certifying: Ratings, fresh: Ratings, request: float
) -> tuple[float, float, float, float]:
    """Recall on the certifying ratings and its limit; recall and precision on the fresh ones."""
    item = fit.certify(*certifying, Terms(delta=DELTA), min_precision=request)[1]
    called = fit.called("positive", fresh.rows, fresh.cols, item)
    positive = fresh.labels > 0
    precision = float(positive[called].mean()) if called.any() else 1.0
    return (
        item.inputs["found_share"],
        item.inputs["found_limit"],
        float(called[positive].mean()),
        precision,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rank", type=int, help="default: the fit chooses it")
    parser.add_argument("--save", action="store_true", help="into results.json, for pages.py")
    asked = parser.parse_args()
    print(provenance())
    config = FitConfig() if asked.rank is None else FitConfig(rank=asked.rank)
    for name in asked.data:
        ratings = DATA[name]()
        began = time.perf_counter()
        found: dict[float, list[tuple[float, float, float, float]]] = {
            request: [] for request in REQUESTS
        }
        for seed in range(asked.splits):
            fitted, certifying, fresh = parts(ratings, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConverged)
                fit = fit_arrays(*fitted, config)
            for request in REQUESTS:
                found[request].append(measure(fit, certifying, fresh, request))
        share = np.mean(ratings.labels > 0)
        print(
            f"# {name}: {share:.1%} positive, {asked.splits} splits, "
            f"{time.perf_counter() - began:.0f} s"
        )
        for request, lines in found.items():
            recall, limit, fresh_recall, precision = np.array(lines).T
            if asked.save:
                medians = map(float, np.median(lines, axis=0))
                names = ("found", "certified", "fresh", "precision")
                save("precision", name, f"{request:.1f}", dict(zip(names, medians, strict=True)))
            over = int(np.sum(precision < request))
            print(
                f"at least {request:.1f}: found {told(recall)}, certified {told(limit)}; of fresh "
                "ratings found "
                f"{told(fresh_recall)}, precision there {told(precision)}, below the request in "
                f"{over} of {len(lines)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
