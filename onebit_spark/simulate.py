"""Simulated binary matrices with a known truth: the paper's simulations (Section 6).

``python -m onebit_spark.simulate FOLDER`` writes the files that the guides use.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebit_spark.predict.metrics import error_rate

KINDS = ("A1", "A2", "A3", "B1", "B2", "B3")


@dataclass(frozen=True, eq=False)
class Simulation:
    """Observed labels and the true matrix M. For example type A of rank 1, with 4 of 6 cells and no
    noise::

            truth M          observed          rows    [1, 0, 1, 0]
         +1  −1  +1        +1   ·  +1          cols    [1, 2, 2, 0]
         −1  +1  −1         ·  +1  −1          labels  [+1, +1, −1, +1]

    The cells are distinct and in random order. So the first n of them are a random sample, for any
    n.
    """

    rows: NDArray[np.int64]  # row of each observed cell
    cols: NDArray[np.int64]  # its column
    labels: NDArray[np.int8]  # its label, ±1
    truth: NDArray[np.float64]  # M, m1 × m2

    @property
    def bayes_sign(self) -> NDArray[np.int8]:
        """sign(M) as ±1, the best prediction of every cell under each kind of noise."""
        return _sign(self.truth)

    def error(self, score_matrix: ArrayLike) -> float:
        """Share of all cells, observed or not, where the sign of the score is not sign(M).

        A score of 0 is an error.
        """
        scores = np.asarray(score_matrix, dtype=np.float64)
        if scores.shape != self.truth.shape:
            raise ValueError(f"scores have shape {scores.shape}, the truth {self.truth.shape}")
        return error_rate(self.bayes_sign.ravel(), scores.ravel())


def simulate(
    kind: str,
    rank: int = 3,
    shape: tuple[int, int] = (200, 200),
    fraction: float = 0.2,
    switch: float = 0.1,
    seed: int = 0,
) -> Simulation:
    """Draw M (m1 × m2), choose round(fraction·m1·m2) of its cells without replacement, and label
    them::

        Y_l = sign(M_{i_l, j_l} + Z_l) B_l

    One seed gives one M, one order of the cells and one draw of the noise for all kinds of noise,
    fractions and switch levels of a type. So these can be compared on the same random numbers. M
    has rank r, unless ±1 columns of a very short matrix are equal by chance. ``kind`` is the type
    of M, then the type of the noise:

    - A: r random columns of ±1; each other column is one of them, chosen at random, times a random
      sign.
    - B: M = L Rᵀ, where the entries of L (m1×r) and R (m2×r) are N(0, 1).
    - 1: no noise (B = 1, Z = 0).
    - 2: switch noise, P(B = −1) = ``switch``, which is at most ½.
    - 3: logistic noise, Z ~ Logistic, so that P(Y = 1) = σ(M). The paper calls A3 a switch noise
      "with probability
      e/(1+e) ≈ .73"; that is the probability of *keeping* the label.
    """
    _check(kind, rank, shape, fraction, switch)
    (m1, m2) = shape
    n_cells = shape[0] * shape[1]
    matrix_rng, cell_rng, noise_rng = np.random.default_rng(seed).spawn(3)
    if kind[0] == "A":
        basis = matrix_rng.choice([-1.0, 1.0], size=(m1, rank))
        copies = basis[:, matrix_rng.integers(rank, size=m2 - rank)] * matrix_rng.choice(
            [-1.0, 1.0], size=m2 - rank
        )
        truth = np.hstack([basis, copies])
    else:
        truth = matrix_rng.standard_normal((m1, rank)) @ matrix_rng.standard_normal((m2, rank)).T
    rows, cols = np.divmod(cell_rng.permutation(n_cells)[: round(fraction * n_cells)], m2)
    clean = truth[rows, cols]
    if kind[1] == "1":
        labels = _sign(clean)
    elif kind[1] == "2":
        labels = np.where(noise_rng.random(clean.size) < switch, -_sign(clean), _sign(clean))
    else:
        labels = _sign(clean + noise_rng.logistic(size=clean.size))
    return Simulation(rows, cols, labels, truth)


def _sign(x: NDArray[np.float64]) -> NDArray[np.int8]:
    """±1. An exact 0, which has probability 0 here, becomes +1."""
    return np.where(x >= 0, 1, -1).astype(np.int8)


def _check(kind: str, rank: int, shape: tuple[int, int], fraction: float, switch: float) -> None:
    wrong = []
    if kind not in KINDS:
        wrong.append(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= rank <= min(shape):
        wrong.append(f"rank must lie in 1..{min(shape)} for the shape {shape}, got {rank}")
    if not 0 < fraction <= 1:
        wrong.append(f"fraction must lie in (0, 1], got {fraction}")
    elif round(fraction * shape[0] * shape[1]) == 0:
        wrong.append(f"fraction {fraction} of the shape {shape} is not a single cell")
    if not 0 <= switch <= 0.5:
        wrong.append(
            "switch must lie in [0, ½], beyond which sign(M) is not the best prediction, got "
            f"{switch}"
        )
    if wrong:
        raise ValueError("; ".join(wrong))


# ---- files for the guides ----------------------------------------------------------------------


def write_files(
    folder: Path, n_users: int = 400, n_items: int = 250, n_ratings: int = 40_000, seed: int = 0
) -> None:
    """Write tables of ratings with 3 hidden factors and logistic noise::

    ratings.parquet     eight tenths of the ratings: user, item, label (±1), stars (> 3.5: +1)
    held_out.parquet    one tenth, to evaluate and certify with
    incoming/           one tenth, as ratings that come later
    pairs.parquet       user and item of the held-out ratings
    films.parquet       features of the items: item, year, genre; new_films.parquet: of two more
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    drawn = simulate("B3", 3, (n_users, n_items), n_ratings / (n_users * n_items), seed=seed)
    rng = np.random.default_rng(seed)
    names = np.array(["ann", "bob", *(f"user {number}" for number in range(2, n_users))])
    stars = np.where(drawn.labels > 0, rng.integers(4, 6, n_ratings), rng.integers(1, 4, n_ratings))
    ratings = pa.table(
        {"user": names[drawn.rows], "item": drawn.cols, "label": drawn.labels, "stars": stars}
    )
    tenth = n_ratings // 10
    held_out = ratings.slice(0, tenth)
    later = ratings.slice(tenth, tenth)
    items = np.arange(n_items + 2)
    genres = np.array(["comedy", "drama", "documentary"])[items % 3]
    films = pa.table({"item": items, "year": 1950 + items % 70, "genre": genres})
    (folder / "incoming").mkdir(parents=True, exist_ok=True)
    for name, table in {
        "ratings.parquet": ratings.slice(2 * tenth),
        "held_out.parquet": held_out,
        "incoming/today.parquet": later,
        "pairs.parquet": held_out.select(["user", "item"]),
        "films.parquet": films.slice(0, n_items),
        "new_films.parquet": films.slice(n_items),
    }.items():
        pq.write_table(table, folder / name)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m onebit_spark.simulate", description="Write simulated ratings to try out."
    )
    parser.add_argument(
        "folder", nargs="?", default=".", type=Path, help="folder for the files (default: .)"
    )
    for name, default in (("users", 400), ("items", 250), ("ratings", 40_000), ("seed", 0)):
        parser.add_argument(f"--{name}", default=default, type=int, help=f"(default: {default})")
    chosen = parser.parse_args(argv)
    write_files(chosen.folder, chosen.users, chosen.items, chosen.ratings, chosen.seed)
    print(f"wrote ratings.parquet, held_out.parquet, pairs.parquet and others to {chosen.folder}")


if __name__ == "__main__":
    main()
