"""Positions: how often their error bars cover, what they find in Congress, how long they take, and
what to ask next.

    python benchmarks/positions.py coverage [--draws 20] [--save]      # item response data whose truth is known
    python benchmarks/positions.py congress                # 10⁷ votes; ONEBIT_DATA: folder of the data sets
    python benchmarks/positions.py large                   # 11,785 × 36,259, 2% observed, simulated: seconds
    python benchmarks/positions.py questions               # users kept out: chosen answers beside random ones
    python benchmarks/positions.py probabilities           # log loss with the spreads of the fit, and of positions

Coverage: the share of the true abilities within ±1.96 standard deviations, after the linear map
that aligns the axes, and the standard deviation of error/std; "raw" with the covariances of the
fit.
"""

from __future__ import annotations

import argparse
import logging
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Ratings, assistments, folder, movielens_1m, movielens_100k, senate, split
from numpy.typing import NDArray
from record import provenance, save
from spread import own_curvature

from onebit_spark import FitConfig, FittedModel, NotConverged, fit_arrays, load
from onebit_spark.__main__ import main as job
from onebit_spark.core.scores import compute_probabilities, compute_scores, compute_variances
from onebit_spark.core.setup import kappa_of
from onebit_spark.predict.metrics import log_loss
from onebit_spark.predict.questions import best_questions

# Persons, questions, share asked
SCENARIOS = (
    (500, 60, 0.5),
    (2000, 40, 1.0),
    (2000, 200, 0.2),
    (300, 500, 0.3),
)
LARGE = 11_785, 36_259, 0.02
ASKED = 0, 5, 10, 13, 16, 20, 27, 30
NORMAL = 1.96

Positions = NDArray[np.float64]


# ---- coverage ----------------------------------------------------------------------------------


def responses(n: int, m: int, share: float, seed: int, dims: int) -> tuple[Positions, Ratings]:
    """Abilities of n persons, and their answers to the questions that each was asked."""
    rng = np.random.default_rng(seed)
    ability = rng.standard_normal((n, dims))
    slope = np.stack([rng.lognormal(0, 0.3, m) * 1.2, rng.standard_normal(m) * 0.8][:dims], axis=1)
    rows, cols = np.nonzero(rng.random((n, m)) < share)
    score = (ability @ slope.T + rng.standard_normal(m))[rows, cols]
    positive = rng.random(len(rows)) < 1 / (1 + np.exp(-score))
    return ability, Ratings(rows, cols, np.where(positive, 1, -1).astype(np.int8))


def covered(fit: FittedModel, ability: Positions, raw: bool) -> tuple[float, float]:
    """The share of intervals that cover, and the standard deviation of error/std."""
    dims = ability.shape[1]
    if raw:
        users, items = (replace(side, measured=None) for side in (fit.users, fit.items))
        fit = replace(fit, users=users, items=items)
    table = fit.positions(dimensions=dims)
    t, std = (
        np.stack([table[f"dim{d + 1}{end}"].to_numpy() for d in range(dims)], axis=1)
        for end in ("", "_std")
    )
    lines = np.c_[t, np.ones(len(t))]
    to_truth = np.linalg.lstsq(lines, ability, rcond=None)[0]
    z = (ability - lines @ to_truth) / np.sqrt(std**2 @ to_truth[:dims] ** 2)
    return float(np.mean(np.abs(z) < NORMAL)), float(z.std())


def coverage(draws: int, seed: int, keep: bool) -> None:
    print(" persons items asked dims  settings      K     κ           raw     positions")
    for n, m, share in SCENARIOS:
        for dims in (1, 2):
            given: dict[str, dict[str, Any]] = {
                "defaults": {},
                "given rank": {"rank": dims, "likelihood_weight": 1.0},
            }
            for name, settings in given.items():
                lines = []
                for draw in range(seed, seed + draws):
                    ability, ratings = responses(n, m, share, draw, dims)
                    fit = fit_arrays(
                        *ratings, FitConfig(implicit_features=False, **settings), shape=(n, m)
                    )
                    both = (*covered(fit, ability, True), *covered(fit, ability, False))
                    lines.append((fit.config.factors, kappa_of(fit.config), *both))
                k, kappa, raw, raw_z, new, new_z = np.mean(lines, axis=0)
                print(
                    f"{n:8}{m:6}{share:6.0%}{dims:5}  "
                    f"{name:<10}{k:5.1f}{kappa:6.2f}{raw:8.3f}{raw_z:6.2f}"
                    f"{new:8.3f}{new_z:6.2f}",
                    flush=True,
                )
                if keep:
                    figures = {
                        "factors": float(k),
                        "kappa": float(kappa),
                        "before": float(raw),
                        "covered": float(new),
                    }
                    figures |= {"ratio": float(new_z), "draws": draws, "seed": seed}
                    save("positions", f"{n:,} × {m:,}, {share:.0%}", f"{dims}, {name}", figures)


