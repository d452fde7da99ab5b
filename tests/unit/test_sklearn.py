"""OneBitClassifier and CellKFold: scikit-learn's own checks, what may be passed, and agreement with
``fit_table``.
"""

import inspect
import pickle
import re
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from support import idtypes

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from onebit_spark import FitConfig, FittedModel, RequestError, fit_table, load
from onebit_spark.sklearn import CellKFold, OneBitClassifier, id_columns

pytestmark = pytest.mark.filterwarnings("ignore::onebit_spark.NotConverged")

# The checks of scikit-learn that ids cannot pass, with the reason. docs/sklearn.md has the same
# list.
WIDE = "its X has more than two columns; it passes on two of them"
NOT_FOR_IDS = {
    **dict.fromkeys(
        [
            "check_all_zero_sample_weights_error",
            "check_classifiers_one_label_sample_weights",
            "check_dict_unchanged",
            "check_dont_overwrite_parameters",
            "check_dtype_object",
            "check_estimators_dtypes",
            "check_estimators_nan_inf",
            "check_estimators_pickle",
            "check_f_contiguous_array_estimator",
            "check_fit2d_predict1d",
            "check_fit_score_takes_y",
            "check_methods_sample_order_invariance",
            "check_methods_subset_invariance",
            "check_non_transformer_estimators_n_iter",
            "check_pipeline_consistency",
            "check_positive_only_tag_during_fit",
            "check_sample_weights_list",
            "check_supervised_y_2d",
        ],
        WIDE,
    ),
    "check_n_features_in_after_fitting": "its X has four columns, and it wants a fit that "
    "reports four",
    "check_sample_weight_equivalence_on_dense_data": "its X has 30 columns; on two of them, the "
    "fits agree as float32 "
    "factors can, and it wants 1e-7",
}


class OfTwoColumns(OneBitClassifier):
    """Takes the first two columns of an X that has more."""

    def _columns(self, X, *args, **kwargs):
        wide = X[list(X.columns[:2])] if hasattr(X, "columns") else np.asarray(X)
        return super()._columns(
            wide[:, :2] if isinstance(wide, np.ndarray) and wide.ndim == 2 else wide,
            *args,
            **kwargs,
        )


def checks_on(kind):
    """The name of each check with the check."""
    for estimator, check in estimator_checks_generator(kind(rank=1, max_iter=2)):
        inner = check
        while isinstance(inner, partial):
            inner = inner.func
        yield inner.__name__, partial(check, estimator)


def test_the_checks_of_scikit_learn_pass(request):
    """All but those above.

    The guide lists which pass, which pass on two columns, and which do not.
    """
    results = check_estimator(OneBitClassifier(rank=1, max_iter=2), on_skip=None, on_fail=None)
    failed = {
        result["check_name"]: result["exception"]
        for result in results
        if result["status"] == "failed"
    }
    assert set(failed) == set(NOT_FOR_IDS), failed
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    guide = (request.config.rootpath / "docs" / "sklearn.md").read_text("utf-8")
    parts = re.split(
        r"These pass on the first two|Two do not pass",
        guide.partition("## What scikit-learn checks")[2],
    )
    as_they_are, on_two_columns, neither = (
        set(re.findall(r"`(check_\w+)`", part)) for part in parts
    )
    assert len(passed & as_they_are) > 35
    assert not as_they_are & set(failed)
    assert on_two_columns == {name for name, reason in NOT_FOR_IDS.items() if reason == WIDE}
    assert neither == set(NOT_FOR_IDS) - on_two_columns


def test_the_checks_of_wide_data_pass_on_two_columns():
    done = set()
    for name, check in checks_on(OfTwoColumns):
        if NOT_FOR_IDS.get(name) == WIDE:
            check()
            done.add(name)
    assert len(done) == list(NOT_FOR_IDS.values()).count(WIDE)


# ---- settings ----------------------------------------------------------------------------------


def test_the_settings_are_those_of_a_fit():
    taken = inspect.signature(OneBitClassifier).parameters
    left_out = {"start", "precision"}  # for tests
    config = {name: value for name, value in vars(FitConfig()).items() if name not in left_out}
    assert {name: item.default for name, item in taken.items()} == {
        **config,
        "threads": None,
        "device": "cpu",
    }
    assert OneBitClassifier().get_params() == {**config, "threads": None, "device": "cpu"}
    assert repr(OneBitClassifier(rank=3)) == "OneBitClassifier(rank=3)"
    with pytest.raises(TypeError, match="unexpected keyword argument 'rnak'"):
        OneBitClassifier(rnak=3)
    assert all(f"\n    {name} : " in OneBitClassifier.__doc__ for name in taken)


