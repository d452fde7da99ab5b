"""What to ask next: the columns whose answers say most about a row, by mutual information
(docs/MATH.md, §17).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import entr, ndtr

from onebit_spark.core.posterior import FloatArray
from onebit_spark.data.id_index import IdIndex
from onebit_spark.errors import refuse
from onebit_spark.model_info import ModelInfo
from onebit_spark.predict.factors import Factors
from onebit_spark.settings import is_integer

Matrix = NDArray[np.float64]

# Sums over equally spaced points converge exponentially. Up to the standard deviation WIDE the
# points are placed by the posterior. Beyond it they are placed by the functions of the score, which
# change only near 0.
WIDE = 1.5
STEP = 0.75
NODES = STEP * np.arange(-8, 9)  # standard deviations
WEIGHTS = np.exp(-(NODES**2) / 2)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
WIDE_STEP = WIDE * STEP
WIDE_NODES = WIDE_STEP * np.arange(-16, 17, dtype=np.float64)  # scores


def coin(score: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The probability of a positive answer σ(u), its entropy in nats, and σ'(u)."""
    power = np.exp(-np.abs(score))
    rarer = power / (1 + power)
    entropy = np.log1p(power) + np.abs(score) * rarer
    return np.where(score > 0, 1 - rarer, rarer), entropy, rarer / (1 + power)


_, WIDE_ENTROPY, WIDE_CURVATURE = coin(WIDE_NODES)


def information(mean: Matrix, variance: Matrix) -> tuple[Matrix, Matrix]:
    """I and E σ'(u) of u ~ N(mean, variance), in nats, with errors below 1e-5 at any variance.

    For wide posteriors E σ(u) is P(t < u) with t of density σ'.
    """
    std = np.sqrt(np.maximum(variance, 0.0))
    near = np.flatnonzero(std <= WIDE)
    wide = np.flatnonzero(std > WIDE)
    probability, entropy, curvature = np.empty((3, len(mean)))
    values = coin(mean[near, None] + std[near, None] * NODES)
    probability[near], entropy[near], curvature[near] = (each @ WEIGHTS for each in values)
    distance = (mean[wide, None] - WIDE_NODES) / std[wide, None]
    density = np.exp(-(distance**2) / 2) * (WIDE_STEP / np.sqrt(2 * np.pi)) / std[wide, None]
    probability[wide] = ndtr(distance) @ (WIDE_CURVATURE / WIDE_CURVATURE.sum())
    entropy[wide] = density @ WIDE_ENTROPY
    curvature[wide] = density @ WIDE_CURVATURE
    gain = entr(probability) + entr(1 - probability) - entropy
    return np.maximum(gain, 0.0), curvature


def best_questions(
    mean: FloatArray,
    covariance: FloatArray,
    columns: FloatArray,
    intercepts: bool,
    n: int,
    allowed: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], Matrix]:
    """The n columns to ask a row with this posterior, in order, and the information of each given
    those before.
    """
    x = columns.astype(np.float64)
    offset = np.zeros(len(columns))
    if intercepts:
        offset = x[:, 0].copy()
        x = np.insert(x[:, 1:], 0, 1.0, axis=1)
    c = covariance.astype(np.float64)
    score = offset + x @ mean
    variance = np.einsum("ja,ja->j", x @ c, x)
    left = np.flatnonzero(allowed)
    chosen = np.empty(min(n, len(left)), np.int64)
    gains = np.empty(min(n, len(left)))
    for number in range(len(chosen)):
        gain, curvature = information(score[left], variance[left])
        best = int(np.argmax(gain))
        j = int(left[best])
        gains[number] = gain[best]
        along = c @ x[j]
        share = curvature[best] / (1.0 + curvature[best] * variance[j])
        c = c - share * np.outer(along, along)
        variance = variance - share * (x @ along) ** 2
        chosen[number], left = j, np.delete(left, best)
    return chosen, gains


def ask_next(
    factors: Factors,
    users: pa.Array,
    n: int,
    seen: tuple[pa.Array, pa.Array] | None = None,
    items: pa.Array | None = None,
) -> pa.Table:
    """The table of ``FittedModel.next_questions``; ``users`` are different. Pairs of ``seen`` are
    not asked.
    """
    refuse(question_problems(factors.info, n))
    known = factors.items.known
    allowed = np.full(known.n_rows, items is None)
    if items is not None:
        places = factors.items.positions(items)
        allowed[places[places >= 0]] = True
    seen_by = np.zeros((0, 2), np.int64)
    if seen is not None:
        of = IdIndex(users).find(seen[0])
        seen_by = np.column_stack([of, factors.items.positions(seen[1])])
        seen_by = seen_by[(seen_by >= 0).all(axis=1)]
    seen_by = seen_by[np.argsort(seen_by[:, 0], kind="stable")]
    bounds = np.searchsorted(seen_by[:, 0], np.arange(len(users) + 1))
    chosen = [np.zeros(0, np.int64)]
    gains = [np.zeros(0)]
    for place, row in enumerate(factors.users.positions(users)):
        may = allowed.copy()
        may[seen_by[bounds[place] : bounds[place + 1], 1]] = False
        own = factors.users.at(np.array([row]))
        form = known.location, known.has_intercept
        best, gain = best_questions(own.location[0], own.covariance[0], *form, n, may)
        chosen.append(best)
        gains.append(gain)
    lengths = [len(best) for best in chosen[1:]]
    ranks = [np.arange(1, length + 1) for length in lengths]
    return pa.table(
        {
            "user": users.take(pa.array(np.repeat(np.arange(len(users)), lengths))),
            "rank": np.concatenate([chosen[0], *ranks]),
            "item": factors.items.ids.take(pa.array(np.concatenate(chosen))),
            "information": np.concatenate(gains),
        }
    )


def question_problems(info: ModelInfo, n: int) -> list[str]:
    problems = (
        [] if is_integer(n) and n >= 1 else [f"n must be an integer of at least 1, not {n!r}"]
    )
    if info.config.loss != "logistic":
        problems.append(
            "questions need the logistic loss, whose scores have probabilities; this model has "
            "the hinge"
        )
    return problems
