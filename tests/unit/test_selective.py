"""The fixed-sequence test: exact where it can be enumerated, right as often as it says, and broken variants caught."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from onebit_spark import FitConfig, Terms, fit_arrays
from onebit_spark.certificate.certificates import (
    START,
    Group,
    HeldOut,
    HeldOutCounts,
    certifiable,
    fewest_answered,
    first_level,
    held_out_certificates,
    last_passed,
    request_problems,
    selective_certificates,
)
from onebit_spark.core.prediction import ConfidenceThresholds
from onebit_spark.simulate import simulate

DELTA, REPEATS = 0.2, 1000
LEVELS = 120
SHARES = 1.03 ** -np.arange(LEVELS)
THRESHOLDS = ConfidenceThresholds((1.0, *SHARES[1:].tolist()), (0.0, *np.arange(1.0, LEVELS).tolist()))
MASS = SHARES - np.append(SHARES[1:], 0.0)  # of the ratings whose highest level is j


def most(repeats, delta=DELTA):
    """Violations that a certificate of 1 − δ may show in so many repeats: δ and two standard errors."""
    return delta + 2 * np.sqrt(delta * (1 - delta) / repeats)


# ---- binomial facts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "delta"), [(0.05, 0.05), (0.1, 0.2), (0.3, 0.01)])
def test_the_least_number_that_can_pass(request_, delta):
    n = fewest_answered(request_, delta)
    assert (1 - request_) ** n <= delta < (1 - request_) ** (n - 1)
    for size, passing in ((n, True), (n - 1, False)):
        held = HeldOut(np.array([size]), np.array([0]), 0.4)
        assert (last_passed((1.0,), held, request_, delta) == 0) is passing


def test_one_level_passes_with_probability_delta_at_most():
    """All 2^n outcomes of n ratings that are wrong with probability r exactly."""
    n, r, delta = 12, 0.2, 0.15
    passing = 0.0
    for outcome in itertools.product((0, 1), repeat=n):
        held = HeldOut(np.array([n]), np.array([sum(outcome)]), 0.4)
        if last_passed((1.0,), held, r, delta) is not None:
            passing += r ** sum(outcome) * (1 - r) ** (n - sum(outcome))
    assert 0.05 < passing <= delta


def test_the_test_begins_by_the_number_of_ratings_alone_and_stops_at_the_first_failure():
    n, r = 4000, 0.1
    start = first_level(SHARES, n, r, 0.05)
    assert n * SHARES[start + 1] < START * fewest_answered(r, 0.05) <= n * SHARES[start]
    few = 3 * fewest_answered(r, 0.05)
    assert few * SHARES[first_level(SHARES, few, r, 0.05)] < 2 * fewest_answered(r, 0.05)
    answered = np.round(n * SHARES).astype(int)
    good = np.round(0.05 * answered).astype(int)
    assert last_passed(SHARES, HeldOut(answered, good, 0.4), r, 0.05) == 0
    hole = good.copy()
    hole[start - 7] = answered[start - 7] // 2
    assert last_passed(SHARES, HeldOut(answered, hole, 0.4), r, 0.05) == start - 6
    hole = good.copy()
    hole[start + 1 :] = answered[start + 1 :]  # levels above the start are not tested
    assert last_passed(SHARES, HeldOut(answered, hole, 0.4), r, 0.05) == 0
    hole[start] = answered[start]
    assert last_passed(SHARES, HeldOut(answered, hole, 0.4), r, 0.05) is None


# ---- how often it is wrong -------------------------------------------------------------------------------------------

# The error rate of the ratings whose highest level is j, and so R(t), which need not be monotone.
CURVES = {
    "rising": np.linspace(0.35, 0.0, LEVELS),
    "always at the request": np.full(LEVELS, 0.1001),
    "a bump": 0.06 + 0.3 * np.exp(-0.5 * ((np.arange(LEVELS) - 40) / 6) ** 2),
    "worst where it is surest": np.where(np.arange(LEVELS) > 60, 0.2, 0.02),
}


def true_risk(curve):
    """R(t) of every level."""
    return np.cumsum((MASS * curve)[::-1])[::-1] / np.cumsum(MASS[::-1])[::-1]


def drawn(rng, curve, n):
    level = rng.choice(LEVELS, n, p=MASS / MASS.sum())
    return level, rng.random(n) < curve[level]


def violations(choose, curve, requests=(0.1,), n=1500, repeats=REPEATS):
    """How often any request's level has R(t) above it."""
    rng, risk, count = np.random.default_rng(7), true_risk(curve), 0
    for _ in range(repeats):
        level, wrong = drawn(rng, curve, n)
        held = HeldOut.counted(level, 1, wrong, wrong, LEVELS)
        chosen = [(choose(held, r), r) for r in requests]
        count += any(j is not None and risk[j] > r for j, r in chosen)
    return count / repeats


