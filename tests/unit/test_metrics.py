import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from onebit_spark.predict.metrics import (
    auc,
    brier,
    class_figures,
    error_interval,
    error_rate,
    hinge_loss,
    log_loss,
)

# few distinct scores, so that ties and zeros are common
PAIRS = st.lists(st.tuples(st.sampled_from([-1, 1]), st.integers(-3, 3)), min_size=1, max_size=30)
PROBABILITIES = st.lists(
    st.tuples(st.sampled_from([-1, 1]), st.floats(0, 1)), min_size=1, max_size=30
)


def enumerated_auc(labels, scores):
    """Every positive against every negative: 1 for a larger score, ½ for a tie."""
    positive = [s for y, s in zip(labels, scores, strict=True) if y == 1]
    negative = [s for y, s in zip(labels, scores, strict=True) if y == -1]
    wins = [1.0 if p > q else 0.5 if p == q else 0.0 for p, q in product(positive, negative)]
    return sum(wins) / len(wins) if wins else math.nan


@settings(deadline=None)
@given(PAIRS)
def test_error_hinge_and_auc_match_enumeration(pairs):
    y, s = zip(*pairs, strict=True)
    assert error_rate(y, s) == sum(a * b <= 0 for a, b in pairs) / len(pairs)
    assert hinge_loss(y, s) == pytest.approx(sum(max(0, 1 - a * b) for a, b in pairs) / len(pairs))
    assert auc(y, s) == pytest.approx(enumerated_auc(y, s), nan_ok=True)


@settings(deadline=None)
@given(PAIRS)
def test_auc_sees_only_the_order_and_mirrors(pairs):
    y, s = (np.array(a) for a in zip(*pairs, strict=True))
    assert auc(y, np.exp(s)) == pytest.approx(auc(y, s), nan_ok=True)
    assert auc(y, -s) == pytest.approx(1 - auc(y, s), nan_ok=True)
    assert auc(-y, -s) == pytest.approx(auc(y, s), nan_ok=True)


@settings(deadline=None)
@given(PROBABILITIES)
def test_probability_losses_match_the_definition(pairs):
    y, p = zip(*pairs, strict=True)
    chosen = [b if a == 1 else 1 - b for a, b in pairs]  # the probability given to what happened
    assert brier(y, p) == pytest.approx(sum((1 - q) ** 2 for q in chosen) / len(pairs))
    expected = sum(-math.log(min(max(q, 1e-15), 1 - 1e-15)) for q in chosen) / len(pairs)
    assert log_loss(y, p) == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_log_loss_is_finite_and_accurate_at_the_ends():
    assert log_loss([1, -1], [1.0, 0.0]) == pytest.approx(0, abs=2e-15)
    assert log_loss([1], [0.0]) == pytest.approx(-math.log(1e-15))
    assert log_loss([-1], [1.0]) == pytest.approx(-math.log(1e-15), rel=1e-3)
    # log(1 − p) would keep 4 digits
    assert log_loss([-1], [1e-12]) == pytest.approx(1e-12, rel=1e-9)


def test_a_score_of_zero_is_an_error():
    assert error_rate([1, -1], [0.0, -0.0]) == 1
    assert error_rate(np.array([1, -1], np.int8), np.array([1e-300, -1e-300])) == 0


def test_figures_of_the_classes_by_brute_force():
    """Scores with ties; every threshold is tried."""
    rng = np.random.default_rng(3)
    scores = rng.integers(-4, 5, 300) / 2
    labels = np.where(rng.random(300) < 0.2, 1, -1)
    scores += (labels > 0) * rng.integers(0, 2, 300)
    place = np.unique(scores, return_inverse=True)[1]
    counts = [np.bincount(place[labels == sign], minlength=place.max() + 1) for sign in (1, -1)]
    found = class_figures(
        *counts, int(np.sum(scores > 0)), int(np.sum((scores > 0) != (labels > 0)))
    )
    for prefix, s, y in (("", scores, labels), ("negative_", -scores, -labels)):
        predicted = s > 0 if not prefix else s >= 0  # a score of 0 is predicted negative here
        assert found[f"{prefix}precision"] == pytest.approx(np.mean(y[predicted] > 0))
        assert found[f"{prefix}recall"] == pytest.approx(np.mean(predicted[y > 0]))
        area = 0.0
        before = 0.0
        for t in np.unique(s)[::-1]:
            recall = np.mean(s[y > 0] >= t)
            area = area + (recall - before) * np.mean(y[s >= t] > 0)
            before = recall
        assert found[f"{prefix}average_precision"] == pytest.approx(area)
    nothing = class_figures(np.array([0, 0]), np.array([3, 2]), 0, 0)
    assert (nothing["precision"], nothing["recall"], nothing["average_precision"]) == (
        None,
        None,
        None,
    )
    assert (
        nothing["negative_precision"],
        nothing["negative_recall"],
        nothing["negative_average_precision"],
    ) == (
        1,
        1,
        1,
    )


def bisect(f, target):
    """The p in [0, 1] where the increasing f reaches the target."""
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return low


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 20), (3, 20), (20, 20), (417, 5000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_interval_inverts_the_binomial(k, n, confidence):
    tail = (1 - confidence) / 2
    low, high = error_interval(k, n, confidence)
    assert low == pytest.approx(
        0 if k == 0 else bisect(lambda p: binom.sf(k - 1, n, p), tail), abs=1e-10
    )
    assert high == pytest.approx(
        1 if k == n else bisect(lambda p: -binom.cdf(k, n, p), -tail), abs=1e-10
    )


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5])
def test_interval_covers_at_least_as_often_as_it_says(p):
    n = 40
    intervals = [error_interval(k, n, 0.9) for k in range(n + 1)]
    covered = sum(binom.pmf(k, n, p) for k, (low, high) in enumerate(intervals) if low <= p <= high)
    assert covered >= 0.9


@pytest.mark.parametrize("arguments", [(0, 0), (-1, 5), (6, 5), (1, 5, 1.0), (1, 5, 0.0)])
def test_interval_rejects_nonsense(arguments):
    with pytest.raises(ValueError, match=r"must lie|at least one trial"):
        error_interval(*arguments)
