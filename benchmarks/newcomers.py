"""New users and items: a tenth of them is kept out of the fit, and predicted from side features and
from few ratings.

    python benchmarks/newcomers.py [--splits 3] [--save]      # ONEBIT_DATA: folder of the data sets, default ./data

Of each new id, ten ratings are set aside in a random order. The first 0, 1, 3 or 10 of them are
folded in (the row update from the prior, docs/MATH.md, §8.3), without and with side features. All
its other ratings are predicted: error, log loss and AUC. LightFM, if it is installed (extra
``peers``), gets the same features beside an indicator per id, with categories as 0 and 1; logistic
loss, 30 epochs, the better of 10 and 32 components on the *test* ratings. It has no fold-in: it is
fitted anew with the ratings.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from datasets import Ratings, assistments, folder, movielens_100k
from numpy.typing import NDArray
from record import provenance, save

from onebit_spark import FitConfig, FittedModel, NotConverged, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.features import newcomer_means
from onebit_spark.core.losses import Side
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.scores import compute_probabilities, compute_scores, compute_variances
from onebit_spark.core.setup import kappa_of, loss_of
from onebit_spark.data.features import learn_coding
from onebit_spark.model_info import coding_of
from onebit_spark.predict.metrics import auc
from onebit_spark.predict.new_ratings import converged_rows

FOLDED = (0, 1, 3, 10)
SHARE = 0.1


class Case(NamedTuple):
    """Who is new, and what is known of all ids of that side."""

    name: str
    ratings: Ratings
    side: Side
    features: pa.Table | None  # without ids: one line per row or column


def cases() -> Iterator[Case]:
    films = movielens_100k()
    for side, name, column in (("rows", "users", "user"), ("cols", "items", "item")):
        table = pq.read_table(folder() / "ml-100k" / f"{name}.parquet").sort_by(column)
        yield Case(f"MovieLens-100K, new {name}", films, side, table.drop_columns([column]))  # type: ignore[arg-type]
    answers = assistments()
    yield Case("ASSISTments 2017, new problems", answers, "cols", _skills())
    yield Case("ASSISTments 2017, new students", answers, "rows", None)


def _skills() -> pa.Table:
    table = pq.read_table(folder() / "assist2017" / "problems.parquet").sort_by("problem")
    return table.drop_columns(["problem"])


class Division(NamedTuple):
    """Which ratings are fitted, and the place of each other one in the random order of its
    new id.
    """

    fitted: NDArray[np.bool_]
    place: NDArray[np.int64]


def divided(case: Case, seed: int) -> Division:
    rng = np.random.default_rng(seed)
    own = getattr(case.ratings, case.side)
    size = int(own.max()) + 1
    new = np.zeros(size, bool)
    new[rng.choice(size, round(SHARE * size), replace=False)] = True
    order = np.lexsort((rng.random(len(own)), own))
    first = np.searchsorted(own[order], own[order], side="left")
    place = np.empty(len(own), np.int64)
    place[order] = np.arange(len(own)) - first
    return Division(~new[own], place)


def fitted(case: Case, chosen: NDArray[np.bool_], with_features: bool) -> FittedModel:
    r = case.ratings
    given: dict[str, Any] = {f"{case.side[:-1]}_features": case.features} if with_features else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        return fit_arrays(
            r.rows[chosen], r.cols[chosen], r.labels[chosen], FitConfig(), shape(case), **given
        )


def shape(case: Case) -> tuple[int, int]:
    return int(case.ratings.rows.max()) + 1, int(case.ratings.cols.max()) + 1


def folded(
    fit: FittedModel, case: Case, given: NDArray[np.bool_], known: NDArray[np.float64] | None
) -> RowPosterior:
    """The posterior of the side with the given ratings of new ids folded in."""
    own = fit.rows if case.side == "rows" else fit.cols
    if not given.any():
        return own
    r = case.ratings
    partners = fit.cols if case.side == "rows" else fit.rows
    index = (r.rows, r.cols) if case.side == "rows" else (r.cols, r.rows)
    block = RatingBlock.from_coordinates(
        index[0][given], index[1][given], r.labels[given] > 0, (own.n_rows, partners.n_rows)
    )
    prior = fit.scales.row_prior(case.side)
    told = None
    moments = fit.scales.moments
    assert moments is not None
    centre = moments.implicit_moments(case.side)
    if partners.implicit is not None and centre is not None:
        told = newcomer_means(block, partners, centre[0], moments.typical(case.side))
    zero = np.zeros((own.n_rows, own.dimension))
    prior = prior.shifted_by(zero if known is None else known, told)
    settled = converged_rows(
        loss_of(fit.config), block, partners, case.side, kappa_of(fit.config), prior
    )
    made = own.copy()
    new = block.row_counts > 0
    made.location[new], made.scale[new] = settled.location[new], settled.scale[new]
    return made


def figures(
    probability: NDArray[np.float64], labels: NDArray[np.int8]
) -> tuple[float, float, float]:
    """Error, log loss and AUC."""
    p = np.clip(probability, 1e-9, 1 - 1e-9)
    loss = float(-np.mean(np.log(np.where(labels > 0, p, 1 - p))))
    return float(np.mean((p > 0.5) != (labels > 0))), loss, auc(labels, probability)


def ours(case: Case, division: Division, with_features: bool) -> list[tuple[float, float, float]]:
    fit = fitted(case, division.fitted, with_features)
    r = case.ratings
    test = ~division.fitted & (division.place >= max(FOLDED))
    known = None
    if with_features:
        assert case.features is not None
        coding = coding_of(fit.info, "user" if case.side == "rows" else "item")
        known = coding.coded(case.features) @ fit.scales.features[case.side]
    found = []
    for n in FOLDED:
        own = folded(fit, case, ~division.fitted & (division.place < n), known)
        other = fit.cols if case.side == "rows" else fit.rows
        index = (
            (r.rows[test], r.cols[test]) if case.side == "rows" else (r.cols[test], r.rows[test])
        )
        pair = own.take(index[0]), other.take(index[1])
        score = compute_scores(*pair)
        variance = compute_variances(*pair)
        found.append(
            figures(compute_probabilities(fit.config.loss, score, variance), r.labels[test])
        )
    return found


def _indicators(coded: NDArray[np.floating]) -> NDArray[np.floating]:
    """Columns of two values as 0 and 1, which LightFM expects of categories; other columns stay
    standardised.
    """
    low = coded.min(axis=0)
    high = coded.max(axis=0)
    two_values = np.all((coded == low) | (coded == high), axis=0)
    return np.where(two_values, (coded == high).astype(float), coded)


def lightfm(
    case: Case, division: Division, with_features: bool
) -> list[tuple[float, float, float]]:
    from lightfm import LightFM

    r = case.ratings
    size = shape(case)
    test = ~division.fitted & (division.place >= max(FOLDED))
    of_side = sp.identity(size[0 if case.side == "rows" else 1], np.float32, "csr")
    if with_features:
        assert case.features is not None
        coded = learn_coding(case.features, "")[0].coded(case.features)
        of_side = sp.hstack([of_side, sp.csr_matrix(_indicators(coded))], "csr")
    given = {"user_features" if case.side == "rows" else "item_features": of_side}
    found = []
    for n in FOLDED:
        chosen = division.fitted | (division.place < n)
        cells = sp.coo_matrix(
            (r.labels[chosen].astype(np.float32), (r.rows[chosen], r.cols[chosen])), size
        )
        best = None
        for k in (10, 32):
            model = LightFM(no_components=k, loss="logistic", random_state=0)
            model.fit(cells, epochs=30, num_threads=1, **given)
            scores = model.predict(
                r.rows[test].astype(np.int32), r.cols[test].astype(np.int32), **given
            )
            told = figures(1 / (1 + np.exp(-scores.astype(float))), r.labels[test])
            best = told if best is None or told[1] < best[1] else best
        assert best is not None
        found.append(best)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="ours, into results.json")
    arguments = parser.parse_args()
    print(provenance())
    head = "".join(f"{f'{n} ratings':>23}" for n in FOLDED)
    for case in cases():
        print(f"\n{case.name}: error / log loss / AUC\n{'':26}{head}")
        methods = {"ours": ours, **({"LightFM": lightfm} if find_spec("lightfm") else {})}
        for name, method in methods.items():
            for with_features in (False, True) if case.features is not None else (False,):
                seeds = range(arguments.first_seed, arguments.first_seed + arguments.splits)
                mean = np.mean(
                    [method(case, divided(case, seed), with_features) for seed in seeds], axis=0
                )
                told = "".join(
                    f"{f'{error:.4f}/{loss:.4f}/{area:.4f}':>23}" for error, loss, area in mean
                )
                print(f"{name + (', side features' if with_features else ''):26}{told}", flush=True)
                if arguments.save and name == "ours":
                    names = (
                        f"{n} {figure}" for n in FOLDED for figure in ("error", "log loss", "AUC")
                    )
                    found = dict(zip(names, mean.ravel(), strict=True))
                    save(
                        "newcomers", case.name, "side features" if with_features else "none", found
                    )


if __name__ == "__main__":
    main()
