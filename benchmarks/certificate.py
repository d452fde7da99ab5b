"""What can be certified on real data, beside the error on ratings that were held out.

    python benchmarks/certificate.py [--data movielens-100k movielens-1m senate]     # ONEBIT_DATA: folder of the data

Every line is one fit on 90% of the ratings (95,000 of MovieLens-100K), δ = .05: the Gibbs risk on
the ratings of the fit, KL/n, the bounds, and the error of the mean predictor on the rest.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from datasets import Ratings, movielens_1m, movielens_100k, senate, split
from record import provenance

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.certify.bounds import holdout

DATA = {
    "movielens-100k": (movielens_100k, 5000),
    "movielens-1m": (movielens_1m, 0.1),
    "senate": (senate, 0.1),
}

# The first lines of the MovieLens sets are settings of a prototype; the others were chosen by hand
# for the bound.
SMALL = {"alpha": 1.0, "beta": 0.01, "intercepts": False}
SETTINGS: dict[str, list[dict[str, object]]] = {
    "movielens-100k": [
        {"loss": "hinge", "rank": 2, "likelihood_weight": 0.2, **SMALL},
        {"rank": 1, "likelihood_weight": 0.2},
        {"rank": 1, "likelihood_weight": 0.3},
    ],
    "movielens-1m": [
        {"loss": "hinge", "rank": 3, "likelihood_weight": 0.3, **SMALL},
        {"rank": 3, "likelihood_weight": 0.5, "alpha": 1.0, "beta": 1.0, "intercepts": False},
        {"loss": "hinge", "rank": 1, "likelihood_weight": 0.3},
        {"rank": 1, "likelihood_weight": 0.2},
        {"rank": 1, "likelihood_weight": 0.3},
    ],
    "senate": [{"rank": 1, "likelihood_weight": 0.3}, {"rank": 2, "likelihood_weight": 0.3}],
}


def measure(train: Ratings, test: Ratings, config: FitConfig) -> str:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        fit = fit_arrays(*train, config, certify=Terms())
    wrong = int(np.sum(fit.predict(test.rows, test.cols) != test.labels))
    found = {item.name: item for item in fit.certificates}
    last = fit.certificates[-1]
    bounds = "  ".join(f"{name} {item.bound:.4f}" for name, item in found.items())
    return (
        f"Gibbs {last.inputs['gibbs_risk']:.4f}  KL/n {last.inputs['kl'] / last.n:.5f}  {bounds}  "
        f"test error {wrong / len(test.rows):.4f} (holdout bound "
        f"{holdout(wrong, len(test.rows), 0.05):.4f})  "
        f"{time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    print(provenance())
    for name in parser.parse_args().data:
        load, held_out = DATA[name]
        ratings = load()
        train, test = split(ratings, held_out, 0)
        share = float(np.mean(ratings.labels > 0))
        print(f"# {name}: {len(train.rows):,} ratings, majority error {min(share, 1 - share):.4f}")
        for setting in (*SETTINGS[name], {}):
            told = ", ".join(f"{key}={value}" for key, value in setting.items()) or "defaults"
            config = FitConfig(**{**setting, "implicit_features": False})  # type: ignore[arg-type]
            print(f"{told}\n    {measure(train, test, config)}", flush=True)


if __name__ == "__main__":
    main()