# ---- seconds -----------------------------------------------------------------------------------


def timed(what: str, work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    began = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what}: {seconds:.1f} s, {cpu:.1f} CPU-seconds", flush=True)
    return seconds, cpu


def jobs(
    name: str, keep: bool, ratings: Path, columns: list[str], out: Path, anchors: list[str]
) -> FittedModel:
    """Fit two dimensions by the job, and write positions and a map."""
    plain = [
        "--rank",
        "2",
        "--likelihood-weight",
        "1",
        "--no-implicit-features",
        "--no-report",
        "--quiet",
    ]
    fit = [
        "fit",
        "--ratings",
        str(ratings),
        *columns,
        "--output",
        str(out / "model"),
        *plain,
        "--runtime",
        "local",
    ]
    fitting = timed("fit", lambda: job(fit))
    write = [
        "--output",
        str(out / "positions"),
        "--map",
        str(out / "map.html"),
        *anchors,
        "--runtime",
        "local",
    ]
    writing = timed(
        "positions and map",
        lambda: job(["positions", "--model", str(out / "model"), *write, "--quiet"]),
    )
    if keep:
        (fit_seconds, cpu) = fitting
        seconds = fitting[0] + writing[0]
        save(
            "measuring",
            name,
            "jobs",
            {"seconds": seconds, "fit_seconds": fit_seconds, "cpu": cpu + writing[1]},
        )
    return load(out / "model")


def congress(keep: bool) -> None:
    """Who is where, and who is far from the party, of those with at least 1,000 votes."""
    data = folder() / "congress"
    columns = ["--user-col", "member", "--item-col", "rollcall", "--label-col", "vote"]
    with tempfile.TemporaryDirectory() as scratch:
        model = jobs(
            "congress",
            keep,
            data / "votes.parquet",
            columns,
            Path(scratch),
            ["--anchor", "S000033=-1"],
        )
    table = model.positions(anchors={"S000033": -1})  # Bernard Sanders
    members = {line["member"]: line for line in pq.read_table(data / "members.parquet").to_pylist()}
    print("shares of the dimensions:", table.schema.metadata[b"shares"].decode())
    lines = [
        line | members[line["user"]] for line in table.to_pylist() if line["n_ratings"] >= 1000
    ]
    lines.sort(key=lambda line: line["dim1"])
    means = {
        party: np.mean([line["dim1"] for line in lines if line["party"] == party]) for party in "DR"
    }
    print(
        "mean position by party:", {party: round(float(mean), 2) for party, mean in means.items()}
    )
    middle = sum(means.values()) / 2
    far = [
        line
        for line in lines
        if line["party"] in "DR" and (line["dim1"] > middle) == (line["party"] == "D")
    ]
    for name, some in (("lowest", lines[:8]), ("highest", lines[-8:]), ("beyond the middle", far)):
        print(f"{name}:")
        for line in some:
            print(
                f"  {line['dim1']:6.2f} ± {NORMAL * line['dim1_std']:.2f}  {line['name']} "
                f"({line['party']})"
            )


def large(keep: bool) -> None:
    n, m, share = LARGE
    rng = np.random.default_rng(0)
    rows, cols = np.divmod(rng.choice(n * m, round(share * n * m), replace=False), m)
    ability = rng.standard_normal((n, 2))
    slope = np.c_[rng.lognormal(0, 0.3, m) * 1.2, rng.standard_normal(m) * 0.8]
    score = (ability[rows] * slope[cols]).sum(axis=1) + rng.standard_normal(m)[cols]
    label = (rng.random(len(rows)) < 1 / (1 + np.exp(-score))).astype(np.int8)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "answers.parquet"
        pq.write_table(pa.table({"user": rows, "item": cols, "label": label}), file)
        print(f"{len(rows):,} answers")
        model = jobs("large", keep, file, [], Path(scratch), [])
    print(
        "coverage: {:.3f}, error/std {:.2f}".format(
            *covered(model, ability[model.users.ids.to_numpy()], False)
        )
    )


# ---- what to ask next --------------------------------------------------------------------------


