"""Bayesian completion of huge binary matrices on Spark, with a certified error rate.

Importing this package starts no JVM and imports no Spark. ``OneBitCompletion`` and ``OneBitCompletionModel`` import
pyspark at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onebit_spark.certificate.certificates import Certificate, Terms
from onebit_spark.certificate.planning import plan
from onebit_spark.core.config import FitConfig
from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError

if TYPE_CHECKING:
    from onebit_spark.estimator import OneBitCompletion
    from onebit_spark.in_process import fit_arrays, fit_table
    from onebit_spark.model import OneBitCompletionModel
    from onebit_spark.predictor.fitted_model import FittedModel, load

    Fit = FittedModel  # names of earlier versions
    ServedModel = FittedModel

__version__ = "0.2.0"

__all__ = [
    "Certificate",
    "Fit",
    "FitConfig",
    "FitFailed",
    "FittedModel",
    "NotConverged",
    "OneBitCompletion",
    "OneBitCompletionModel",
    "RequestError",
    "ServedModel",
    "Terms",
    "fit_arrays",
    "fit_table",
    "load",
    "plan",
]

_AT_FIRST_USE = {
    "OneBitCompletion": "onebit_spark.estimator",
    "OneBitCompletionModel": "onebit_spark.model",
    "FittedModel": "onebit_spark.predictor.fitted_model",
    "fit_arrays": "onebit_spark.in_process",
    "fit_table": "onebit_spark.in_process",
    "load": "onebit_spark.predictor.fitted_model",
}
_ALIASES = {"Fit": "FittedModel", "ServedModel": "FittedModel"}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    name = _ALIASES.get(name, name)
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_AT_FIRST_USE[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pandas"):
            raise
        raise ImportError(
            f"{name} needs pyspark, which is not installed: pip install 'onebit_spark[spark]', or run it on a cluster "
            "that has Spark"
        ) from error
