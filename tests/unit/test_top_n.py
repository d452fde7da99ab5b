"""The n best partners by tiles and limits, against sorting all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fitting import random_posterior

from onebit_spark.core.posterior import Form
from onebit_spark.core.scores import compute_scores, compute_variances
from onebit_spark.predict import top_n
from onebit_spark.predict.top_n import Ranking, best_partners


def posterior(rng, rows, rank, kind, intercept, shift=0.0):
    made = random_posterior(rng, rows, Form(rank + int(intercept), kind, intercept, "float32"))
    if intercept:
        made.location[:, 0] += shift
    return made


def all_pairs(rows, partners):
    i, j = (index.ravel() for index in np.indices((rows.n_rows, partners.n_rows)))
    pairs = rows.take(i), partners.take(j)
    shape = rows.n_rows, partners.n_rows
    return compute_scores(*pairs).reshape(shape), compute_variances(*pairs).reshape(shape)


def key_of(ranking, score, variance):
    if not np.isnan(ranking.z):
        return score - ranking.z * np.sqrt(variance)
    return score / np.maximum(np.sqrt(ranking.noise + variance), 1e-150)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(0, 40)),
    rank=st.integers(1, 4),
    n=st.integers(1, 12),
    kind=st.sampled_from(["spread", "covariance"]),
    intercept=st.booleans(),
    ranking=st.sampled_from(
        [Ranking(8 / np.pi), Ranking(0.0), Ranking(0.3), Ranking(0.0, 0.0), Ranking(0.0, 2.0)]
    ),
    shift=st.sampled_from([0.0, -6.0, 4.0]),
    share_seen=st.sampled_from([0.0, 0.4, 1.0]),
    many=st.sampled_from([0.0, 2.0]),  # every variance by the product, or none
    few=st.sampled_from([0, 9]),  # or all of them first
)
def test_equals_sorting_all_pairs(
    seed, shape, rank, n, kind, intercept, ranking, shift, share_seen, many, few
):
    rng = np.random.default_rng(seed)
    rows, partners = (posterior(rng, size, rank, kind, intercept, shift) for size in shape)
    seen = rng.random(shape) < share_seen
    where = np.nonzero(seen)
    pointers = np.concatenate([[0], np.cumsum(seen.sum(axis=1))]).astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_n, "TILE_ROWS", 4)
        patch.setattr(top_n, "TILE_COLUMNS", 7)
        patch.setattr(top_n, "FEW", few)
        patch.setattr(top_n, "MANY", many)
        best = best_partners(rows, partners, n, ranking, (pointers, where[1].astype(np.int32)))
    score, variance = all_pairs(rows, partners)
    key = np.where(seen, -np.inf, key_of(ranking, score, variance))
    for i in range(shape[0]):
        found = best.partner[i][best.partner[i] >= 0]
        assert len(found) == len(set(found)) == min(n, np.count_nonzero(~seen[i]))
        assert not seen[i, found].any()
        # In float32 neighbours may change places: what counts is the key at each place.
        np.testing.assert_allclose(
            key[i, found], np.sort(key[i])[::-1][: len(found)], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(best.key[i][: len(found)], key[i, found], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            best.score[i][: len(found)], score[i, found], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            best.variance[i][: len(found)], variance[i, found], rtol=1e-4, atol=1e-6
        )


def test_one_row_needs_no_terms_of_all_partners(monkeypatch):
    rng = np.random.default_rng(0)
    roles = []
    terms = top_n._variance_terms
    monkeypatch.setattr(
        top_n, "_variance_terms", lambda side, role: roles.append(role) or terms(side, role)
    )
    best_partners(*(posterior(rng, n, 2, "covariance", True) for n in (1, 30)), 3, Ranking(0.0))
    assert roles == ["row"]


@pytest.mark.parametrize("kind", ["spread", "covariance"])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_variance_is_a_product_within_its_limits(kind, intercept):
    rng = np.random.default_rng(1)
    rows = posterior(rng, 12, 3, kind, intercept)
    partners = posterior(rng, 17, 3, kind, intercept)
    terms = top_n._variance_terms(rows, "row"), top_n._variance_terms(partners, "partner")
    _, variance = all_pairs(rows, partners)
    np.testing.assert_allclose(terms[0] @ terms[1].T, variance, rtol=1e-5)
    low, high = top_n._variance_limits(top_n._Terms(*terms), signed=kind == "covariance")
    assert (low <= variance.min(axis=1)).all()
    assert (high >= variance.max(axis=1)).all()