def questions(keep: bool) -> None:
    """Log loss on half of the answers of users that were not fitted, after some of the
    other half.
    """
    for name, ratings in (
        ("ASSISTments 2017", assistments()),
        ("MovieLens-100K", movielens_100k()),
    ):
        rng = np.random.default_rng(0)
        n = int(ratings.rows.max()) + 1
        counts = np.bincount(ratings.rows, minlength=n)
        new = rng.choice(np.flatnonzero(counts >= 2 * ASKED[-1]), 300, replace=False)
        out = np.isin(ratings.rows, new)
        config = FitConfig(rank=10, implicit_features=False, likelihood_weight=1.0)
        fit = fit_arrays(
            *ratings.take(np.flatnonzero(~out)), config, shape=(n, int(ratings.cols.max()) + 1)
        )
        theirs = ratings.take(
            np.flatnonzero(out & (fit.items.positions(pa.array(ratings.cols)) >= 0))
        )
        pool = np.zeros(len(theirs.rows), bool)
        for user in new:
            mine = np.flatnonzero(theirs.rows == user)
            pool[rng.permutation(mine)[: len(mine) // 2]] = True
        for way in ("random", "a list", "one after the other"):
            losses = asked(fit, theirs, pool, new, way)
            print(
                f"{name:<18}{way:<22}{'  '.join(f'{n}: {loss:.4f}' for n, loss in losses.items())}",
                flush=True,
            )
            if keep:
                save("questions", name, way, {f"after_{n}": loss for n, loss in losses.items()})


def asked(
    fit: FittedModel, answers: Ratings, pool: NDArray[np.bool_], users: NDArray[np.int64], way: str
) -> dict[int, float]:
    """The log losses after so many answers of the pool."""
    rng = np.random.default_rng(1)
    given = np.zeros(len(pool), bool)
    losses: dict[int, float] = {}
    columns = fit.items.positions(pa.array(answers.cols))
    prior = fit.users.prior
    known = fit.items.known
    turn = np.full(len(pool), len(pool))  # when an answer is given, if that is known beforehand
    for user in users:
        mine = np.flatnonzero((answers.rows == user) & pool)
        order = rng.permutation(len(mine))
        if way == "a list":
            allowed = np.isin(np.arange(known.n_rows), columns[mine])
            start = prior.location[0], prior.covariance[0]
            chosen = best_questions(
                *start, known.location, known.has_intercept, ASKED[-1], allowed
            )[0]
            order = np.array([np.flatnonzero(columns[mine] == j)[0] for j in chosen])
        turn[mine[order]] = np.arange(len(order))
    for number in range(ASKED[-1] + 1):
        model = fit
        if given.any():
            some = answers.take(np.flatnonzero(given))
            model = fit.fold_in(*some, only_new=True)
        if number in ASKED:
            rest = answers.take(np.flatnonzero(~pool))
            losses[number] = float(log_loss(rest.labels, model.probability(*rest[:2])))
        if way != "one after the other":
            given = turn <= number
            continue
        for user in users:
            left = np.flatnonzero((answers.rows == user) & pool & ~given)
            if not len(left):
                continue
            row = model.users.at(model.users.positions(pa.array([user])))
            allowed = np.isin(np.arange(known.n_rows), columns[left])
            start = row.location[0], row.covariance[0]
            best = best_questions(*start, known.location, known.has_intercept, 1, allowed)[0]
            given[left[columns[left] == best[0]][:1]] = True
    return losses


# ---- probabilities -----------------------------------------------------------------------------


def probabilities() -> None:
    sets = {"MovieLens-100K": movielens_100k, "ASSISTments 2017": assistments, "Senate": senate}
    for name, read in {**sets, "MovieLens-1M": movielens_1m}.items():
        ratings = read()
        fitted, test = split(ratings, 0.1, 0)
        shape = int(ratings.rows.max()) + 1, int(ratings.cols.max()) + 1
        fit = fit_arrays(*fitted, shape=shape)
        losses = []
        for rows, cols in ((fit.rows, fit.cols), own_curvature(fit, fitted)):
            score = np.empty(len(test.rows))
            variance = np.empty(len(test.rows))
            for part in np.array_split(np.arange(len(score)), max(1, len(score) // 10_000)):
                pair = rows.take(test.rows[part]), cols.take(test.cols[part])
                score[part], variance[part] = compute_scores(*pair), compute_variances(*pair)
            losses.append(log_loss(test.labels, compute_probabilities("logistic", score, variance)))
        print(f"{name:<18}fit {losses[0]:.4f}   positions {losses[1]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=("coverage", "congress", "large", "questions", "probabilities")
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    parser.add_argument("--save", action="store_true", help="into results.json, for pages.py")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    # "raw" asks for the spreads of the fit
    logging.getLogger("onebit_spark").setLevel(logging.ERROR)
    print(provenance())
    if asked.what == "coverage":
        coverage(asked.draws, asked.seed, asked.save)
    elif asked.what == "probabilities":
        probabilities()
    else:
        globals()[asked.what](asked.save)


if __name__ == "__main__":
    main()