def sequence(delta):
    return lambda held, r: last_passed(SHARES, held, r, delta)


@pytest.mark.parametrize("name", CURVES)
def test_it_is_wrong_with_probability_delta_at_most(name):
    assert violations(sequence(DELTA), CURVES[name]) <= most(REPEATS)


def test_it_is_not_loose():
    """At R(t) just above the request everywhere the first level decides, and uses δ up as far as integers allow."""
    fewest = int(1500 * SHARES[first_level(SHARES, 1500, 0.1, DELTA)])
    level = binom.cdf(binom.ppf(DELTA, fewest, 0.1) - 1, fewest, 0.1)
    assert violations(sequence(DELTA), CURVES["always at the request"]) > 0.5 * level > 0.03


def best_of_all(held, r):
    """Broken: any level that passes, chosen by what was seen, each at the whole δ."""
    passing = np.flatnonzero(binom.cdf(held.wrong, held.answered, r) <= DELTA)
    return passing[0] if len(passing) else None


def test_a_level_chosen_by_its_errors_is_caught():
    broken = violations(best_of_all, CURVES["always at the request"])
    assert broken > most(REPEATS) + 0.1


def test_thresholds_from_the_held_out_ratings_are_caught():
    """Broken: the threshold ends just before the first error that would fail, between the ratings themselves."""
    rng, n, r, bad = np.random.default_rng(3), 400, 0.1, 0
    for _ in range(REPEATS):
        wrong = rng.random(n) < 0.1001  # in the order of their confidence, which says nothing here
        counts = np.arange(1, n + 1)
        passing = binom.cdf(np.cumsum(wrong), counts, r) <= DELTA
        bad += passing.any()
    assert bad / REPEATS > most(REPEATS) + 0.1


def test_requests_share_delta():
    """Together they are wrong with probability δ at most; each at the whole δ, more often."""
    curve, requests = CURVES["rising"], (0.1, 0.14, 0.18, 0.22)
    assert violations(sequence(DELTA / len(requests)), curve, requests, repeats=400) <= most(400)
    held = HeldOut.counted(*_sample(), LEVELS)
    several = selective_certificates(THRESHOLDS, held, Terms(delta=DELTA, grid=3), requests)
    for item, request_ in zip(several, requests, strict=True):
        (alone,) = selective_certificates(THRESHOLDS, held, Terms(delta=DELTA / 12), [request_])
        assert item.inputs["threshold"] == alone.inputs["threshold"]
        assert item.inputs["delta_share"] == pytest.approx(DELTA / 12)
        assert item.delta == DELTA
    flat, several = np.full(LEVELS, 0.1001), (0.1, 0.0999, 0.1 - 1e-6, 0.1 - 1e-9)
    unshared = [violations(sequence(DELTA), flat, [r], n=1500 + 40 * k) for k, r in enumerate(several)]
    assert 1 - np.prod(1 - np.array(unshared)) > most(REPEATS)  # four independent requests at the whole δ each


