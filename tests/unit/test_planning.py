"""The explicit bounds: term by term against the page they come from, and the search against brute force."""

import math

import pytest
from paper.planning import Setup, corollary1, corollary2, plan, theorem2
from scipy.special import gammaln

PROBLEM = {"m1": 100, "m2": 60, "rank": 3, "max_entry": 1.5, "budget": 5}
N, LAM = 50_000, 9000.0


def complexity(prior, alpha, beta):
    """E in the paper's letters, by hand."""
    m, r, K, ell = 160, 3, 5, 1.5
    q, d = K - r, r / (K * N)
    first = (2 / math.pi * (r / N + q) + math.sqrt(8 / math.pi) * r * ell) / N
    second = m / (2 * LAM) * (r * (1 / N**2 + ell**2 + d + 2 * math.log(N) - 1) + q * r / K)
    T = {
        "inverse-gamma": r * ((alpha + 1) * d + beta) + q * ((alpha + 1) * (r / K - math.log(N)) + N * beta),
        "gamma": r * beta * (1 + d) + q * ((alpha - 1) * math.log(N) + beta * (1 / N + d))
        if alpha >= 1
        else r * ((1 - alpha) * d + beta * (1 + d)) + q * ((1 - alpha) * (r / K - math.log(N)) + beta * (1 / N + d)),
    }[prior]
    return first + second + (K * (math.log(K * N / r) + gammaln(alpha) - alpha * math.log(beta)) + T) / LAM


@pytest.mark.parametrize(
    ("prior", "alpha", "beta"), [("inverse-gamma", 2.0, 1e-4), ("gamma", 2.0, 1.0), ("gamma", 0.5, 2.0)]
)
def test_the_bounds_by_hand(prior, alpha, beta):
    problem, e = Setup(**PROBLEM, prior=prior, alpha=alpha, beta=beta), complexity(prior, alpha, beta)
    assert problem.complexity(N, LAM) == pytest.approx(e, rel=1e-12)
    expected = 0.1 + e + LAM / (2 * N) + math.log(20) / LAM
    assert corollary1(problem, N, LAM, 0.1, 0.05) == pytest.approx(expected)
    assert corollary2(problem, N, LAM, 0.05) == pytest.approx((e + math.log(20) / LAM) / (1 - LAM / (2 * N)))
    margin = 1 / (1 - 2 * 0.1)
    s = LAM * margin / N
    expected = 0.1 * (1 + (1 + s) / (1 - s / 2)) + (e + (1 + margin) * math.log(40) / (s * N)) / (1 - s / 2)
    assert theorem2(problem, N, s, margin, 0.1, 0.05) == pytest.approx(expected)


@pytest.mark.parametrize("prior", ["gamma", "inverse-gamma"])
@pytest.mark.parametrize(
    ("which", "noise"),
    [
        ("corollary1", {"best_risk": 0.1}),
        ("corollary2", {}),
        ("theorem2", {"best_risk": 0.05, "switch_noise": 0.05}),
    ],
)
def test_the_number_of_ratings_is_the_least_that_does(prior, which, noise):
    options = {"which": which, "prior": prior, "budget": 10, **noise}
    found = plan(200, 100, 3, 1.0, 0.4, **options)
    assert found.bound <= 0.4 < plan(200, 100, 3, 1.0, n=found.n - 1, **options).bound
    assert found.lam <= found.n
    given = plan(200, 100, 3, 1.0, n=found.n, lam=found.lam, **options)
    assert given.bound == pytest.approx(found.bound)


def test_a_constant_scale_of_the_inverse_gamma_never_suffices():
    """K n β/λ stays: the paper calls any constant β good enough."""
    assert plan(200, 100, 3, 1.0, 0.4, prior="inverse-gamma", budget=10).n < 10**7
    with pytest.raises(ValueError, match="no number of ratings"):
        plan(200, 100, 3, 1.0, 0.4, prior="inverse-gamma", budget=10, beta=1.0)
    with pytest.raises(ValueError, match=r"tends to at least 0\.5"):
        plan(200, 100, 3, 1.0, 0.4, best_risk=0.5)


@pytest.mark.parametrize(("which", "noise", "fewest"), [("corollary1", 0.0, 500_000), ("theorem2", 0.1, 625_001)])
def test_a_given_lambda_needs_so_many_ratings(which, noise, fewest):
    """λ ≤ n, or λ < n/C, C = 1/(1 − 2p); a bound that holds there already is found there."""
    options = {"which": which, "switch_noise": noise, "lam": 5e5}
    found = plan(20, 10, 1, 1.0, 0.6, **options)
    assert (found.n, found.lam) == (fewest, 5e5)
    assert found.bound == plan(20, 10, 1, 1.0, n=fewest, **options).bound <= 0.6
    with pytest.raises(ValueError, match=rf"too large for n = .*: {which} holds for it from n = {fewest:,} on"):
        plan(20, 10, 1, 1.0, n=fewest - 1, **options)
    more = plan(20, 10, 1, 1.0, 0.3, **{**options, "which": "corollary1"})
    assert more.n > 500_000
    assert more.bound <= 0.3 < plan(20, 10, 1, 1.0, n=more.n - 1, lam=5e5).bound


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"risk": 0.3, "n": 10},
        {"risk": -1.0},
        {"n": 1},
        {"n": 100, "delta": 1.0},
        {"n": 100, "budget": 2},
        {"n": 100, "prior": "beta"},
        {"n": 100, "alpha": 0.0},
        {"n": 100, "lam": -1.0},
        {"risk": 0.3, "lam": float("inf")},
        {"n": 100, "switch_noise": 0.5},
        {"n": 100, "which": "corollary2", "best_risk": 0.1},
        {"n": 100, "which": "lemma"},
        {"n": 100, "best_risk": -0.1},
    ],
)
def test_wrong_plans_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|give either|corollary2|budget"):
        plan(10, 10, 3, 1.0, **wrong)


def test_the_package_says_where_plan_went():
    with pytest.raises(ImportError, match=r"onebit_spark\.plan is no longer .*benchmarks/paper/planning\.py"):
        from onebit_spark import plan as _  # noqa: F401
