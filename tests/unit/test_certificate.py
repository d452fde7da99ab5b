"""The bounds against brute force, their coverage on data whose true risk is known, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from knownrisk import answering, experiment, summary
from scipy.stats import binom

from onebit_spark import FitConfig, RequestError, Terms, fit_arrays
from onebit_spark.certificate import bounds
from onebit_spark.certificate.certificates import (
    DRAWS_SHARE,
    KEPT_CELLS,
    Certificate,
    certificate_document,
    headline_of,
    holdout_certificate,
    kept_by_coin,
    prior_split_certificate,
)
from onebit_spark.core.randomness import Draws, GibbsErrors, Split
from onebit_spark.simulate import simulate

DELTA = 0.2


def kl(q, p):
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)


def test_seeger_solves_its_equation():
    bound = bounds.seeger(0.25, 3000.0, 100_000, 0.04)
    assert kl(0.25, bound) == pytest.approx((3000 + math.log(2 * math.sqrt(1e5) / 0.04)) / 1e5, rel=1e-9)


def test_the_limit_of_the_draws_holds_for_unequal_probabilities():
    """Errors with probabilities p_l, exactly enumerated as a Poisson-binomial: the limit fails in at most δ."""
    p = np.linspace(0.01, 0.6, 40)
    law = np.array([1.0])
    for one in p:
        law = np.convolve(law, [1 - one, one])
    for delta in (0.01, 0.2):
        failing = [law[k] for k in range(41) if bounds.gibbs_limit(k, 40, delta) < p.mean()]
        assert 0 < sum(failing) <= delta
    assert kl(0.3, bounds.gibbs_limit(30, 100, 0.01)) == pytest.approx(math.log(100) / 100, rel=1e-9)


@pytest.mark.parametrize(("n", "delta"), [(1, 0.05), (7, 0.3), (50, 0.05)])
def test_holdout_is_the_exact_binomial_limit(n, delta):
    """At the bound, k or fewer errors have probability δ; over all k it therefore fails with at most δ."""
    limits = [bounds.holdout(k, n, delta) for k in range(n + 1)]
    assert limits[-1] == 1
    for k, limit in enumerate(limits[:-1]):
        assert binom.cdf(k, n, limit) == pytest.approx(delta, rel=1e-9)
    for risk in (0.1, 0.5, 0.9):
        assert sum(binom.pmf(k, n, risk) for k in range(n + 1) if limits[k] < risk) <= delta


def test_catoni_and_theorem1_by_hand():
    n, lam = 1000, 200.0
    assert bounds.catoni(0.2, 5.0, n, lam, 0.05) == pytest.approx(0.2 + 5 / 200 + 0.025 + math.log(20) / 200)
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


# ---- coverage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_draws(monkeypatch):
    """Of the certified risk, and of the true one, which is then known to about .002."""
    monkeypatch.setattr("onebit_spark.core.randomness.ENOUGH_DRAWS", 20_000)
    monkeypatch.setattr("knownrisk.SEEDS", 20)


BROKEN = {"no-kl", "wide draws", "fitted"}


def allowed(repeats):
    """δ plus two standard errors; of few fits, what chance exceeds with probability 10⁻³ if each violates with δ."""
    if repeats >= 400:
        return DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / repeats)
    return binom.isf(1e-3, repeats, DELTA) / repeats


@pytest.mark.parametrize(
    ("loss", "repeats"),
    [("logistic", 25), *(pytest.param(loss, 400, marks=pytest.mark.slow) for loss in ("hinge", "logistic"))],
)
def test_certificates_hold(few_draws, loss, repeats):
    """At δ = .2 no certificate is violated more often than chance allows. Recipe: tests/unit/knownrisk.py."""
    config = FitConfig(loss=loss, rank=2, max_iter=8, implicit_features=False)
    for terms in (Terms(delta=DELTA), Terms(delta=DELTA, prior_split=0.5)):
        violated = summary(experiment(config, 1000, 0.1, repeats, terms))
        assert "prior_split" in violated or {"catoni", "seeger"} <= set(violated)
        for name in set(violated) - BROKEN:
            assert violated[name][0] <= allowed(repeats), name
        assert violated["holdout"][0] >= max(binom.isf(1 - 1e-3, repeats, DELTA / 3), 1) / repeats  # exact, not loose
        assert violated["fitted"][0] > allowed(repeats)


@pytest.mark.parametrize("repeats", [30, pytest.param(400, marks=pytest.mark.slow)])
def test_answers_hold(repeats):
    """Two requests, and two groups, at δ = .2: each set of certificates that shares δ is right as often as it says."""
    violated = summary(answering(FitConfig(rank=2, max_iter=10), 4000, 0.1, repeats, DELTA, (0.2, 0.15)))
    for name in ("selective", "selective by group", "holdout by group"):
        assert violated[name][0] <= allowed(repeats), name
    assert violated["peeking"][0] > allowed(repeats)


def test_a_bound_without_its_kl_is_caught(few_draws):
    """Labels of pure noise, K = 10, κ = 8: whatever is learnt is wrong half of the time, and fits the ratings well."""
    noisy = FitConfig(rank=10, likelihood_weight=8.0, max_iter=8, implicit_features=False)
    violated = summary(experiment(noisy, 1000, 0.5, 30, Terms(delta=DELTA)))
    assert violated["seeger"][0] == 0
    assert violated["no-kl"][0] > allowed(30)


def test_the_draws_of_a_prior_split_are_those_that_users_can_make(monkeypatch):
    """Enough ratings for a sharp bound: draws by ``sample`` keep it, draws with the spreads of ``std`` do not."""
    monkeypatch.setattr("knownrisk.SEEDS", 10)
    config, terms = FitConfig(rank=5, max_iter=8), Terms(delta=DELTA, prior_split=0.5)
    violated = summary(experiment(config, 20_000, 0.2, 3, terms, shape=(200, 200)))
    assert violated["prior_split"][0] == 0
    assert violated["wide draws"][0] == 1


# ---- from a fit to its certificates ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    made = simulate("B2", rank=2, shape=(60, 50), fraction=0.5, seed=1)
    return made.rows, made.cols, made.labels


@pytest.fixture(scope="module")
def certified(data):
    return fit_arrays(
        *data, FitConfig(loss="hinge", rank=2, max_iter=20, tol=0, implicit_features=False), certify=Terms()
    )


def test_every_bound_that_applies_with_its_inputs(certified, data):
    found = {item.name: item for item in certified.certificates}
    assert set(found) == {"theorem1", "catoni", "seeger"}
    n, last = len(data[0]), certified.history[-1]
    seeger = found["seeger"].inputs
    assert seeger["kl"] == last.divergence
    assert seeger["delta_split"] == {"bound": pytest.approx(0.04), "draws": pytest.approx(0.01)}
    trials = n * seeger["draws_per_rating"]
    limit = bounds.gibbs_limit(round(seeger["gibbs_risk"] * trials), trials, 0.01)
    cost = math.log(110 * 111)  # α = m/10 counts the 60 + 50 rows and columns of the sample
    assert found["seeger"].bound == pytest.approx(bounds.seeger(limit, last.divergence + cost, n, 0.04))
    avb = (last.objective + cost) / (2 * n)
    assert found["theorem1"].bound == pytest.approx(bounds.theorem1(avb, n, 2.0 * n, 0.05))


def test_a_prior_that_counts_the_sample_is_paid_for(data):
    """log(m(m+1)) nats where α follows from m, nothing where it was given, also where only β was."""
    config, m = FitConfig(rank=2, max_iter=4, tol=0, implicit_features=False), 110
    counted, half, given = (
        fit_arrays(*data, replace(config, **prior), certify=Terms()).certificates
        for prior in ({}, {"beta": 0.03 * m}, {"alpha": 0.1 * m, "beta": 0.03 * m})
    )
    for free, paid, same in zip(given, counted, half, strict=True):
        assert paid.inputs["kl"] == pytest.approx(free.inputs["kl"])
        assert (free.inputs["prior_cost"], paid.inputs["prior_cost"]) == (0.0, pytest.approx(math.log(m * (m + 1))))
        assert paid.bound > free.bound + 1e-4
        assert same.bound == pytest.approx(paid.bound)
    split = fit_arrays(*data, config, certify=Terms(prior_split=0.5)).certificates[0]
    assert "prior_cost" not in split.inputs  # m is counted on the ratings that the prior may see


def test_a_declared_grid_is_paid_for(data):
    config = FitConfig(rank=2, max_iter=5, tol=0, implicit_features=False)
    one, many = (fit_arrays(*data, config, certify=Terms(grid=grid)).certificates for grid in (1, 100))
    for single, shared in zip(one, many, strict=True):
        assert shared.bound > single.bound
        assert shared.inputs["grid"] == 100
    inputs = many[-1].inputs
    trials = len(data[0]) * inputs["draws_per_rating"]
    limit = bounds.gibbs_limit(round(inputs["gibbs_risk"] * trials), trials, DRAWS_SHARE * 0.05 / 100)
    expected = bounds.seeger(limit, inputs["kl"] + inputs["prior_cost"], len(data[0]), (1 - DRAWS_SHARE) * 0.05 / 100)
    assert many[-1].bound == pytest.approx(expected)


def test_a_learnt_prior_is_certified_on_the_rest_alone(data):
    fit = fit_arrays(*data, FitConfig(rank=2, max_iter=20), certify=Terms(prior_split=0.4))
    (item,) = fit.certificates
    assert item.name == "prior_split"
    assert 0.5 * len(data[0]) < item.n < 0.7 * len(data[0])
    assert not item.vacuous


def test_what_the_prior_has_seen_certifies_nothing():
    terms = Terms(prior_split=0.5)
    with pytest.raises(ValueError, match="ratings that it has not seen"):
        prior_split_certificate(0.0, GibbsErrors(1, 10), Draws(0, 1), terms, 0.5)
    with pytest.raises(ValueError, match="none is left"):
        prior_split_certificate(0.0, GibbsErrors(0, 0), Draws(0, 1, unseen_by=Split(0, 0.5)), terms, 0.5)
    with pytest.raises(RequestError, match="both parts need some"):
        fit_arrays([0, 1], [0, 1], [1, -1], FitConfig(rank=1), certify=Terms(prior_split=1e-9))


@pytest.mark.parametrize(
    "terms", [Terms(delta=0.0), Terms(delta=1.0), Terms(delta=math.nan), Terms(grid=0), Terms(prior_split=1.0)]
)
def test_terms_are_checked(terms):
    with pytest.raises(ValueError, match="must"):
        fit_arrays([0, 0], [0, 1], [1, -1], certify=terms)


def test_the_headline_is_fixed_in_advance(certified):
    """holdout, else prior_split, else seeger, whichever is smaller."""
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


@pytest.mark.parametrize(("bound", "majority", "vacuous"), [(0.3, 0.4, False), (0.45, 0.4, True), (0.5, 0.6, True)])
def test_vacuous_means_no_better_than_guessing(bound, majority, vacuous):
    item = Certificate(
        name="x", bound=bound, bounds="", over="", delta=0.05, n=1, majority_error=majority, statement=""
    )
    assert item.vacuous is vacuous


def test_statements_say_what_they_bound():
    good, bad = holdout_certificate(100, 1000, Terms(), 0.4), holdout_certificate(450, 1000, Terms(), 0.4)
    assert good.statement == (
        "With 95% confidence, the model's predictions are wrong on at most 11.7% of ratings like those that were kept "
        "out; they were wrong on 10.0% of 1,000. The majority class is wrong on 40.0%."
    )
    assert "This limit is not informative" in bad.statement


def test_a_coin_per_cell_certifies_the_cells_that_it_kept_out():
    item = holdout_certificate(100, 1000, Terms(), 0.4)
    once, often = kept_by_coin(item, repeated=False), kept_by_coin(item, repeated=True)
    assert once.over == often.over == KEPT_CELLS != item.over
    assert once.statement == item.statement
    assert "not about new ones" in often.statement
