"""The bounds and the fixed-sequence test: exact by enumeration, right as often as they say, broken
ones caught.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom
from support.knownrisk import (
    answering,
    calling,
    calling_summary,
    cold_fit,
    experiment,
    later,
    summary,
    warm_fit,
)

from onebit_spark import FitConfig, RequestError, Terms, fit_arrays
from onebit_spark.certify import bounds
from onebit_spark.certify.certificates import (
    DRAWS_SHARE,
    KEPT_CELLS,
    START,
    CallRequest,
    Certificate,
    Group,
    HeldOut,
    HeldOutCounts,
    call_certificates,
    calling_threshold,
    certifiable,
    certificate_document,
    fewest_answered,
    first_level,
    found_limit,
    headline_of,
    held_out_certificates,
    holdout_certificate,
    kept_by_coin,
    last_passed,
    precision_problems,
    precision_requests,
    request_problems,
)
from onebit_spark.core.confidences import ConfidenceThresholds
from onebit_spark.simulate import simulate

DELTA = 0.2


def kl(q, p):
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)


def test_seeger_solves_its_equation():
    bound = bounds.seeger(0.25, 3000.0, 100_000, 0.04)
    assert kl(0.25, bound) == pytest.approx(
        (3000 + math.log(2 * math.sqrt(1e5) / 0.04)) / 1e5, rel=1e-9
    )


def test_the_limit_of_the_draws_holds_for_unequal_probabilities():
    """Errors with probabilities p_l, exactly enumerated as a Poisson-binomial: the limit fails in
    at most δ.
    """
    p = np.linspace(0.01, 0.6, 40)
    law = np.array([1.0])
    for one in p:
        law = np.convolve(law, [1 - one, one])
    for delta in (0.01, 0.2):
        failing = [law[k] for k in range(41) if bounds.gibbs_limit(k, 40, delta) < p.mean()]
        assert 0 < sum(failing) <= delta
    assert kl(0.3, bounds.gibbs_limit(30, 100, 0.01)) == pytest.approx(
        math.log(100) / 100, rel=1e-9
    )


@pytest.mark.parametrize(("n", "delta"), [(1, 0.05), (7, 0.3), (50, 0.05)])
def test_holdout_is_the_exact_binomial_limit(n, delta):
    """At the bound, k or fewer errors have probability δ; over all k it therefore fails with at
    most δ.
    """
    limits = [bounds.holdout(k, n, delta) for k in range(n + 1)]
    assert limits[-1] == 1
    for k, limit in enumerate(limits[:-1]):
        assert binom.cdf(k, n, limit) == pytest.approx(delta, rel=1e-9)
    for risk in (0.1, 0.5, 0.9):
        assert sum(binom.pmf(k, n, risk) for k in range(n + 1) if limits[k] < risk) <= delta


def test_catoni_and_theorem1_by_hand():
    n = 1000
    lam = 200.0
    assert bounds.catoni(0.2, 5.0, n, lam, 0.05) == pytest.approx(
        0.2 + 5 / 200 + 0.025 + math.log(20) / 200
    )
    assert bounds.theorem1(0.7, n, lam, 0.05) == pytest.approx(0.7 + 0.1 + math.log(20) / 200)
    best, at = bounds.catoni_over_grid(0.2, 5.0, n, 0.05)
    share = 0.05 / len(bounds.CATONI_GRID)
    assert best == pytest.approx(bounds.catoni(0.2, 5.0, n, at, share))
    exact = 0.2 + math.sqrt((5 + math.log(1 / share)) / (2 * n))  # the minimum over all λ
    assert exact <= best < exact * 1.01


@pytest.mark.parametrize(
    "bad",
    [
        lambda: bounds.seeger(0.2, 1.0, 100, 0.0),
        lambda: bounds.seeger(0.2, 1.0, 100, 1.0),
        lambda: bounds.seeger(0.2, 1.0, 0, 0.1),
        lambda: bounds.seeger(0.2, -1.0, 100, 0.1),
        lambda: bounds.seeger(1.2, 1.0, 100, 0.1),
        lambda: bounds.catoni(0.2, math.nan, 100, 10.0, 0.1),
        lambda: bounds.catoni(0.2, 1.0, 100, 0.0, 0.1),
        lambda: bounds.holdout(0, 0, 0.1),
        lambda: bounds.holdout(5, 4, 0.1),
        lambda: bounds.gibbs_limit(0, 0, 0.1),
    ],
)
def test_meaningless_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=r"must|needs"):
        bad()


# ---- coverage ----------------------------------------------------------------------------------


@pytest.fixture
def few_draws(monkeypatch):
    """Of the certified risk, and of the true one, which is then known to about .002."""
    monkeypatch.setattr("onebit_spark.core.randomness.ENOUGH_DRAWS", 20_000)
    monkeypatch.setattr("support.knownrisk.SEEDS", 20)


BROKEN = {"no-kl", "fitted"}


def allowed(repeats):
    """δ plus two standard errors; of few fits, what chance exceeds with probability 10⁻³ if each
    violates with δ.
    """
    if repeats >= 400:
        return DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / repeats)
    return binom.isf(1e-3, repeats, DELTA) / repeats


@pytest.mark.parametrize(
    ("loss", "repeats"),
    [
        ("logistic", 10),
        *(pytest.param(loss, 400, marks=pytest.mark.slow) for loss in ("hinge", "logistic")),
    ],
)
def test_certificates_hold(few_draws, loss, repeats):
    """At δ = .2 no certificate is violated more often than chance allows.

    Recipe: tests/support/knownrisk.py.
    """
    config = FitConfig(loss=loss, rank=2, max_iter=8, implicit_features=False)
    violated = summary(experiment(config, 1000, 0.1, repeats, Terms(delta=DELTA)))
    assert {"catoni", "seeger"} <= set(violated)
    for name in set(violated) - BROKEN:
        assert violated[name][0] <= allowed(repeats), name
    if repeats >= 400:
        # Exact, not loose
        assert violated["holdout"][0] >= binom.isf(1 - 1e-3, repeats, DELTA / 3) / repeats
    assert violated["fitted"][0] > allowed(repeats)


@pytest.mark.parametrize("repeats", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_answers_hold(repeats):
    """Two requests, and two groups, at δ = .2: each set of certificates that shares δ is right as
    often as it says.
    """
    violated = summary(
        answering(FitConfig(rank=2, max_iter=10), 4000, 0.1, repeats, DELTA, (0.2, 0.15))
    )
    for name in ("selective", "selective by group", "holdout by group"):
        assert violated[name][0] <= allowed(repeats), name
    assert violated["peeking"][0] > allowed(repeats)


@pytest.mark.parametrize(
    ("world", "repeats"),
    [
        ("8% positive", 12),
        *(pytest.param(w, 400, marks=pytest.mark.slow) for w in ("balanced", "2% positive")),
    ],
)
def test_calls_hold(world, repeats):
    """One precision, two, both classes, and groups, at δ = .2: precision or recall is violated as
    often as it says.
    """
    violated = calling_summary(calling(world, repeats, DELTA))
    for name in ("one request", "two requests", "both classes", "groups"):
        *_, either, met = violated[name]
        assert either <= allowed(repeats), name
        assert met > 0.2
    if repeats >= 400:
        assert violated["observed"][0] > allowed(repeats)


@pytest.mark.parametrize("repeats", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_a_holdout_after_a_warm_start_holds(repeats):
    """The start has learnt nine tenths of the ratings, and the fit is short: what it knew certifies
    nothing.
    """
    config = FitConfig(rank=3, max_iter=12, tol=0, likelihood_weight=4.0)
    violated = summary(later(warm_fit, config, 1200, 0.1, repeats, Terms(delta=DELTA)))
    assert violated["warm start"][0] <= allowed(repeats)
    assert violated["fitted start"][0] > allowed(repeats)


@pytest.mark.parametrize("repeats", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_what_is_predicted_is_certified(repeats):
    """New items are easier than known ones and are not predicted: the certificates are about the
    known ones.
    """
    config = FitConfig(rank=2, max_iter=8, tol=0, likelihood_weight=1.0)
    violated = summary(
        later(cold_fit, config, 800, 0.02, repeats, Terms(delta=DELTA), seed=5, request=0.08)
    )
    for name in ("holdout, predicted", "selective, predicted"):
        assert violated[name][0] <= allowed(repeats), name
    assert violated["holdout, prior"][0] > allowed(repeats)
    if repeats >= 400:
        assert violated["selective, prior"][0] > allowed(repeats)


@pytest.mark.slow
def test_a_bound_without_its_kl_is_caught(few_draws):
    """Labels of pure noise, K = 10, κ = 8: whatever is learnt is wrong half of the time, and fits
    the ratings well.
    """
    noisy = FitConfig(rank=10, likelihood_weight=8.0, max_iter=8, implicit_features=False)
    violated = summary(experiment(noisy, 1000, 0.5, 30, Terms(delta=DELTA)))
    assert violated["seeger"][0] == 0
    assert violated["no-kl"][0] > allowed(30)


# ---- from a fit to its certificates ------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    made = simulate("B2", rank=2, shape=(60, 50), fraction=0.5, seed=1)
    return made.rows, made.cols, made.labels


@pytest.fixture(scope="module")
def certified(data):
    return fit_arrays(
        *data,
        FitConfig(loss="hinge", rank=2, max_iter=20, tol=0, implicit_features=False),
        certify=Terms(),
    )


def test_every_bound_that_applies_with_its_inputs(certified, data):
    found = {item.name: item for item in certified.certificates}
    assert set(found) == {"theorem1", "catoni", "seeger"}
    n = len(data[0])
    last = certified.history[-1]
    seeger = found["seeger"].inputs
    assert seeger["kl"] == last.divergence
    assert seeger["delta_split"] == {"bound": pytest.approx(0.04), "draws": pytest.approx(0.01)}
    trials = n * seeger["draws_per_rating"]
    limit = bounds.gibbs_limit(round(seeger["gibbs_risk"] * trials), trials, 0.01)
    cost = math.log(110 * 111)  # α = m/10 counts the 60 + 50 rows and columns of the sample
    assert found["seeger"].bound == pytest.approx(
        bounds.seeger(limit, last.divergence + cost, n, 0.04)
    )
    avb = (last.objective + cost) / (2 * n)
    assert found["theorem1"].bound == pytest.approx(bounds.theorem1(avb, n, 2.0 * n, 0.05))


def test_a_prior_that_counts_the_sample_is_paid_for(data):
    """log(m(m+1)) nats where α follows from m, nothing where it was given, also where only
    β was.
    """
    config = FitConfig(rank=2, max_iter=4, tol=0, implicit_features=False)
    m = 110
    counted, half, given = (
        fit_arrays(*data, replace(config, **prior), certify=Terms()).certificates
        for prior in ({}, {"beta": 0.03 * m}, {"alpha": 0.1 * m, "beta": 0.03 * m})
    )
    for free, paid, same in zip(given, counted, half, strict=True):
        assert paid.inputs["kl"] == pytest.approx(free.inputs["kl"])
        assert (free.inputs["prior_cost"], paid.inputs["prior_cost"]) == (
            0.0,
            pytest.approx(math.log(m * (m + 1))),
        )
        assert paid.bound > free.bound + 1e-4
        assert same.bound == pytest.approx(paid.bound)


def test_a_declared_grid_is_paid_for(data):
    config = FitConfig(rank=2, max_iter=5, tol=0, implicit_features=False)
    one, many = (
        fit_arrays(*data, config, certify=Terms(grid=grid)).certificates for grid in (1, 100)
    )
    for single, shared in zip(one, many, strict=True):
        assert shared.bound > single.bound
        assert shared.inputs["grid"] == 100
    inputs = many[-1].inputs
    trials = len(data[0]) * inputs["draws_per_rating"]
    limit = bounds.gibbs_limit(
        round(inputs["gibbs_risk"] * trials), trials, DRAWS_SHARE * 0.05 / 100
    )
    expected = bounds.seeger(
        limit, inputs["kl"] + inputs["prior_cost"], len(data[0]), (1 - DRAWS_SHARE) * 0.05 / 100
    )
    assert many[-1].bound == pytest.approx(expected)


@pytest.mark.parametrize(
    "terms", [Terms(delta=0.0), Terms(delta=1.0), Terms(delta=math.nan), Terms(grid=0)]
)
def test_terms_are_checked(terms):
    with pytest.raises(ValueError, match="must"):
        fit_arrays([0, 0], [0, 1], [1, -1], certify=terms)


def test_the_headline_is_fixed_in_advance(certified):
    """holdout, else seeger, whichever is smaller."""
    certificates = [item.as_dict() for item in certified.certificates]
    assert certificate_document(certificates)["headline"] == "seeger"
    held_out = holdout_certificate(3, 10, Terms(), 0.5).as_dict()
    assert held_out["bound"] > certificates[-1]["bound"] or certificates[-1]["vacuous"]
    content = certificate_document([*certificates, held_out])
    assert content["headline"] == "holdout"
    assert headline_of(content) == held_out["statement"]
    assert certificate_document([])["headline"] is None
    of_a_group = {**held_out, "group": {"column": "age", "value": "old"}, "statement": "of a group"}
    assert certificate_document([of_a_group])["headline"] is None
    assert headline_of(certificate_document([of_a_group, held_out])) == held_out["statement"]


@pytest.mark.parametrize(
    ("bound", "majority", "vacuous"), [(0.3, 0.4, False), (0.45, 0.4, True), (0.5, 0.6, True)]
)
def test_vacuous_means_no_better_than_guessing(bound, majority, vacuous):
    item = Certificate(
        name="x",
        bound=bound,
        bounds="",
        over="",
        delta=0.05,
        n=1,
        majority_error=majority,
        statement="",
    )
    assert item.vacuous is vacuous


def test_statements_say_what_they_bound():
    good = holdout_certificate(100, 1000, Terms(), 0.4)
    bad = holdout_certificate(450, 1000, Terms(), 0.4)
    assert good.statement == (
        "With 95% confidence, the model's predictions are wrong on at most 11.7% of ratings like "
        "those that were kept "
        "out; they were wrong on 10.0% of 1,000. The majority class is wrong on 40.0%."
    )
    assert "This limit is not informative" in bad.statement


def test_a_coin_per_cell_certifies_the_cells_that_it_kept_out():
    item = holdout_certificate(100, 1000, Terms(), 0.4)
    once = kept_by_coin(item, repeated=False)
    often = kept_by_coin(item, repeated=True)
    assert once.over == often.over == KEPT_CELLS != item.over
    assert once.statement == item.statement
    assert "not about new ones" in often.statement


REPEATS = 1000
LEVELS = 120
SHARES = 1.03 ** -np.arange(LEVELS)
THRESHOLDS = ConfidenceThresholds(
    (1.0, *SHARES[1:].tolist()), (0.0, *np.arange(1.0, LEVELS).tolist())
)
MASS = SHARES - np.append(SHARES[1:], 0.0)  # of the ratings whose highest level is j


def most(repeats, delta=DELTA):
    """Violations that a certificate of 1 − δ may show in so many repeats: δ and two standard
    errors.
    """
    return delta + 2 * np.sqrt(delta * (1 - delta) / repeats)


# ---- binomial facts ----------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "delta"), [(0.05, 0.05), (0.1, 0.2), (0.3, 0.01)])
def test_the_least_number_that_can_pass(request_, delta):
    n = fewest_answered(request_, delta)
    assert (1 - request_) ** n <= delta < (1 - request_) ** (n - 1)
    for size, passing in ((n, True), (n - 1, False)):
        held = HeldOut(np.array([size]), np.array([0]), 0.4)
        assert (last_passed((1.0,), held, request_, delta) == 0) is passing


def test_one_level_passes_with_probability_delta_at_most():
    """All 2^n outcomes of n ratings that are wrong with probability r exactly."""
    n = 12
    r = 0.2
    delta = 0.15
    passing = 0.0
    for outcome in itertools.product((0, 1), repeat=n):
        held = HeldOut(np.array([n]), np.array([sum(outcome)]), 0.4)
        if last_passed((1.0,), held, r, delta) is not None:
            passing += r ** sum(outcome) * (1 - r) ** (n - sum(outcome))
    assert 0.05 < passing <= delta


def test_the_test_begins_by_the_number_of_ratings_alone_and_stops_at_the_first_failure():
    n = 4000
    r = 0.1
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


# ---- how often it is wrong ---------------------------------------------------------------------

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
    rng = np.random.default_rng(7)
    risk = true_risk(curve)
    count = 0
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
    """At R(t) just above the request everywhere the first level decides, and uses δ up as far as
    integers allow.
    """
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


def test_requests_share_delta():
    """Together they are wrong with probability δ at most; each at the whole δ, more often."""
    curve = CURVES["rising"]
    requests = (0.1, 0.14, 0.18, 0.22)
    assert violations(sequence(DELTA / len(requests)), curve, requests, repeats=400) <= most(400)
    held = HeldOut.counted(*_sample(), LEVELS)
    several = selective_certificates(THRESHOLDS, held, Terms(delta=DELTA, grid=3), requests)
    for item, request_ in zip(several, requests, strict=True):
        (alone,) = selective_certificates(THRESHOLDS, held, Terms(delta=DELTA / 12), [request_])
        assert item.inputs["threshold"] == alone.inputs["threshold"]
        assert item.inputs["delta_share"] == pytest.approx(DELTA / 12)
        assert item.delta == DELTA
    flat = np.full(LEVELS, 0.1001)
    several = (0.1, 0.0999, 0.1 - 1e-6, 0.1 - 1e-9)
    unshared = [
        violations(sequence(DELTA), flat, [r], n=1500 + 40 * k) for k, r in enumerate(several)
    ]
    # Four independent requests at the whole δ each
    assert 1 - np.prod(1 - np.array(unshared)) > most(REPEATS)


@pytest.mark.slow
def test_delta_is_over_all_requests_met_or_not():
    """Labels are switched with 30%, and 29.99% are asked for, in four groups: whatever is met is
    wrong.

    That some request is met has a probability of at most δ. At the whole δ for each group it would
    be far more; and a met request that is read as if it stood alone is wrong for sure.
    """
    rng = np.random.default_rng(0)
    shape = (40, 32)
    n = 2000
    request = 0.2999
    repeats = 400
    signs = np.sign(rng.normal(size=shape[0])[:, None] * rng.normal(size=shape[1]))
    rows, cols = np.indices(shape).reshape(2, -1)
    fit = fit_arrays(rows, cols, signs[rows, cols], FitConfig(rank=1, max_iter=10, tol=0))
    met = []
    alone = []
    for _ in range(repeats):
        rows, cols = (rng.integers(size, size=n) for size in shape)
        labels = signs[rows, cols] * np.where(rng.random(n) < 0.3, -1, 1)
        found = fit.certify(rows, cols, labels, Terms(delta=DELTA), [request], cols % 4)
        inside = [item for item in found if item.name == "selective" and item.inputs["group"]]
        assert {item.inputs["requests"] for item in inside} == {4}
        met.append(any(item.inputs["threshold"] is not None for item in inside))
        for group in range(4):
            part = cols % 4 == group
            own = fit.certify(rows[part], cols[part], labels[part], Terms(delta=DELTA), [request])[
                1
            ]
            alone.append(own.inputs["threshold"] is not None)
    assert np.mean(met) <= most(repeats) < np.mean(np.reshape(alone, (repeats, 4)).any(axis=1))


def selective_certificates(thresholds, held, terms, requests):
    asked = [CallRequest("answered", request_) for request_ in requests]
    return call_certificates({"answered": thresholds}, {"answered": held}, terms, asked)


def _sample(n=4000, curve="rising", seed=5):
    level, wrong = drawn(np.random.default_rng(seed), CURVES[curve], n)
    return level, 1, wrong, np.random.default_rng(0).random(n) < 0.4


# ---- precision ---------------------------------------------------------------------------------

RARE = replace(THRESHOLDS, class_share=0.05)
# The share of positives among the ratings whose highest level is j: 5% of all, most of them at the
# strict end.
POSITIVE = 0.95 * np.clip(np.arange(LEVELS) / (LEVELS - 1), 0, 1) ** 4 + 0.01


def called(n, seed=0):
    level = np.random.default_rng(seed).choice(LEVELS, n, p=MASS / MASS.sum())
    positive = np.random.default_rng(seed + 1).random(n) < POSITIVE[level]
    return HeldOut.counted(level, 1, ~positive, positive, LEVELS)


def precise(held, *requests, terms=None, **more):
    held = {"positive": held, "negative": held}
    thresholds = {"positive": RARE, "negative": RARE}
    return call_certificates(
        thresholds, held, terms or Terms(), precision_requests(list(requests)), **more
    )


def test_requests_of_precisions():
    assert (
        precision_requests(0.9) == precision_requests("0.9") == precision_requests(["positive:.90"])
    )
    assert [str(one) for one in precision_requests("0.9, negative:0.99")] == [
        "0.9",
        "negative:0.99",
    ]
    assert (
        precision_requests(())
        == precision_problems(())
        == precision_problems([0.9, "negative:0.99", 1e-4])
        == []
    )
    wrong = [0, 1, 1.0, True, "x", "both:0.9", float("nan"), -0.5, "0.0"]
    assert len(precision_problems(wrong)) == len(wrong)
    assert precision_problems("0.9;0.8")[0].endswith("such as 0.9 or negative:0.99, not '0.9;0.8'")


def test_the_test_of_a_rare_class_begins_where_its_ratings_might_be():
    """With 10% positives of 2000, about 200 calls can be right: 240 calls could not have a
    precision of .9.
    """
    fewest = fewest_answered(0.1, 0.05)
    start = first_level(SHARES, 2000, 0.1, 0.05, 0.1)
    assert 2000 * SHARES[start + 1] < np.sqrt(200 * fewest) <= 2000 * SHARES[start]
    assert first_level(SHARES, 2000, 0.1, 0.05) < start
    assert first_level(SHARES, fewest - 1, 0.1, 0.05, 0.05) is None


def test_a_precision_that_is_met():
    held = called(20_000)
    (item,) = precise(held, 0.8)
    record = item.as_dict()
    level = RARE.values.index(record["threshold"])
    assert (record["name"], record["class"], record["bound"], record["vacuous"]) == (
        "precision",
        "positive",
        0.8,
        False,
    )
    assert (record["n_answered"], record["errors"]) == (held.answered[level], held.wrong[level])
    assert binom.cdf(record["errors"], record["n_answered"], 0.2) <= 0.025  # half of δ
    assert binom.cdf(held.wrong[level - 1], held.answered[level - 1], 0.2) > 0.025
    n_positive = 20_000 - held.wrong[0]
    found = record["n_answered"] - record["errors"]
    assert (record["n_class"], record["found_share"]) == (
        n_positive,
        pytest.approx(found / n_positive),
    )
    assert record["found_limit"] == pytest.approx(
        found / n_positive - math.sqrt(math.log(40) / (2 * n_positive))
    )
    assert item.statement == (
        "With 95% confidence, at least 80% of the pairs that it calls positive are positive, and "
        "these are at least "
        f"{record['found_limit']:.1%} of all positives, on ratings like those that were kept out; "
        "it called "
        f"{record['answered_share']:.1%} of 20,000 positive, {found / record['n_answered']:.1%} "
        "of these were "
        f"positive, and they were {record['found_share']:.1%} of {n_positive:,} positives. Each "
        "of the two limits has "
        "half of the 5%."
    )
    two = precise(held, 0.8, 0.7, 0.8, "negative:0.3", terms=Terms(grid=2))
    assert [item.inputs["delta_share"] for item in two] == [pytest.approx(0.05 / 6)] * 3
    assert two[0].statement.endswith("The 95% is for all 3 requests together, met or not.")
    dull = precise(held, 0.02)[0]
    assert dull.vacuous
    assert (
        f"not informative: {n_positive / 20_000:.1%} of all ratings are positive." in dull.statement
    )
    (inside,) = precise(held, 0.8, groups=4, group=Group("age", "old"))
    assert inside.statement.startswith(
        "Where age is old: with 95% confidence, at least 80% of the pairs with a"
    )
    assert (
        f"of {inside.inputs['threshold']:.4g} or more for positive are positive" in inside.statement
    )


def test_a_precision_that_cannot_be_met_says_what_might_be():
    held = called(3000)
    (item,) = precise(held, 0.95)
    record = item.as_dict()
    assert (record["threshold"], record["bound"], record["found_limit"], item.vacuous) == (
        None,
        0.0,
        0.0,
        True,
    )
    (met,) = precise(held, record["hint"])
    assert met.inputs["threshold"] is not None
    assert (
        f"; so no pair is called positive. A request of {100 * record['hint']:g}% might be met (a "
        "hint" in item.statement
    )
    scarce = called(300)
    (item,) = precise(scarce, 0.8)
    more = item.inputs["more_needed"]
    assert (
        precise(scarce.times(1 + (more + 1) / item.inputs["n_class"]), 0.8)[0].inputs["threshold"]
        is not None
    )
    assert (
        f"might be met with about {more:,} more held-out positives (a hint, too)." in item.statement
    )
    (item,) = precise(called(40), 0.9)
    n_class = item.inputs["n_class"]
    assert (
        f"could not be certified: {n_class} held-out positives are too few, at least 36 are needed"
        in item.statement
    )
    nothing = HeldOut(np.full(LEVELS, 50), np.full(LEVELS, 50), 0.1)  # no positive at all
    assert precise(nothing, 0.9)[0].inputs["found_share"] == 0


@pytest.mark.parametrize("n", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_the_limit_of_what_is_found_holds_at_all_thresholds_at_once(n):
    """The share below t of n uniform numbers: the limit holds for the t that is chosen to break it,
    in 1 − δ.
    """
    rng = np.random.default_rng(0)
    broken = 0
    pointwise = 0
    for _ in range(2000):
        t = np.sort(rng.random(n))
        k = np.arange(1, n + 1)  # found at t_k: the worst thresholds are the numbers themselves
        broken += any(
            found_limit(found, n, DELTA) > share for found, share in zip(k, t, strict=True)
        )
        # Clopper–Pearson at each threshold
        pointwise += bool(np.any(binom.sf(k - 1, n, t) <= DELTA))
    assert 0.5 * DELTA < broken / 2000 <= most(2000)
    assert pointwise / 2000 > 0.5
    assert found_limit(0, 0, DELTA) == 0


def test_a_request_that_is_repeated_counts_once():
    held = called(20_000)
    once, twice = (
        precise(held, *requests) for requests in ((0.8, 0.7), (0.8, "positive:0.80", 0.7))
    )
    assert twice == once
    assert [item.inputs["requests"] for item in twice] == [2, 2]


def test_which_precision_a_column_has():
    entries = [
        {
            "name": "precision",
            "class": name,
            "group": None,
            "request": request,
            "threshold": threshold,
        }
        for name, request, threshold in (
            ("positive", 0.9, 1.5),
            ("positive", 0.8, -0.5),
            ("positive", 0.9, 1.5),  # certified twice
            ("negative", 0.99, None),
        )
    ]
    certificate = {"certificates": entries}
    assert calling_threshold(certificate, "positive") == 1.5
    assert calling_threshold(certificate, "positive", min_precision="0.8,negative:0.99") == -0.5
    assert calling_threshold(certificate, "negative", min_precision="0.8") == math.inf
    for call, given, message in (
        (
            "positive",
            "0.7",
            "minPrecision 0.7 was not certified for this model: choose one of 0.9, 0.8$",
        ),
        (
            "negative",
            "negative:0.5",
            "minPrecision negative:0.5 was not certified .*: choose one of negative:0.99",
        ),
        ("positive", "high", "minPrecision must hold precisions strictly between 0 and 1"),
        (
            "answered",
            None,
            "no error rate was certified for this model: call certifySelective with fresh "
            "ratings first",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            calling_threshold(certificate, call, min_precision=given)
    with pytest.raises(
        RequestError,
        match="no precision was certified for this model: call certify with minPrecision",
    ):
        calling_threshold({"certificates": []}, "positive")


def test_the_headline_of_a_skewed_set_is_not_the_error_alone():
    calls = [item.as_dict() for item in precise(called(20_000), 0.8, "negative:0.97")]
    for majority_error, sentences in ((0.08, 3), (0.4, 1)):
        first = holdout_certificate(400, 20_000, Terms(), majority_error).as_dict()
        told = [item["statement"] for item in (first, *calls)][:sentences]
        assert headline_of(certificate_document([first, *calls])) == " ".join(told)


# ---- certificates ------------------------------------------------------------------------------


def test_a_request_that_is_met():
    held = HeldOut.counted(*_sample(), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, held, Terms(), [0.2])
    record = item.as_dict()
    level = THRESHOLDS.values.index(record["threshold"])
    assert (
        record["name"],
        record["bound"],
        record["request"],
        record["group"],
        record["vacuous"],
    ) == (
        "selective",
        0.2,
        0.2,
        None,
        False,
    )
    assert record["n_answered"] == held.answered[level]
    assert record["errors"] == held.wrong[level]
    assert binom.cdf(record["errors"], record["n_answered"], 0.2) <= 0.05
    assert binom.cdf(held.wrong[level - 1], held.answered[level - 1], 0.2) > 0.05
    assert item.statement == (
        "With 95% confidence, at most 20% of the predictions that it answers are wrong, on "
        "ratings like those that "
        f"were kept out; it answered {record['answered_share']:.1%} of 4,000, and "
        f"{record['errors'] / record['n_answered']:.1%} of these were wrong."
    )
    dull = HeldOut(held.answered, held.wrong, 0.15)
    (item,) = selective_certificates(THRESHOLDS, dull, Terms(), [0.2])
    assert item.vacuous
    assert "This limit is not informative" in item.statement


def test_a_request_that_cannot_be_met_answers_nothing_and_hints():
    held = HeldOut.counted(*_sample(curve="worst where it is surest"), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, held, Terms(), [0.05])
    record = item.as_dict()
    assert (
        record["threshold"],
        record["n_answered"],
        record["answered_share"],
        record["bound"],
    ) == (None, 0, 0.0, 1.0)
    assert item.vacuous
    assert record["hint"] == 0.3
    assert "A request of 30% might be met (a hint, not a certificate" in item.statement
    (met,) = selective_certificates(THRESHOLDS, held, Terms(), [record["hint"]])
    assert met.inputs["threshold"] is not None
    few = HeldOut.counted(*_sample(20), LEVELS)
    (item,) = selective_certificates(THRESHOLDS, few, Terms(), [0.05])
    assert (
        "20 ratings are too few, at least 59 are needed; so nothing is answered" in item.statement
    )


def test_groups_are_counted_by_their_sizes():
    sizes = {Group("g", str(k)): n for k, n in enumerate((500, 40, 400, 2, 30))}
    kept = certifiable(sizes, 0.1, 0.05)
    assert {group.value for group in kept} == {"0", "1", "2"}
    assert min(sizes[group] for group in kept) >= fewest_answered(0.1, 0.05 / 3)
    assert sizes[Group("g", "4")] < fewest_answered(0.1, 0.05 / 4)
    assert certifiable({Group("g", "a"): 3}, 0.1, 0.05) == set()


def test_groups_share_delta_and_small_ones_are_named():
    held = {
        Group("age", name): HeldOut.counted(*_sample(n, seed=n), LEVELS)
        for name, n in (("old", 3000), ("new", 4))
    }
    held[Group("age", None)] = HeldOut.counted(*_sample(2000, seed=1), LEVELS)
    whole = HeldOut.counted(*_sample(5004), LEVELS)
    counts = HeldOutCounts(
        {"answered": whole}, {group: {"answered": one} for group, one in held.items()}
    )
    requests = [CallRequest("answered", r) for r in (0.2, 0.3)]
    first, *found = held_out_certificates(
        {"answered": THRESHOLDS}, counts, Terms(delta=0.1, grid=2), requests
    )
    assert (first.name, first.n) == ("holdout", 5004)
    listed = [
        (item.name, (item.inputs["group"] or {}).get("value"), item.inputs.get("request"))
        for item in found
    ]
    assert listed == [
        ("selective", None, 0.2),
        ("selective", None, 0.3),
        ("holdout", "old", None),
        ("holdout", "new", None),
        ("holdout", None, None),
        ("selective", "old", 0.2),
        ("selective", "old", 0.3),
        ("selective", "new", None),
        ("selective", None, 0.2),
        ("selective", None, 0.3),
    ]
    assert found[0].inputs["group"] is None
    assert found[-1].inputs["group"] == {"column": "age", "value": None}
    assert found[0].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2)
    assert [item.inputs.get("requests") for item in found] == [
        2,
        2,
        None,
        None,
        None,
        4,
        4,
        None,
        4,
        4,
    ]
    assert found[0].statement.endswith("The 90% is for all 2 requests together, met or not.")
    assert found[5].statement.endswith(
        "The 90% is for all 4 requests of groups together, met or not."
    )
    assert found[2].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2)
    assert found[5].inputs["delta_share"] == pytest.approx(0.1 / 2 / 2 / 2)
    assert binom.cdf(found[2].inputs["errors"], 3000, found[2].bound) == pytest.approx(0.025)
    assert (
        found[3].statement
        == "Where age is new: 4 held-out ratings are too few to certify, at least 6 are needed."
    )
    assert found[3].vacuous
    assert found[4].statement.startswith(
        "Where age is missing: with 90% confidence, the model's predictions"
    )
    assert f"with a confidence of {found[5].inputs['threshold']:.4g} or more" in found[5].statement


def test_error_rates_are_checked():
    assert request_problems((0.1, 1e-6)) == []
    assert len(request_problems((0, 0.5, True, "x", float("nan")))) == 5


# ---- in process --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def divided():
    made = simulate("B1", rank=2, shape=(120, 100), fraction=0.6, seed=1)
    order = np.random.default_rng(0).permutation(len(made.rows))
    parts = [
        tuple(each[index] for each in (made.rows, made.cols, made.labels))
        for index in (order[:4000], order[4000:])
    ]
    return fit_arrays(*parts[0], FitConfig(rank=2, max_iter=15, tol=0)), parts[1]


def test_in_process(divided):
    fit, held = divided
    groups = np.where(held[0] % 3 == 0, "third", "rest")
    found = fit.certify(*held, Terms(delta=0.1), max_error=(0.02, 0.0001), groups=groups)
    assert [item.name for item in found] == [
        "holdout",
        "selective",
        "selective",
        *["holdout"] * 2,
        *["selective"] * 4,
    ]
    met, unmet = found[1:3]
    answered = fit.answered(held[0], held[1], met)
    wrong = fit.predict(held[0], held[1]) != held[2]
    assert 0.2 < answered.mean() < 1
    assert (answered.sum(), wrong[answered].sum()) == (
        met.inputs["n_answered"],
        met.inputs["errors"],
    )
    assert not fit.answered(held[0], held[1], unmet).any()
    assert wrong[answered].mean() < 0.02 < wrong.mean()
    inside = found[5]
    assert inside.n == np.sum(groups == "rest")
    for name, wrong_terms in (
        ("max_error", {"max_error": [0.6]}),
        ("delta", {"terms": Terms(delta=2.0)}),
    ):
        with pytest.raises(ValueError, match=name):
            fit.certify(*held, **wrong_terms)
    for call, labels in (("positive", held[2]), ("negative", -held[2])):
        whole, *inside = fit.certify(*held, min_precision=f"{call}:0.98", groups=groups)[1::3]
        yes = fit.called(call, held[0], held[1], whole)
        figures = whole.inputs
        assert (figures["n_answered"], figures["errors"]) == (yes.sum(), (labels[yes] < 0).sum())
        assert figures["found_share"] == pytest.approx(yes[labels > 0].mean())
        assert 0.5 < figures["found_limit"] < figures["found_share"] < 1
        assert [item.inputs["requests"] for item in inside] == [2]
    for wrong_precision in (2, "negative:1", "maybe:0.9"):
        with pytest.raises(
            RequestError, match=r"min_precision must hold precisions strictly between 0 and 1"
        ):
            fit.certify(*held, min_precision=wrong_precision)
    checkpoint = replace(fit, info=replace(fit.info, confidences=None))
    with pytest.raises(RequestError, match="a checkpoint has no confidences of its ratings"):
        checkpoint.certify(*held, min_precision=0.9)
    one_class = held[2] > 0
    assert fit.certify(*(each[one_class] for each in held))[0].n == one_class.sum()