def test_settings_reach_the_fit(data):
    X, y = data
    asked = {
        "loss": "hinge",
        "prior": "gamma",
        "rank": 2,
        "alpha": 3.0,
        "intercepts": False,
        "max_iter": 3,
        "tol": 0.0,
    }
    fitted = clone(OneBitClassifier(**asked)).fit(X, y)
    assert {name: getattr(fitted.model_.config, name) for name in asked} == asked
    assert fitted.n_iter_ == 3
    with pytest.raises(RequestError, match="rank must be an integer of at least 1 or auto, not 0"):
        OneBitClassifier(rank=0).fit(X, y)


# ---- fits and predictions ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    """600 ratings of 30 users (text) and 20 items (integers), with repeated cells."""
    rng = np.random.default_rng(4)
    users = rng.integers(0, 30, 600)
    items = rng.integers(0, 20, 600)
    taste = rng.normal(size=30)[users] * rng.normal(size=20)[items] + 0.3 * rng.normal(size=600)
    X = np.array([[f"u{user}" for user in users], items.tolist()], object).T
    return X, np.where(taste > 0, "yes", "no")


FEW = {"rank": 2, "max_iter": 5, "tol": 0.0}


def test_it_predicts_as_the_model_of_a_table_does(data):
    X, y = data
    fitted = OneBitClassifier(**FEW).fit(X, y)
    model = fit_table(
        pa.table({"user": X[:, 0].tolist(), "item": X[:, 1].tolist(), "label": y == "yes"}),
        FitConfig(**FEW),
    )
    assert isinstance(fitted.model_, FittedModel)
    assert fitted.classes_.tolist() == ["no", "yes"]
    unknown = [["nobody", 3], ["u1", 99]]  # text and integers of a list stay what they are
    for pairs in (X[:50], unknown):
        users, items = ([pair[at] for pair in pairs] for at in (0, 1))
        np.testing.assert_array_equal(fitted.decision_function(pairs), model.score(users, items))
        np.testing.assert_array_equal(
            fitted.predict_proba(pairs)[:, 1], model.probability(users, items)
        )
        np.testing.assert_array_equal(
            fitted.predict(pairs) == "yes", model.predict(users, items) > 0
        )
    np.testing.assert_array_equal(fitted.predict_proba(X).sum(axis=1), 1.0)
    assert fitted.score(X, y) == np.mean(fitted.predict(X) == y)


def test_the_kinds_of_tables(data):
    X, y = data
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    table = pa.table({"reader": X[:, 0].tolist(), "book": X[:, 1].tolist()})
    frame = table.to_pandas()
    labels = pa.array(y.tolist())
    kinds = {
        "arrow": (table, labels),
        "pandas": (frame, pandas.Series(y)),
        "categories": (frame.astype({"reader": "category"}), y),
        "polars": (polars.from_arrow(table), polars.Series(y.tolist())),
        "list": (X.tolist(), y.tolist()),
    }
    expected = OneBitClassifier(**FEW).fit(X, y).decision_function(X)
    for name, (pairs, targets) in kinds.items():
        fitted = OneBitClassifier(**FEW).fit(pairs, targets)
        np.testing.assert_array_equal(fitted.decision_function(pairs), expected, err_msg=name)
        if hasattr(pairs, "columns"):
            assert fitted.feature_names_in_.tolist() == ["reader", "book"], name
        again = pickle.loads(pickle.dumps(fitted))
        np.testing.assert_array_equal(
            again.predict(pairs[:9]), fitted.predict(pairs[:9]), err_msg=name
        )
    rows = frame[frame["book"] > 4]  # pandas keeps the numbers of the lines, which are no column
    assert len(id_columns(rows)) == 2
    with pytest.raises(ValueError, match="feature names should match"):
        OneBitClassifier(**FEW).fit(frame, y).predict(frame.rename(columns={"book": "film"}))


@pytest.mark.parametrize("labels", [(-1, 1), (0, 1), (False, True), (3, 7.0), ("b", "a")])
def test_the_second_class_in_order_is_positive(data, labels):
    X, y = data
    first, second = sorted(labels)
    fitted = OneBitClassifier(**FEW).fit(X, np.where(y == "yes", second, first))
    assert fitted.classes_.tolist() == [first, second]
    assert set(fitted.predict(X)) == {first, second}
    np.testing.assert_array_equal(fitted.predict(X) == second, fitted.predict_proba(X)[:, 1] > 0.5)


def test_a_weight_of_two_counts_as_two_ratings(data):
    X, y = data
    weights = np.arange(len(y)) % 3
    one = OneBitClassifier(**FEW).fit(X, y, sample_weight=weights)
    two = OneBitClassifier(**FEW).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), atol=1e-5)
    assert (
        abs(one.predict_proba(X) - OneBitClassifier(**FEW).fit(X, y).predict_proba(X)).max() > 0.01
    )


