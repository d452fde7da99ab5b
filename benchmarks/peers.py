"""Accuracy and seconds beside LIBMF, LightFM, implicit and myFM, from a CSV file to factors, on a
90/10 split.

    pip install '.[peers]'
    python benchmarks/peers.py [--data ml-100k ml-1m senate assistments congress] [--repeats 5]
    python benchmarks/peers.py --methods LIBMF myFM --settings "20 epochs" "200 samples"     # some of them
    python benchmarks/peers.py --save                    # puts the figures into results.json, for pages.py

All are given the same file, read it in the same way and use all cores. Of a peer, the setting that
is best *on the test ratings* is shown, which is generous to it. Ours has one setting. The AUC is
that of the same setting. "passed after": the fewest iterations after which ours is more accurate
than the peer, and what they take, reading included. A peer that is not installed is left out.

LIBMF (Chin et al., 2015): logistic and squared hinge loss, k 10 and 32, 20 and 50 epochs, L2
penalty .04 and .1 (its L1 default switches the logistic loss off). LightFM (Kula, 2015; as
``lightfm-next``, which installs on current Pythons): logistic loss, 10 and 32 components, 20 and 50
epochs. implicit (Frederickson): its ALS, dislikes as negative preferences, 10 and 32 factors, 15
and 30 iterations, the sign of the score or of the score − ½. myFM (Ohtsuki): a Bayesian
factorisation machine with a probit link, by Gibbs sampling; users, items, and who rated what,
scaled by the root of the number of ratings; rank 10, 200 and 500 samples, the last nine tenths of
them kept. It and ours give probabilities, so their log loss on the test ratings is shown as well.
Seconds are medians; a fit that takes minutes is timed once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from datasets import Ratings, assistments, congress, movielens_1m, movielens_100k, senate, split
from numpy.typing import NDArray
from record import provenance, save

from onebit_spark import FitConfig, NotConverged, fit_arrays
from onebit_spark.predict.metrics import auc
from onebit_spark.settings import available_cores

DATA: dict[str, Callable[[], Ratings]] = {
    "ml-100k": movielens_100k,
    "ml-1m": movielens_1m,
    "senate": senate,
    "assistments": assistments,
    "congress": congress,
}
OURS = "onebit_spark"
LONG = 120.0  # seconds
Scores = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
Fit = Callable[[Path, tuple[int, int]], Scores]  # from a file, and the numbers of rows and columns


def read(path: Path) -> Ratings:
    table = pc.read_csv(path)
    return Ratings(*(table[name].to_numpy() for name in ("row", "col", "label")))


def libmf(loss: str, k: int, epochs: int, penalty: float) -> Fit:
    quiet = contextlib.redirect_stdout(io.StringIO())
    # It would take our first argument for its library
    with quiet, patch.object(sys, "argv", sys.argv[:1]):
        from libmf import mf
    kind = {"logistic": mf.P_LR_MFC, "squared hinge": mf.P_L2_MFC}[loss]
    penalties = {"lambda_p1": 0.0, "lambda_q1": 0.0, "lambda_p2": penalty, "lambda_q2": penalty}

    def fit(path: Path, shape: tuple[int, int]) -> Scores:
        ratings = read(path)
        model = mf.MF(
            fun=kind, k=k, nr_iters=epochs, nr_threads=available_cores(), quiet=True, **penalties
        )
        model.fit(np.column_stack(ratings).astype(np.float32))
        # By its factors: the package's own predict() returns something else. Rows beyond the last
        # one rated have none.
        rows_of, cols_of = (
            np.pad(np.nan_to_num(factors), ((0, size - len(factors)), (0, 0)))
            for factors, size in zip((model.p_factors(), model.q_factors()), shape, strict=True)
        )
        return lambda rows, cols: np.einsum("lk,lk->l", rows_of[rows], cols_of[cols]).astype(
            np.float64
        )

    return fit


def lightfm(k: int, epochs: int) -> Fit:
    from lightfm import LightFM
    from scipy.sparse import coo_matrix

    def fit(path: Path, shape: tuple[int, int]) -> Scores:
        ratings = read(path)
        cells = coo_matrix((ratings.labels.astype(np.float32), (ratings.rows, ratings.cols)), shape)
        model = LightFM(no_components=k, loss="logistic", random_state=0)
        model.fit(cells, epochs=epochs, num_threads=available_cores())
        return lambda rows, cols: model.predict(
            rows.astype(np.int32), cols.astype(np.int32)
        ).astype(np.float64)

    return fit


def implicit(k: int, iterations: int, shift: float) -> Fit:
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    def fit(path: Path, shape: tuple[int, int]) -> Scores:
        ratings = read(path)
        cells = csr_matrix((ratings.labels.astype(np.float32), (ratings.rows, ratings.cols)), shape)
        model = AlternatingLeastSquares(factors=k, iterations=iterations, random_state=0)
        model.fit(cells, show_progress=False)
        users = np.asarray(model.user_factors)
        items = np.asarray(model.item_factors)
        return lambda rows, cols: (
            np.einsum("lk,lk->l", users[rows], items[cols]).astype(np.float64) - shift
        )

    return fit


def myfm(k: int, samples: int) -> Fit:
    from myfm import MyFMGibbsClassifier, RelationBlock
    from scipy.sparse import csr_matrix, diags, hstack, identity

    def known(cells: csr_matrix) -> csr_matrix:
        """One line per row: the row itself, and what it rated, of length 1."""
        shares = diags(1.0 / np.sqrt(np.maximum(np.diff(cells.indptr), 1)))
        return csr_matrix(hstack([identity(cells.shape[0]), shares @ cells]))

    def fit(path: Path, shape: tuple[int, int]) -> Scores:
        ratings = read(path)
        cells = csr_matrix((np.ones(len(ratings.rows)), (ratings.rows, ratings.cols)), shape)
        users = known(cells)
        items = known(csr_matrix(cells.T))

        def blocks(rows: NDArray[np.int64], cols: NDArray[np.int64]) -> list[RelationBlock]:
            return [RelationBlock(rows.tolist(), users), RelationBlock(cols.tolist(), items)]

        model = MyFMGibbsClassifier(rank=k, random_seed=0)
        pairs = blocks(ratings.rows, ratings.cols)
        with contextlib.redirect_stderr(io.StringIO()):  # its progress
            model.fit(
                None,
                ratings.labels > 0,
                X_rel=pairs,
                n_iter=samples,
                n_kept_samples=samples * 9 // 10,
            )
        return lambda rows, cols: log_odds(model.predict_proba(None, X_rel=blocks(rows, cols)))

    return fit


def log_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(p) - np.log1p(-p)


def ours(iterations: int | None = None) -> Fit:
    config = FitConfig() if iterations is None else FitConfig(max_iter=iterations, tol=0)

    def fit(path: Path, shape: tuple[int, int]) -> Scores:
        fitted = fit_arrays(*read(path), config, shape=shape)
        return lambda rows, cols: log_odds(fitted.probability(rows, cols))

    return fit


def peers() -> Iterator[tuple[str, list[tuple[str, Callable[[], Fit]]]]]:
    """Every peer with its settings."""
    libmfs = product(("logistic", "squared hinge"), (10, 32), (20, 50), (0.04, 0.1))
    yield (
        "LIBMF",
        [
            (f"{loss}, k {k}, {n} epochs, λ {l2:g}", partial(libmf, loss, k, n, l2))
            for loss, k, n, l2 in libmfs
        ],
    )
    yield (
        "LightFM",
        [(f"k {k}, {n} epochs", partial(lightfm, k, n)) for k, n in product((10, 32), (20, 50))],
    )
    implicits = product((10, 32), (15, 30), (0.0, 0.5))
    yield (
        "implicit ALS",
        [
            (f"k {k}, {n} iterations, score − {shift:g}", partial(implicit, k, n, shift))
            for k, n, shift in implicits
        ],
    )
    yield "myFM", [(f"rank 10, {n} samples", partial(myfm, 10, n)) for n in (200, 500)]


class Figures(NamedTuple):
    """How well test ratings are predicted."""

    correct: float
    auc: float
    log_loss: float  # of scores that are log-odds


def figures(scores: Scores, test: Ratings, majority: int) -> Figures:
    found = scores(test.rows, test.cols)
    correct = float(np.mean(np.where(found == 0, majority, np.sign(found)) == test.labels))
    return Figures(
        correct, auc(test.labels, found), float(np.mean(np.logaddexp(0.0, -test.labels * found)))
    )


def timed(fit: Fit, path: Path, shape: tuple[int, int]) -> tuple[Scores, float]:
    began = time.perf_counter()
    scores = fit(path, shape)
    return scores, time.perf_counter() - began


def again(first: float, fit: Fit, path: Path, shape: tuple[int, int], repeats: int) -> float:
    """Median seconds of more runs.

    The first is not counted, unless it took minutes. NaN of 0 repeats.
    """
    if repeats and first > LONG:
        return first
    return statistics.median([timed(fit, path, shape)[1] for _ in range(repeats)] or [float("nan")])


def passing(
    target: float, path: Path, shape: tuple[int, int], test: Ratings, majority: int
) -> int | None:
    """The fewest iterations after which ours is more accurate."""
    for n in range(1, 31):
        if figures(ours(n)(path, shape), test, majority).correct > target:
            return n
    return None


def compare(name: str, options: argparse.Namespace) -> None:
    train, test = split(DATA[name](), 0.1, seed=0)
    n_rows, n_cols = (int(max(train[side].max(), test[side].max())) + 1 for side in (0, 1))
    shape = n_rows, n_cols
    majority = 1 if np.mean(train.labels) >= 0 else -1

    def keep(method: str, of: Figures, seconds: float, **more: float) -> None:
        if options.save:
            took = {"seconds": seconds} if options.repeats else {}
            save("peers", name, method, {"correct": of.correct, "auc": of.auc, **took, **more})

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.csv"
        pc.write_csv(pa.table(dict(zip(("row", "col", "label"), train, strict=True))), path)
        print(f"\n# {name}: {len(train.rows):,} ratings to fit, {len(test.rows):,} to test")
        if OURS in options.methods:
            scores, first = timed(ours(), path, shape)
            own = figures(scores, test, majority)
            seconds = again(first, ours(), path, shape, options.repeats)
            told = (
                f"{own.correct:.4f} correct, AUC {own.auc:.4f}, {seconds:6.2f} s (log loss "
                f"{own.log_loss:.4f})"
            )
            print(f"{OURS + ', as it comes':<28} {told}", flush=True)
            keep(OURS, own, seconds, log_loss=own.log_loss)
        for peer, settings in peers():
            if peer not in options.methods:
                continue
            settings = [
                each for each in settings if any(text in each[0] for text in options.settings)
            ]
            tried = []
            try:
                for told, make in settings:
                    scores, first = timed(make(), path, shape)
                    tried.append((figures(scores, test, majority), told, make, first))
            except ImportError as error:
                print(f"{peer:<28} not installed ({error})")
                continue
            best, told, make, first = max(tried, key=lambda one: one[0].correct)
            more = {"log_loss": best.log_loss} if peer == "myFM" else {}
            told += "".join(f", log loss {value:.4f}" for value in more.values())
            took = again(first, make(), path, shape, options.repeats)
            print(
                f"{peer:<28} {best.correct:.4f} correct, AUC {best.auc:.4f}, {took:6.2f} s "
                f"({told})",
                flush=True,
            )
            keep(peer, best, took, **more)
            if OURS in options.methods:
                n = passing(best.correct, path, shape, test, majority)
                passed = "never"
                if n is not None:
                    passed = f"after {n}, {again(0.0, ours(n), path, shape, options.repeats):.2f} s"
                print(f"{'':<28} passed by ours: {passed}", flush=True)


def main() -> None:
    methods = [OURS, *(peer for peer, _ in peers())]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument(
        "--repeats", type=int, default=5, help="0: no seconds, on a machine with other work"
    )
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument(
        "--settings", nargs="+", default=[""], help="those of peers that contain one of these texts"
    )
    parser.add_argument("--save", action="store_true", help="into results.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    warnings.simplefilter("ignore", RuntimeWarning)  # implicit's advice about BLAS threads
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as implicit asks for
    print(provenance())
    for name in options.data:
        compare(name, options)


if __name__ == "__main__":
    main()
