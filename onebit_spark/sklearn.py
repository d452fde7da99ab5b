"""scikit-learn: a classifier of pairs of ids, and a splitter for cross-validation. Needs the extra
``sklearn``.

X = two columns of ids, users and items    y = labels of two classes
OneBitClassifier().fit(X, y).predict_proba(X)
cross_val_score(OneBitClassifier(), X, y, cv=CellKFold(5))
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import GroupKFold
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from onebit_spark.data.hashes import cell_hashes
from onebit_spark.data.user_tables import arrow_table, refuse_repeated_columns
from onebit_spark.errors import RequestError
from onebit_spark.in_process import fit_table
from onebit_spark.model import FittedModel
from onebit_spark.predict.sides import TableLike, asked_ids
from onebit_spark.settings import FitConfig, declared, documented_parameter, parameter_section

SETTINGS = {name: item for name, item in declared(FitConfig).items() if item.key is not None}
DEFAULTS = {name: item.default for name, item in SETTINGS.items()} | {
    "threads": None,
    "device": "cpu",
}


class OneBitClassifier(ClassifierMixin, BaseEstimator):
    """Bayesian 1-bit matrix completion as a classifier of scikit-learn.

    ``X`` has two columns: the ids of the users, and those of the items. It is an array, a DataFrame
    of pandas or polars, or an Arrow table; the ids are of most types (docs/local.md). ``y`` has
    labels of two classes. Pairs with unknown ids are predicted from the prior
    (docs/predictions.md).

    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The two labels, sorted. The model calls the second one positive.
    model_ : FittedModel
        The fitted model, which also recommends, certifies and saves. Its columns are user, item and
        label (±1).
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        2.
    feature_names_in_ : ndarray of shape (2,)
        Names of the columns of ``X``, if they are strings.

    Examples
    --------
    >>> from onebit_spark.sklearn import OneBitClassifier
    >>> X = [["ann", "tea"], ["ann", "rum"], ["bob", "tea"], ["bob", "rum"], ["eve", "tea"]]
    >>> y = ["yes", "no", "yes", "no", "yes"]
    >>> classifier = OneBitClassifier(rank=1, max_iter=5, tol=0).fit(X, y)
    >>> classifier.predict([["eve", "rum"]]).tolist()
    ['no']
    """

    classes_: NDArray[np.generic]
    model_: FittedModel

    def __init__(self, **settings: Any) -> None:
        arguments = SIGNATURE.bind(self, **settings)
        arguments.apply_defaults()
        for name in DEFAULTS:
            setattr(self, name, arguments.arguments[name])

    def fit(self, X: TableLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the labels ``y``, of two classes, of the pairs ``X``: users and items.

        A rating of ``sample_weight`` 2 counts as two; one of weight 0 is left out (docs/MATH.md,
        §16). A single number is the weight of all.
        """
        self.classes_, codes = _classes(y)
        ids = arrow_ids(self._columns(X, y, reset=True))
        table = {**ids, "label": 2 * codes.astype(np.int8) - 1}
        if sample_weight is not None:
            table["weight"] = _weights(sample_weight, len(codes))
        check_consistent_length(*table.values())
        config = FitConfig(**{name: getattr(self, name) for name in SETTINGS})
        weight_col = None if sample_weight is None else "weight"
        runs = {"threads": self.threads, "device": self.device}
        self.model_ = fit_table(pa.table(table), config, weight_col=weight_col, **runs)
        self.n_iter_ = self.model_.info.iterations
        return self

    def predict(self, X: TableLike) -> NDArray[np.generic]:
        """The likelier label of every pair."""
        model = self._fitted()
        return self.classes_[(model.predict(*self._columns(X)) > 0).astype(np.intp)]

    def predict_proba(self, X: TableLike) -> NDArray[np.float64]:
        """The probabilities of ``classes_``, one row per pair."""
        positive = self._fitted().probability(*self._columns(X))
        return np.column_stack([1.0 - positive, positive])

    def decision_function(self, X: TableLike) -> NDArray[np.float64]:
        """The score of every pair; above 0 the second class is likelier."""
        return self._fitted().score(*self._columns(X))

    def _fitted(self) -> FittedModel:
        check_is_fitted(self)
        return self.model_

    def _columns(self, X: TableLike, y: Any = "no_validation", reset: bool = False) -> list[Any]:
        """The two columns of ``X``, whose names must be those of the fit."""
        columns = id_columns(X)
        validate_data(self, X, y, reset=reset, skip_check_array=True)
        self.n_features_in_ = 2
        return columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags


SIGNATURE = Signature(
    [
        Parameter("self", Parameter.POSITIONAL_ONLY),
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, default in DEFAULTS.items()
        ),
    ]
)
OneBitClassifier.__init__.__signature__ = SIGNATURE  # type: ignore[attr-defined]
SECTION = [
    *parameter_section(SETTINGS),
    *documented_parameter(
        "threads", "int, optional", "number of threads of a fit. Default: all cores"
    ),
    *documented_parameter("device", '{"cpu", "cuda"}', "where the fit runs"),
]
OneBitClassifier.__doc__ = str(OneBitClassifier.__doc__).format(parameters="\n    ".join(SECTION))


class CellKFold(GroupKFold):
    """Folds that keep the ratings of a cell (user, item) together: ``GroupKFold`` with the cells as
    groups.

    Otherwise a rating could be predicted from another one of its own cell, and the score would be
    too good.
    """

    def split(self, X: TableLike, y: Any = None, groups: Any = None) -> Iterator[Any]:
        """The indices of the training and the test ratings of every fold. ``groups`` is ignored."""
        return super().split(X, y, cell_hashes(*arrow_ids(id_columns(X)).values()))


def id_columns(X: TableLike) -> list[Any]:
    if hasattr(X, "columns"):  # a DataFrame or an Arrow table
        table = arrow_table(X, "X")
        refuse_repeated_columns(table.column_names, "X")
        columns = table.columns
    else:
        # Numpy would make text of a list of texts and numbers
        kind = None if hasattr(X, "dtype") else object
        columns = list(check_array(X, dtype=kind, ensure_min_features=2, input_name="X").T)
    if len(columns) != 2:
        raise RequestError(
            f"X has {len(columns)} features, but OneBitClassifier is expecting 2 features as "
            "input: users and items"
        )
    return columns


def arrow_ids(columns: list[Any]) -> dict[str, pa.Array]:
    """The ids of users and items as Arrow arrays, without nulls."""
    return {
        who: asked_ids(ids, None, f"the {who} ids")
        for who, ids in zip(("user", "item"), columns, strict=True)
    }


def _weights(given: ArrayLike, n: int) -> NDArray[np.float64]:
    """A weight for each of the n ratings."""
    weights = np.asarray(given, np.float64)
    if weights.ndim == 0:
        weights = np.full(n, weights)
    if weights.shape != (n,):
        raise ValueError(
            f"sample_weight must be a number, or an array of {n:,} numbers like y, not of shape "
            f"{weights.shape}"
        )
    if not weights.any():
        raise ValueError("all sample weights are zero")
    return weights


def _classes(y: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.intp]]:
    """The two labels, and which of them each rating has."""
    labels = column_or_1d(y, warn=True)
    if (kind := type_of_target(labels, input_name="y", raise_unknown=True)) != "binary":
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {kind}."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has {len(classes)} class(es): 2 are needed")
    return classes, codes
