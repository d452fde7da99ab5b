"""Lists of ten recommendations beside those of Spark MLlib's ALS and the most popular items, on
held-out ratings.

    python benchmarks/ranking.py [--data ml-100k|ml-1m] [--splits 3] [--n 10] [--device cuda]
    [--no-als] [--save]

A tenth of the ratings is held out. For each user with positive ratings among them, the items that
the user has not rated in the other nine tenths are ranked. Ours: the defaults, by probability.
Popularity: by the number of positive ratings. ALS: labels ±1, rank 10, 10 iterations, no implicit
preferences, the better of regParam .05 and .1 by NDCG *on the held-out ratings*, which is generous
to it. Means over the splits, and the standard deviation of one split.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from datasets import Ratings, movielens_1m, movielens_100k, split
from record import provenance, save

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.predict.metrics import ranking_figures

DATA: dict[str, Callable[[], Ratings]] = {"ml-100k": movielens_100k, "ml-1m": movielens_1m}
Figures = dict[str, float]


def ours(train: Ratings, test: Ratings, n: int, device: str) -> dict[str, Figures]:
    """The figures of our lists, and of popularity."""
    found = fit_arrays(*train, FitConfig(), device=device).ranking(*test, n=n, seen=tuple(train))
    return {"onebit_spark": found["model"], "popularity": found["popularity"]}


def als(train: Ratings, test: Ratings, n: int) -> Figures:
    """The figures of the better ALS, from its factors."""
    from als import frame
    from pyspark.ml.recommendation import ALS
    from session import local_session

    training = frame(local_session("local[*]"), train)
    best = None
    shape = tuple(int(max(train[side].max(), test[side].max())) + 1 for side in (0, 1))
    for reg in (0.05, 0.1):
        model = ALS(
            rank=10, maxIter=10, regParam=reg, ratingCol="label", seed=0, implicitPrefs=False
        ).fit(training)
        factors = []
        for size, table in zip(shape, (model.userFactors, model.itemFactors), strict=True):
            lines = table.toArrow()
            side = np.full((size, 10), np.nan)
            side[lines["id"].to_numpy()] = np.array(lines["features"].to_pylist())
            factors.append(side)
        scores = factors[0] @ factors[1].T
        found = of_scores(np.where(np.isnan(scores), -np.inf, scores), train, test, n)
        best = found if best is None or found["ndcgAtK"] > best["ndcgAtK"] else best
    training.unpersist()
    assert best is not None
    return best


def of_scores(scores: np.ndarray, train: Ratings, test: Ratings, n: int) -> Figures:
    """The figures of a matrix of scores, over the users that ``train`` knows."""
    seen = np.zeros(scores.shape, bool)
    wanted = np.zeros(scores.shape, bool)
    seen[train.rows, train.cols] = True
    wanted[test.rows, test.cols] = test.labels > 0  # no cell is rated twice
    wanted &= ~seen
    users = np.flatnonzero(seen.any(axis=1) & wanted.any(axis=1))
    order = np.argsort(-np.where(seen, -np.inf, scores)[users], axis=1, kind="stable")[:, :n]
    return ranking_figures(
        np.take_along_axis(wanted[users], order, axis=1), wanted[users].sum(axis=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=DATA, default="ml-1m")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-als", action="store_true", help="leave ALS out, and start no Spark")
    parser.add_argument("--save", action="store_true", help="into results.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    print(provenance())
    ratings = DATA[options.data]()
    found = []
    for seed in range(options.splits):
        train, test = split(ratings, 0.1, seed)
        found.append(ours(train, test, options.n, options.device))
        if not options.no_als:
            found[-1]["ALS"] = als(train, test, options.n)
    names = list(found[0]["popularity"])
    print(f"# {options.data}, lists of {options.n}, {options.splits} splits")
    print(f"{'':14}" + "".join(f"{name:>26}" for name in names))
    for method in found[0]:
        values = np.array([[each[method][name] for name in names] for each in found])
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(names))
        if options.save:
            means, sds = (
                dict(zip(names, each, strict=True)) for each in (values.mean(axis=0), spread)
            )
            save(
                "ranking",
                options.data,
                method,
                means | {f"{name} sd": sd for name, sd in sds.items()},
            )
        told = (
            f"{f'{mean:.4f} ± {sd:.4f}':>26}"
            for mean, sd in zip(values.mean(axis=0), spread, strict=True)
        )
        print(f"{method:14}" + "".join(told), flush=True)


if __name__ == "__main__":
    main()