@pytest.mark.parametrize("repeats", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_delta_is_over_all_requests_met_or_not(repeats):
    """Labels are switched with 30%, and 29.99% are asked for, in four groups: whatever is met is wrong.

    That some request is met has a probability of at most δ. At the whole δ for each group it would be far more; and a
    met request that is read as if it stood alone is wrong for sure.
    """
    rng, shape, n, request = np.random.default_rng(0), (40, 32), 2000, 0.2999
    signs = np.sign(rng.normal(size=shape[0])[:, None] * rng.normal(size=shape[1]))
    rows, cols = np.indices(shape).reshape(2, -1)
    fit = fit_arrays(rows, cols, signs[rows, cols], FitConfig(rank=1, max_iter=10, tol=0))
    met, alone = [], []
    for _ in range(repeats):
        rows, cols = (rng.integers(size, size=n) for size in shape)
        labels = signs[rows, cols] * np.where(rng.random(n) < 0.3, -1, 1)
        found = fit.certify(rows, cols, labels, Terms(delta=DELTA), [request], cols % 4)
        inside = [item for item in found if item.name == "selective" and item.inputs["group"]]
        assert {item.inputs["requests"] for item in inside} == {4}
        met.append(any(item.inputs["threshold"] is not None for item in inside))
        for group in range(4):
            part = cols % 4 == group
            own = fit.certify(rows[part], cols[part], labels[part], Terms(delta=DELTA), [request])[1]
            alone.append(own.inputs["threshold"] is not None)
    assert np.mean(met) <= most(repeats) < np.mean(np.reshape(alone, (repeats, 4)).any(axis=1))


def _sample(n=4000, curve="rising", seed=5):
    level, wrong = drawn(np.random.default_rng(seed), CURVES[curve], n)
    return level, 1, wrong, np.random.default_rng(0).random(n) < 0.4


# ---- certificates ----------------------------------------------------------------------------------------------------


def test_a_request_that_is_met():
    held = HeldOut.counted(*_sample(), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, held, Terms(), [0.2])
    told = item.as_dict()
    level = THRESHOLDS.values.index(told["threshold"])
    assert (told["name"], told["bound"], told["request"], told["group"], told["vacuous"]) == (
        "selective", 0.2, 0.2, None, False,
    )  # fmt: skip
    assert told["n_answered"] == held.answered[level]
    assert told["errors"] == held.wrong[level]
    assert binom.cdf(told["errors"], told["n_answered"], 0.2) <= 0.05
    assert binom.cdf(held.wrong[level - 1], held.answered[level - 1], 0.2) > 0.05
    assert item.statement == (
        "With 95% confidence, at most 20% of the predictions that it answers are wrong, on ratings like those that "
        f"were kept out; it answered {told['answered_share']:.1%} of 4,000, and "
        f"{told['errors'] / told['n_answered']:.1%} of these were wrong."
    )
    dull = HeldOut(held.answered, held.wrong, 0.15)
    (item,) = selective_certificates(THRESHOLDS, dull, Terms(), [0.2])
    assert item.vacuous
    assert "This limit is not informative" in item.statement


def test_a_request_that_cannot_be_met_answers_nothing_and_hints():
    held = HeldOut.counted(*_sample(curve="worst where it is surest"), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, held, Terms(), [0.05])
    told = item.as_dict()
    assert (told["threshold"], told["n_answered"], told["answered_share"], told["bound"]) == (None, 0, 0.0, 1.0)
    assert item.vacuous
    assert told["hint"] == 0.3
    assert "A request of 30% might be met (a hint, not a certificate" in item.statement
    (met,) = selective_certificates(THRESHOLDS, held, Terms(), [told["hint"]])
    assert met.inputs["threshold"] is not None
    few = HeldOut.counted(*_sample(20), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, few, Terms(), [0.05])
    assert "20 ratings are too few, at least 59 are needed; so nothing is answered" in item.statement


def test_groups_are_counted_by_their_sizes():
    sizes = {Group("g", str(k)): n for k, n in enumerate((500, 40, 400, 2, 30))}
    kept = certifiable(sizes, 0.1, 0.05)
    assert {group.value for group in kept} == {"0", "1", "2"}
    assert min(sizes[group] for group in kept) >= fewest_answered(0.1, 0.05 / 3)
    assert sizes[Group("g", "4")] < fewest_answered(0.1, 0.05 / 4)
    assert certifiable({Group("g", "a"): 3}, 0.1, 0.05) == set()


def test_groups_share_delta_and_small_ones_are_named():
    held = {Group("age", name): HeldOut.counted(*_sample(n, seed=n), LEVELS) for name, n in (("old", 3000), ("new", 4))}
    held[Group("age", None)] = HeldOut.counted(*_sample(2000, seed=1), LEVELS)
    whole = HeldOut.counted(*_sample(5004), LEVELS)
    counts = HeldOutCounts(whole, held)
    first, *found = held_out_certificates(THRESHOLDS, counts, Terms(delta=0.1, grid=2), [0.2, 0.3])
    assert (first.name, first.n) == ("holdout", 5004)
    told = [(item.name, (item.inputs["group"] or {}).get("value"), item.inputs.get("request")) for item in found]
    assert told == [
        ("selective", None, 0.2), ("selective", None, 0.3),
        ("holdout", "old", None), ("holdout", "new", None), ("holdout", None, None),
        ("selective", "old", 0.2), ("selective", "old", 0.3), ("selective", "new", None),
        ("selective", None, 0.2), ("selective", None, 0.3),
    ]  # fmt: skip
    assert found[0].inputs["group"] is None
    assert found[-1].inputs["group"] == {"column": "age", "value": None}
    assert found[0].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2)
    assert [item.inputs.get("requests") for item in found] == [2, 2, None, None, None, 4, 4, None, 4, 4]
    assert found[0].statement.endswith("The 90% is for all 2 requests together, met or not.")
    assert found[5].statement.endswith("The 90% is for all 4 requests of groups together, met or not.")
    assert found[2].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2)
    assert found[5].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2 / 2)
    assert binom.cdf(found[2].inputs["errors"], 3000, found[2].bound) == pytest.approx(0.025)
    assert found[3].statement == "Where age is new: 4 held-out ratings are too few to certify, at least 6 are needed."
    assert found[3].vacuous
    assert found[4].statement.startswith("Where age is missing: with 90% confidence, the model's predictions")
    assert f"with a confidence of {found[5].inputs['threshold']:.4g} or more" in found[5].statement


