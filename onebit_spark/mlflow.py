"""MLflow: settings, curve, figures, certificate and report of a fit, and the model for
``mlflow.pyfunc``.

    estimator.setProgress(log_iteration)        # the objective, live
    log_model("model")                          # parameters, figures, files, flavour
    mlflow.pyfunc.load_model(uri).predict(pairs)         # without Spark
    mlflow.pyfunc.spark_udf(spark, uri)                  # in a DataFrame of Spark

Everything goes to the active run of MLflow. Needs the extra ``mlflow``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pyfunc
import pandas as pd
import pyarrow as pa
from mlflow.models import ModelSignature, infer_signature
from mlflow.types.schema import AnyType, ColSpec, Schema

from onebit_spark import __version__
from onebit_spark.core.solver import Iteration
from onebit_spark.data.user_tables import spark_name
from onebit_spark.errors import RequestError
from onebit_spark.model import FittedModel, load
from onebit_spark.model_folder import CERTIFICATE, local_path
from onebit_spark.model_info import SIDE_OF, ModelInfo
from onebit_spark.predict.sides import asked_ids
from onebit_spark.records import Fields
from onebit_spark.settings import Who

REPORT = "report.html"
EXAMPLES = 3  # pairs of the input example


def log_iteration(iteration: Iteration) -> None:
    """The objective and the change of the scores after an iteration, as metrics.

    For ``setProgress``.
    """
    mlflow.log_metrics(
        {"objective": iteration.objective, "change": iteration.change}, step=iteration.number
    )


def log_model(
    folder: str | os.PathLike[str], name: str = "model", registered_model_name: str | None = None
) -> Any:
    """Log the fitted model of a folder on this machine: its settings, figures, certificates and
    report, and itself.

    The model has a signature and an input example, pairs of ids that it knows. ``name`` is its name
    in the run; under ``registered_model_name`` it is registered. The ``model_uri`` of the result is
    for ``mlflow.pyfunc.load_model``.
    """
    served = load(folder)
    mlflow.log_params(
        {key: value for key, value in served.info.parameters.items() if value is not None}
    )
    mlflow.log_metrics(dict(_figures(served.info, served.certificate)))
    path = local_path(folder)
    for file in (CERTIFICATE, REPORT):
        if (path / file).is_file():
            mlflow.log_artifact(str(path / file))
    model = ServedPairs(served)
    example = model.example()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*integer column", UserWarning)  # ids are never missing
        inferred = infer_signature(example, model.predict(example))
    inputs = [
        each if model.has_type[each.name] else ColSpec(AnyType(), each.name)
        for each in inferred.inputs
    ]
    return mlflow.pyfunc.log_model(
        name=name,
        loader_module=__name__,
        data_path=str(path),
        pip_requirements=[f"onebit_spark=={__version__}", "pandas"],
        signature=ModelSignature(Schema(inputs), inferred.outputs),
        input_example=example,
        registered_model_name=registered_model_name,
    )


def _figures(info: ModelInfo, certificate: Fields) -> Iterator[tuple[str, float]]:
    yield "iterations", info.iterations
    yield "effective_rank", info.effective_rank
    yield "ratings", info.n_ratings
    yield "users", info.n_users
    yield "items", info.n_items
    if info.objective_history:
        yield "final_objective", info.objective_history[-1]
    for phase, seconds in info.seconds.items():
        yield f"seconds_{phase.replace(' ', '_')}", seconds
    for item in certificate["certificates"]:
        if not item.get("group"):  # certificates of groups are in the file
            request = f"_{item['request']:g}" if item.get("request") is not None else ""
            request = f"_negative{request}" if item.get("class") == "negative" else request
            yield f"bound_{item['name']}{request}", item["bound"]


# ---- the flavour -------------------------------------------------------------------------------


class ServedPairs:
    """What ``mlflow.pyfunc`` calls: predictions for a DataFrame of pairs, in columns named as in
    the fit.

    Every pair has a line: where the model's ``coldStartStrategy`` is "drop", pairs with unknown ids
    are NaN. Decimals, dates and times are text in the example and in the answer. Pairs may have
    them as text or as they are.
    """

    def __init__(self, model: FittedModel) -> None:
        self.model = replace(model, cold_start="nan") if model.cold_start == "drop" else model
        self.columns = {who: model.info.columns[who] for who in SIDE_OF}

    @property
    def has_type(self) -> dict[str, bool]:
        """For each column of ids: whether MLflow has their type."""
        return {
            column: _has_type(self.model.factors.side(who).ids.type)
            for who, column in self.columns.items()
        }

    def predict(self, pairs: pd.DataFrame, params: Fields | None = None) -> pd.DataFrame:
        absent = [column for column in self.columns.values() if column not in pairs]
        if absent:
            raise RequestError(f"the pairs have no column {', '.join(map(repr, absent))}")
        found = self.model.predictions(
            *(self._ids(who, pairs[column]) for who, column in self.columns.items())
        )
        for place, who in enumerate(SIDE_OF):
            found = found.set_column(place, who, _in_mlflow(found[who]))
        return found.to_pandas()

    def example(self) -> pd.DataFrame:
        n = min(EXAMPLES, len(self.model.users.ids), len(self.model.items.ids))
        sides = {
            column: self.model.factors.side(who).ids.slice(0, n)
            for who, column in self.columns.items()
        }
        return pd.DataFrame({column: _in_mlflow(ids).to_pandas() for column, ids in sides.items()})

    def _ids(self, who: Who, given: pd.Series) -> pa.Array:
        ids = asked_ids(given, None, f"the {who} ids")
        kind = self.model.factors.side(who).ids.type
        if _has_type(kind) or not pa.types.is_string(ids.type):
            return ids
        try:
            return ids.cast(kind)
        except pa.ArrowInvalid as error:
            raise RequestError(
                f"the {who} ids are no text of type {spark_name(kind)}: {error}"
            ) from None


def _has_type(kind: pa.DataType) -> bool:
    """Whether MLflow has a type for such ids.

    Its ``datetime`` has no zones, and its JSON no fractions of seconds.
    """
    return not (pa.types.is_decimal(kind) or pa.types.is_temporal(kind))


def _in_mlflow(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return ids if _has_type(ids.type) else ids.cast(pa.string())


def _load_pyfunc(path: str) -> ServedPairs:
    """Called by ``mlflow.pyfunc.load_model`` with the path of the logged folder."""
    return ServedPairs(load(Path(path)))
