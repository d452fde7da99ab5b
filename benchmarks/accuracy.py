"""How often the sign is right: the paper's simulations at fixed settings, and the real data sets at
the defaults.

    python benchmarks/accuracy.py simulated [--draws 5] [--rank 3]
    python benchmarks/accuracy.py real [--splits 10]          # ONEBIT_DATA: folder of the data sets, default ./data
    python benchmarks/accuracy.py parts [--splits 10] [--device cuda] [--save]    # what each choice contributes
    python benchmarks/accuracy.py choices [--splits 3] [--device cuda]    # what a tenth chooses, beside fixed ranks
    python benchmarks/accuracy.py priors [--splits 3]         # which prior, which rank

Simulated: error in % of sign(E[L]E[R]ᵀ) against sign(M) over all cells, no intercepts, K = 10.
Real: share of correct signs on held-out ratings. Each row gives the mean, the standard deviation of
one draw or split, and seconds per fit.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from datasets import Ratings, assistments, movielens_1m, movielens_100k, senate, split
from record import provenance, save

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.setup import kappa_of
from onebit_spark.predict.metrics import auc, log_loss, reliability
from onebit_spark.simulate import simulate

# (κ, α, β) for rank 3, tuned on the true error: inverse-Gamma by a prototype, except the hinge's
# B3; the rest here, on the draws 100–102, apart from those that are reported.
Settings = dict[str, tuple[float, float, float]]
SETTINGS: dict[tuple[str, str], Settings] = {
    ("hinge", "inverse-gamma"): {
        "A1": (4, 1, 0.1),
        "A2": (4, 1, 0.1),
        "A3": (2, 400, 10),
        "B1": (8, 400, 0.1),
        "B2": (4, 400, 0.1),
        "B3": (1.83, 92, 20),
    },
    ("hinge", "gamma"): {
        "A1": (1, 100, 1),
        "A2": (1, 100, 1),
        "A3": (2, 1, 3000),
        "B1": (4, 100, 1),
        "B2": (2, 100, 30),
        "B3": (1, 100, 0.1),
    },
    ("logistic", "inverse-gamma"): {
        "A1": (1, 100, 0.1),
        "A2": (1, 100, 0.1),
        "A3": (1, 1, 10),
        "B1": (1, 1, 10),
        "B2": (1, 1, 10),
        "B3": (1, 1, 10),
    },
    ("logistic", "gamma"): {
        "A1": (1, 1, 300),
        "A2": (1, 1, 300),
        "A3": (1, 1, 1),
        "B1": (1, 100, 1),
        "B2": (1, 100, 30),
        "B3": (1, 30, 10),
    },
}


def simulated(draws: int, rank: int, first_seed: int) -> None:
    print(
        f"{'loss':10}{'prior':15}{'kind':6}{'κ':>6}{'α':>6}{'β':>9}{'error %':>9}{'sd':>6}{'seconds':>9}"
    )
    for (loss, prior), settings in SETTINGS.items():
        for kind, (kappa, alpha, beta) in settings.items():
            config = FitConfig(
                loss=loss,
                prior=prior,
                likelihood_weight=kappa,
                alpha=alpha,
                beta=beta,
                intercepts=False,
                rank=10,
                max_iter=80,
                implicit_features=False,
            )
            errors = []
            began = time.perf_counter()
            for seed in range(first_seed, first_seed + draws):
                data = simulate(kind, rank=rank, seed=seed)
                fit = fit_arrays(data.rows, data.cols, data.labels, config, shape=data.truth.shape)
                errors.append(100 * data.error(fit.rows.mean @ fit.cols.mean.T))
            seconds = (time.perf_counter() - began) / draws
            print(
                f"{loss:10}{prior:15}{kind:6}{kappa:6g}{alpha:6g}{beta:9.4g}"
                f"{np.mean(errors):9.2f}{np.std(errors, ddof=1):6.2f}{seconds:9.2f}",
                flush=True,
            )


class OverSplits(NamedTuple):
    """The fits of several splits: one entry each, and the mean seconds of a fit."""

    correct: list[float]
    areas: list[float]  # AUC
    iterations: list[int]
    ranks: list[int]
    seconds: float


def over_splits(ratings: Ratings, held_out: float, splits: int, config: FitConfig) -> OverSplits:
    """Fit the first ``splits`` splits, and predict what each holds out."""
    correct = []
    areas = []
    iterations = []
    ranks = []
    began = time.perf_counter()
    for seed in range(splits):
        train, test = split(ratings, held_out, seed)
        fit = fit_arrays(*train, config)
        correct.append(float(np.mean(fit.predict(test.rows, test.cols) == test.labels)))
        areas.append(auc(test.labels, fit.score(test.rows, test.cols)))
        iterations.append(len(fit.history))
        ranks.append(fit.effective_rank)
    return OverSplits(correct, areas, iterations, ranks, (time.perf_counter() - began) / splits)


REAL: dict[str, tuple[Callable[[], Ratings], float, int]] = {
    "ml-100k": (movielens_100k, 5000, 10),
    "ml-1m": (movielens_1m, 0.1, 3),
    "senate": (senate, 0.1, 3),
    "assistments": (assistments, 0.1, 3),
}
PARTS = {
    "κ = 1, no features": FitConfig(rank=10, likelihood_weight=1.0, implicit_features=False),
    "κ chosen, no features": FitConfig(rank=10, implicit_features=False),
    "κ = 1, features": FitConfig(rank=10, likelihood_weight=1.0),
    "all chosen (default)": FitConfig(),
}
CHOICES = {"chosen": FitConfig(), **{f"rank {rank}": FitConfig(rank=rank) for rank in (10, 20, 32)}}
SIMULATED = ("A2", "B2", "B3")


def real(splits: int | None, losses: list[str]) -> None:
    print(
        f"{'data':16}{'loss':10}{'intercepts':>11}{'correct':>9}{'sd':>8}{'AUC':>8}{'iterations':>11}{'rank':>5}{'seconds':>9}"
    )
    for name, (load, held_out, usual) in REAL.items():
        ratings = load()
        for loss in losses:
            for intercepts in (True, False):
                config = FitConfig(loss=loss, intercepts=intercepts)
                found = over_splits(ratings, held_out, splits or usual, config)
                print(
                    f"{name:16}{loss:10}{intercepts!s:>11}{np.mean(found.correct):9.4f}"
                    f"{np.std(found.correct, ddof=1):8.4f}{np.mean(found.areas):8.4f}{np.mean(found.iterations):11.0f}"
                    f"{np.median(found.ranks):5.0f}{found.seconds:9.1f}",
                    flush=True,
                )


def parts(splits: int | None, names: list[str], device: str, keep: bool) -> None:
    """Accuracy, AUC, log loss and calibration error: without and with implicit features, a chosen
    κ, all chosen.
    """
    print(
        f"{'data':16}{'model':23}{'correct':>9}{'sd':>8}{'AUC':>8}{'log loss':>10}{'calibration':>12}{'κ':>14}"
        f"{'rank':>12}{'iterations':>11}{'seconds':>9}"
    )
    for name in names:
        load, held_out, usual = REAL[name]
        ratings = load()
        for label, config in PARTS.items():
            lines = []
            chosen = []
            began = time.perf_counter()
            for seed in range(splits or usual):
                train, test = split(ratings, held_out, seed)
                fit = fit_arrays(*train, config, device=device)
                probability = fit.probability(test.rows, test.cols)
                correct = float(np.mean(fit.predict(test.rows, test.cols) == test.labels))
                error = reliability(test.labels, probability).error
                area = auc(test.labels, fit.score(test.rows, test.cols))
                lines.append(
                    (correct, area, log_loss(test.labels, probability), error, len(fit.history))
                )
                chosen.append((kappa_of(fit.config), fit.config.factors))
            seconds = (time.perf_counter() - began) / len(lines)
            mean = np.mean(lines, axis=0)
            spread = np.std(lines, axis=0, ddof=1)
            told = [
                " to ".join(f"{value:g}" for value in sorted({min(of), max(of)}))
                for of in zip(*chosen, strict=True)
            ]
            print(
                f"{name:16}{label:23}{mean[0]:9.4f}{spread[0]:8.4f}{mean[1]:8.4f}{mean[2]:10.4f}{mean[3]:12.4f}"
                f"{told[0]:>14}{told[1]:>12}{mean[4]:11.0f}{seconds:9.1f}",
                flush=True,
            )
            if keep:
                figures = dict(
                    zip(
                        ("correct", "auc", "log_loss", "calibration", "iterations"),
                        mean,
                        strict=True,
                    )
                )
                figures |= {"sd": spread[0], "held_out": held_out, "splits": len(lines)}
                save("accuracy", name, label, {**figures, "weights": told[0], "ranks": told[1]})


def choices(splits: int | None, names: list[str], device: str) -> None:
    """What a tenth of the ratings chooses: everything, or all but the rank. Simulated data have the
    true rank 3.

    Iterations of the nine tenths, then of all ratings. The seconds have both, and whatever was
    tried.
    """
    print(
        f"{'data':16}{'model':10}{'correct':>9}{'sd':>8}{'AUC':>8}{'log loss':>10}{'calibration':>12}{'rank':>12}"
        f"{'κ':>14}{'features':>9}{'iterations':>12}{'seconds':>9}"
    )
    for name in names:
        for label, config in CHOICES.items():
            lines = []
            chosen = []
            began = 0.0
            for seed in range(splits or (REAL[name][2] if name in REAL else 10)):
                train, test = parts_of(name, seed)
                began -= time.perf_counter()
                fit = fit_arrays(*train, config, device=device)
                began += time.perf_counter()
                probability = fit.probability(test.rows, test.cols)
                correct = float(np.mean(fit.predict(test.rows, test.cols) == test.labels))
                error = reliability(test.labels, probability).error
                before = 0 if fit.info.choice is None else fit.info.choice["earlier"]
                area = auc(test.labels, fit.score(test.rows, test.cols))
                lines.append(
                    (
                        correct,
                        area,
                        log_loss(test.labels, probability),
                        error,
                        before,
                        len(fit.history),
                    )
                )
                chosen.append(
                    (fit.config.rank, kappa_of(fit.config), int(fit.config.implicit_features))
                )
            mean = np.mean(lines, axis=0)
            spread = np.std(lines, axis=0, ddof=1)
            told = [
                " ".join(f"{value:g}" for value in sorted(set(values)))
                for values in zip(*chosen, strict=True)
            ]
            print(
                f"{name:16}{label:10}{mean[0]:9.4f}{spread[0]:8.4f}{mean[1]:8.4f}{mean[2]:10.4f}{mean[3]:12.4f}"
                f"{told[0]:>12}{told[1]:>14}{told[2]:>9}{f'{mean[4]:.0f} + {mean[5]:.0f}':>12}"
                f"{began / len(lines):9.1f}",
                flush=True,
            )


def parts_of(name: str, seed: int) -> tuple[Ratings, Ratings]:
    """Ratings to fit, and others to predict.

    A simulated matrix is fitted to a fifth of its cells.
    """
    if name in REAL:
        load, held_out, _ = REAL[name]
        return split(load(), held_out, seed)
    made = simulate(name, rank=3, fraction=1.0, seed=seed)
    cells = Ratings(made.rows, made.cols, made.labels)
    fitted = len(cells.rows) // 5
    places = np.arange(len(cells.rows))
    return cells.take(places[:fitted]), cells.take(places[fitted:])


def priors(splits: int | None, losses: list[str]) -> None:
    """Which prior, which rank: MovieLens-100K, 5,000 ratings held out, the same splits for all."""
    print(
        f"{'loss':10}{'prior':15}{'rank':>5}{'correct':>9}{'sd':>8}{'AUC':>8}{'effective':>10}{'seconds':>9}"
    )
    data = movielens_100k()
    for loss in losses:
        for prior in PRIORS:
            for rank in (2, 5, 10, 20):
                found = over_splits(
                    data, 5000, splits or 3, FitConfig(loss=loss, prior=prior, rank=rank)
                )
                print(
                    f"{loss:10}{prior:15}{rank:5}{np.mean(found.correct):9.4f}{np.std(found.correct, ddof=1):8.4f}"
                    f"{np.mean(found.areas):8.4f}{np.median(found.ranks):10.0f}{found.seconds:9.1f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("simulated", "real", "parts", "choices", "priors"))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first draw")
    parser.add_argument(
        "--loss", nargs="+", default=["logistic", "hinge"], help="losses on the real data sets"
    )
    parser.add_argument("--splits", type=int, help="splits of each data set (default 10 or 3)")
    known = [*REAL, *SIMULATED]
    parser.add_argument(
        "--sets", nargs="+", choices=known, default=known, help="data sets of parts and choices"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of parts and choices"
    )
    parser.add_argument("--save", action="store_true", help="those of parts, into results.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    print(provenance())
    if options.what == "simulated":
        simulated(options.draws, options.rank, options.seed)
    elif options.what == "real":
        real(options.splits, options.loss)
    elif options.what == "parts":
        parts(
            options.splits,
            [name for name in options.sets if name in REAL],
            options.device,
            options.save,
        )
    elif options.what == "choices":
        choices(options.splits, options.sets, options.device)
    else:
        priors(options.splits, options.loss)


if __name__ == "__main__":
    main()