def test_error_rates_are_checked():
    assert request_problems((0.1, 1e-6)) == []
    assert len(request_problems((0, 0.5, True, "x", float("nan")))) == 5


# ---- in process ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def divided():
    made = simulate("B1", rank=2, shape=(120, 100), fraction=0.6, seed=1)
    order = np.random.default_rng(0).permutation(len(made.rows))
    parts = [
        tuple(each[index] for each in (made.rows, made.cols, made.labels)) for index in (order[:4000], order[4000:])
    ]
    return fit_arrays(*parts[0], FitConfig(rank=2, max_iter=15, tol=0)), parts[1]


def test_in_process(divided):
    fit, held = divided
    groups = np.where(held[0] % 3 == 0, "third", "rest")
    found = fit.certify(*held, Terms(delta=0.1), max_error=(0.02, 0.0001), groups=groups)
    assert [item.name for item in found] == ["holdout", "selective", "selective", *["holdout"] * 2, *["selective"] * 4]
    met, unmet = found[1:3]
    answered = fit.answered(held[0], held[1], met)
    wrong = fit.predict(held[0], held[1]) != held[2]
    assert 0.2 < answered.mean() < 1
    assert (answered.sum(), wrong[answered].sum()) == (met.inputs["n_answered"], met.inputs["errors"])
    assert not fit.answered(held[0], held[1], unmet).any()
    assert wrong[answered].mean() < 0.02 < wrong.mean()
    inside = found[5]
    assert inside.n == np.sum(groups == "rest")
    for name, told in (("max_error", {"max_error": [0.6]}), ("delta", {"terms": Terms(delta=2.0)})):
        with pytest.raises(ValueError, match=name):
            fit.certify(*held, **told)
    one_class = held[2] > 0
    assert fit.certify(*(each[one_class] for each in held))[0].n == one_class.sum()
