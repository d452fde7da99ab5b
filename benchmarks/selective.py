"""Which share of pairs can be answered with at most the requested error rate, on real data.

    python benchmarks/selective.py [--data movielens-1m senate assistments] [--splits 5]      # ONEBIT_DATA: the folder

In every split, 85% of the ratings are fitted with the default settings, and 10% certify each
request separately at δ = .05. The last 5% show the error rate among the answered, on ratings that
were neither fitted nor used to certify. The figures are medians over the splits, with the smallest
and the largest in brackets.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from datasets import Ratings, assistments, movielens_1m, senate
from record import provenance, save

from onebit_spark import FitConfig, FittedModel, NotConverged, Terms, fit_arrays

DATA = {
    "movielens-1m": (movielens_1m, (0.2, 0.1)),
    "senate": (senate, (0.05, 0.02)),
    "assistments": (assistments, (0.2, 0.1)),
}
DELTA = 0.05


def parts(ratings: Ratings, seed: int) -> tuple[Ratings, Ratings, Ratings]:
    """Fitted, certifying and fresh."""
    order = np.random.default_rng(seed).permutation(len(ratings.rows))
    tenth = len(order) // 10
    fitted = 3 * len(order) // 20
    return (
        ratings.take(order[fitted:]),
        ratings.take(order[:tenth]),
        ratings.take(order[tenth:fitted]),
    )


def measure(
    fit: FittedModel, certifying: Ratings, fresh: Ratings, request: float
) -> tuple[float, float, float]:
    """Share answered of the certifying ratings and of the fresh ones, and the error among the
    latter.
    """
    selective = fit.certify(*certifying, Terms(delta=DELTA), max_error=[request])[1]
    answered = fit.answered(fresh.rows, fresh.cols, selective)
    wrong = fit.predict(fresh.rows, fresh.cols) != fresh.labels
    error = float(wrong[answered].mean()) if answered.any() else 0.0
    return selective.inputs["answered_share"], float(answered.mean()), error


def told(values: np.ndarray) -> str:
    return f"{np.median(values):.3f} ({values.min():.3f}–{values.max():.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="into results.json, for pages.py")
    asked = parser.parse_args()
    print(provenance())
    for name in asked.data:
        load, requests = DATA[name]
        ratings = load()
        began = time.perf_counter()
        found: dict[float, list[tuple[float, float, float]]] = {request: [] for request in requests}
        for seed in range(asked.splits):
            fitted, certifying, fresh = parts(ratings, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConverged)
                fit = fit_arrays(*fitted, FitConfig())
            for request in requests:
                found[request].append(measure(fit, certifying, fresh, request))
        print(f"# {name}: {asked.splits} splits, {time.perf_counter() - began:.0f} s")
        for request, lines in found.items():
            share, fresh_share, error = np.array(lines).T
            if asked.save:
                medians = {"answered": float(np.median(share)), "error": float(np.median(error))}
                save("selective", name, f"{100 * request:g}", medians)
            over = int(np.sum(error > request))
            print(
                f"at most {request:.2f}: answered {told(share)}; of fresh ratings "
                f"{told(fresh_share)}, "
                f"error there {told(error)}, above the request in {over} of {len(lines)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
