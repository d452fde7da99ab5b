"""Bayesian completion of huge binary matrices on Spark, with a certified error rate.

Importing this package starts no JVM and imports no Spark. ``OneBitCompletion`` and ``OneBitCompletionModel`` import
pyspark at their first use; ``fit_table``, ``load`` and ``ServedModel`` import Parquet.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onebit_spark.certificate.certificates import Certificate, Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.in_process import Fit, fit_arrays

if TYPE_CHECKING:
    from onebit_spark.estimator import OneBitCompletion
    from onebit_spark.model import OneBitCompletionModel
    from onebit_spark.predictor.served_model import ServedModel, load
    from onebit_spark.table_fit import fit_table

__version__ = "0.2.0"

__all__ = [
    "Certificate",
    "Fit",
    "FitConfig",
    "FitFailed",
    "NotConverged",
    "OneBitCompletion",
    "OneBitCompletionModel",
    "RequestError",
    "ServedModel",
    "Terms",
    "fit_arrays",
    "fit_table",
    "load",
]

_AT_FIRST_USE = {
    "OneBitCompletion": "onebit_spark.estimator",
    "OneBitCompletionModel": "onebit_spark.model",
    "ServedModel": "onebit_spark.predictor.served_model",
    "fit_table": "onebit_spark.table_fit",
    "load": "onebit_spark.predictor.served_model",
}

_REMOVED = {"plan": "it is in a checkout, benchmarks/paper/planning.py"}


def __getattr__(name: str) -> Any:
    """Names that need Spark or Arrow are imported at their first use."""
    if name in _REMOVED:
        raise ImportError(f"onebit_spark.{name} is no longer part of the package: {_REMOVED[name]}")
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
