"""A fit of arrays is a model: it recommends, folds in, and its folder predicts as it does."""

import json

import numpy as np
import pytest

import onebit_spark
from onebit_spark import FitConfig, RequestError, Terms, fit_arrays
from onebit_spark.core.model_info import CERTIFIED, ModelInfo

ROWS, COLS = (index.ravel() for index in np.indices((31, 21)))  # 28 × 18 are rated; the shape is 30 × 20
METHODS = ("score", "std", "probability", "predict")
KINDS = [{"loss": "hinge"}, {"loss": "logistic"}, {"covariance": "diagonal", "intercepts": False}]


@pytest.mark.parametrize("choices", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_its_folder_predicts_as_it_does(make_fit, tmp_path, choices):
    fit = make_fit(**choices)
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    for name in METHODS:
        np.testing.assert_allclose(getattr(model, name)(ROWS, COLS), getattr(fit, name)(ROWS, COLS), atol=1e-6)
    assert model.users.ids.to_pylist() == list(range(28))
    assert (model.info.n_users, model.info.n_items) == (28, 18)
    assert (model.info.n_ratings, model.info.effective_rank) == (500, fit.effective_rank)
    assert model.info.objective_history == fit.objective_history
    assert model.info.confidence_thresholds == fit.confidence_thresholds


def test_single_precision_is_kept_to_the_bit(make_fit, tmp_path):
    fit = make_fit()
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    for name in METHODS:
        np.testing.assert_array_equal(getattr(model, name)(ROWS, COLS), getattr(fit, name)(ROWS, COLS))
    assert model.recommend(n=5).equals(fit.recommend(n=5))


def test_rows_without_ratings_are_known_by_their_features(ratings, tmp_path):
    features = np.random.default_rng(2).normal(size=(30, 2))
    fit = fit_arrays(*ratings, FitConfig(rank=2, max_iter=5, tol=0), (30, 20), threads=1, row_features=features)
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    assert (model.info.n_users, model.info.n_items, model.info.rated) == (30, 18, (28, 18))
    np.testing.assert_array_equal(model.score(ROWS, COLS), fit.score(ROWS, COLS))
    assert fit.score(28, 0) != fit.score(30, 0)


def test_certificates_and_certified_draws_are_kept(ratings, tmp_path):
    config = FitConfig(rank=2, max_iter=5, tol=0)
    fit = fit_arrays(*ratings, config, (30, 20), threads=1, certify=Terms(prior_split=0.5))
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    assert model.certificate["certificates"] == json.loads(json.dumps([item.as_dict() for item in fit.certificates]))
    assert model.info.draw_narrowing is not None
    np.testing.assert_array_equal(model.users.certified.scale, fit.users.certified.std.astype(np.float32))
    model.save(tmp_path / "again")
    again = onebit_spark.load(tmp_path / "again")
    assert again.users.table.equals(model.users.table)
    assert CERTIFIED in again.users.table.column_names


def test_a_folder_is_not_overwritten_by_chance(make_fit, tmp_path):
    fit, path = make_fit(), tmp_path / "model"
    fit.save(path)
    with pytest.raises(RequestError, match=r"exists: .*overwritten"):
        fit.save(path)
    fit.save(path, overwrite=True)
    assert ModelInfo.from_json((path / "metadata.json").read_text()).fitted is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("mine")
    with pytest.raises(RequestError, match="mine is not a model"):
        fit.save(tmp_path / "mine", overwrite=True)
