"""Many small fits on data whose true risk is known: how often is each certificate wrong, and how loose is it?

    python tests/unit/knownrisk.py        # prints the table

A sign matrix of rank 2, 40 × 30; ratings are drawn *with* replacement, uniformly over the cells, labels switched with
probability p. So the risk of any predictor is p + (1 − 2p)·P(it has the wrong sign), over all cells.
"""

import warnings
from dataclasses import replace

import numpy as np

from onebit_spark import FitConfig, NotConverged, Terms, fit_arrays
from onebit_spark.blocks import RatingBlock
from onebit_spark.certificate import bounds
from onebit_spark.certificate.certified import holdout_certificate
from onebit_spark.certificate.gibbs import Draws, count_errors

SHAPE = (40, 30)
PER_CELL = 100  # draws: the true risk is known to about .001


def draw(rng, n, switch):
    left, right = rng.normal(size=(SHAPE[0], 2)), rng.normal(size=(SHAPE[1], 2))
    signs = np.where(left @ right.T > 0, 1, -1)
    rows, cols = rng.integers(SHAPE[0], size=n), rng.integers(SHAPE[1], size=n)
    labels = signs[rows, cols] * np.where(rng.random(n) < switch, -1, 1)
    return signs, rows, cols, labels


def true_risks(fit, signs, switch, seed, spread_factor):
    """Of draws from the posterior (PER_CELL for each cell), and of the mean predictor."""
    rows, cols = (index.ravel() for index in np.indices(SHAPE))
    block = RatingBlock.from_coordinates(rows, cols, signs.ravel() > 0, SHAPE)
    narrow = [replace(side, scale=side.scale * narrowing(side, spread_factor)) for side in (fit.rows, fit.cols)]
    wrong = count_errors(block, 0, SHAPE[0], np.arange(SHAPE[0]), *narrow, Draws(seed, PER_CELL)).errors / (
        PER_CELL * rows.size
    )
    mean_wrong = np.mean(fit.predict(rows, cols) != signs.ravel())
    return switch + (1 - 2 * switch) * wrong, switch + (1 - 2 * switch) * mean_wrong


def narrowing(side, factor):
    return factor if side.kind == "spread" else factor**2


def experiment(config, n, switch, delta, repeats, terms=None, seed=0):
    """Rows of (name, bound, true risk), every certificate of every fit; "no-kl" is seeger with the KL left out."""
    rng = np.random.default_rng(seed)
    terms = terms or Terms(delta=delta)
    lines = []
    for repeat in range(repeats):
        signs, rows, cols, labels = draw(rng, n, switch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConverged)
            fit = fit_arrays(rows, cols, labels, replace(config, seed=repeat), SHAPE, threads=1, certify=terms)
        factor = fit.certificates[0].inputs.get("spread_factor", 1.0)
        gibbs, mean = true_risks(fit, signs, switch, repeat, factor)
        for item in fit.certificates:
            lines.append((item.name, item.bound, gibbs))
            if item.name == "seeger":
                lines.append(("no-kl", bounds.seeger(item.inputs["gibbs_risk"], 0.0, n, delta), gibbs))
        _, held_rows, held_cols, _ = draw(rng, 200, switch)
        held = signs[held_rows, held_cols] * np.where(rng.random(200) < switch, -1, 1)
        errors = int(np.sum(fit.predict(held_rows, held_cols) != held))
        lines.append(("holdout", holdout_certificate(errors, 200, Terms(delta=delta), 0.5).bound, mean))
    return lines


def summary(lines):
    """name ─► (share of violations, median of bound over risk)."""
    found = {}
    for name in dict.fromkeys(name for name, _, _ in lines):
        bound, risk = np.array([(b, r) for other, b, r in lines if other == name]).T
        found[name] = float(np.mean(risk > bound)), float(np.median(bound / risk))
    return found


if __name__ == "__main__":
    for loss in ("hinge", "logistic"):
        for terms in (Terms(delta=0.2), Terms(delta=0.2, prior_split=0.5)):
            lines = experiment(FitConfig(loss=loss, rank=3, max_iter=30), 1500, 0.1, 0.2, 200, terms)
            for name, (violated, loose) in summary(lines).items():
                print(f"{loss:9} {name:12} violated {violated:.3f}   bound/risk {loose:.2f}")
    lines = experiment(FitConfig(rank=10, likelihood_weight=8.0, max_iter=30), 1500, 0.5, 0.2, 200)
    for name, (violated, loose) in summary(lines).items():
        print(f"noise     {name:12} violated {violated:.3f}   bound/risk {loose:.2f}")