def test_a_single_weight_is_that_of_all_ratings(data):
    X, y = data
    one = OneBitClassifier(**FEW).fit(X, y, sample_weight=2)
    all_of_them = OneBitClassifier(**FEW).fit(X, y, sample_weight=np.full(len(y), 2.0))
    np.testing.assert_array_equal(one.decision_function(X), all_of_them.decision_function(X))
    for wrong in ([1.0, 2.0], np.ones((len(y), 2))):
        with pytest.raises(
            ValueError, match="sample_weight must be a number, or an array of 600 numbers like y"
        ):
            OneBitClassifier(**FEW).fit(X, y, sample_weight=wrong)


def test_columns_of_one_name_are_refused(data):
    X, y = data
    pandas = pytest.importorskip("pandas")
    fitted = OneBitClassifier(**FEW).fit(X, y)
    table = pa.Table.from_arrays([pa.array(X[:, place].tolist()) for place in (0, 1)], ["id", "id"])
    frame = pandas.DataFrame(X, columns=["id", "id"])
    new = OneBitClassifier(**FEW)
    for pairs in (table, frame):
        for asked in (
            lambda X: new.fit(X, y),
            fitted.predict,
            lambda X: next(CellKFold(2).split(X)),
        ):
            with pytest.raises(
                RequestError, match=r"^X has several columns named 'id': rename or drop"
            ):
                asked(pairs)
    with pytest.raises(RequestError, match=r"^the table has several columns named 'id'"):
        fit_table(frame.assign(label=y == "yes"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X[:, :1], y), r"1 feature\(s\)"),
        (
            lambda X, y: (np.hstack([X, X]), y),
            "X has 4 features, but OneBitClassifier is expecting 2 features as input",
        ),
        (
            lambda X, y: (X, np.where(y == "yes", "yes", "yes")),
            r"y has 1 class\(es\): 2 are needed",
        ),
        (lambda X, y: (X, np.arange(len(y)) % 3), "Only binary classification is supported"),
        (
            lambda X, y: (np.where(X == 3, None, X), y),
            r"the item ids hold \d+ null or NaN ids: drop or fill them",
        ),
        (lambda X, y: (np.where(X == 3, "three", X), y), "the item ids cannot be read"),
        (lambda X, y: (X[:-1], y), "inconsistent numbers of samples"),
    ],
)
def test_what_is_refused(data, change, message):
    with pytest.raises(ValueError, match=message):
        OneBitClassifier(**FEW).fit(*change(*data))


def test_ids_of_another_type_are_refused(data):
    X, y = data
    fitted = OneBitClassifier(**FEW).fit(X, y)
    with pytest.raises(
        RequestError, match="the item ids are of type string, but the model's are of type int64"
    ):
        fitted.predict(X.astype(str))


@pytest.mark.parametrize(("ids", "cell"), idtypes.cells("scikit-learn"))
def test_the_guide_says_which_ids_it_takes(ids, cell, tmp_path):
    ratings = idtypes.ratings_of(ids)
    X = ratings.select(["user", "item"])
    y = ratings["label"].to_numpy()
    if cell == "no":
        with pytest.raises(RequestError, match="cannot be an id"):
            OneBitClassifier(**FEW).fit(X, y)
        return
    fitted = OneBitClassifier(**FEW).fit(X, y)
    assert fitted.model_.info.id_types["user"] == idtypes.named(ids, cell)
    fitted.model_.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    for pairs in (X, X.to_pandas()):
        of_frame = OneBitClassifier(**FEW).fit(pairs, y)
        for each in (fitted, of_frame, pickle.loads(pickle.dumps(fitted))):
            np.testing.assert_array_equal(each.decision_function(pairs), loaded.score(*X.columns))


# ---- cross-validation --------------------------------------------------------------------------


def test_the_ratings_of_a_cell_are_in_one_fold(data):
    X, y = data
    cells = np.array([f"{user} {item}" for user, item in X])
    assert len(set(cells)) < len(cells)
    held_out = []
    for train, test in CellKFold(4).split(X, y):
        assert not set(cells[train]) & set(cells[test])
        assert len(test) == pytest.approx(len(y) / 4, abs=3)
        held_out.extend(test)
    assert sorted(held_out) == list(range(len(y)))
    shuffled = [CellKFold(4, shuffle=True, random_state=seed).split(X) for seed in (0, 0, 1)]
    first, same, other = ([test.tolist() for _, test in each] for each in shuffled)
    assert first == same != other


def test_searches_and_calibration_take_it(data):
    X, y = data
    classifier = OneBitClassifier(**FEW)
    scores = cross_val_score(classifier, X, y, cv=CellKFold(3), scoring="roc_auc")
    assert scores.min() > 0.8
    search = GridSearchCV(classifier, {"loss": ["hinge", "logistic"]}, cv=CellKFold(3)).fit(X, y)
    assert search.best_params_["loss"] in ("hinge", "logistic")
    assert search.predict(X[:3]).tolist() == search.best_estimator_.predict(X[:3]).tolist()
    calibrated = CalibratedClassifierCV(classifier, cv=CellKFold(3)).fit(X, y)
    assert np.mean(calibrated.predict(X) == y) > 0.8
