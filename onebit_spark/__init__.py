"""Bayesian completion of huge binary matrices on Spark, with a certified error rate.

Importing this package imports nothing else: every public name is imported at its first use. Only
``OneBitCompletion`` and ``OneBitCompletionModel`` need pyspark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onebit_spark.certify.certificates import Certificate as Certificate
    from onebit_spark.core.solver import NotConverged as NotConverged
    from onebit_spark.errors import FitFailed as FitFailed
    from onebit_spark.errors import RequestError as RequestError
    from onebit_spark.in_process import fit_arrays as fit_arrays
    from onebit_spark.in_process import fit_table as fit_table
    from onebit_spark.model import FittedModel as FittedModel
    from onebit_spark.model import load as load
    from onebit_spark.settings import FitConfig as FitConfig
    from onebit_spark.settings import Terms as Terms
    from onebit_spark.spark.estimator import OneBitCompletion as OneBitCompletion
    from onebit_spark.spark.model import OneBitCompletionModel as OneBitCompletionModel

__version__ = "1.0.0"

_MODULES = {
    "Certificate": "certify.certificates",
    "FitConfig": "settings",
    "FitFailed": "errors",
    "FittedModel": "model",
    "NotConverged": "core.solver",
    "OneBitCompletion": "spark.estimator",
    "OneBitCompletionModel": "spark.model",
    "RequestError": "errors",
    "Terms": "settings",
    "fit_arrays": "in_process",
    "fit_table": "in_process",
    "load": "model",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"onebit_spark.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pandas"):
            raise
        raise ImportError(
            f"{name} needs pyspark, which is not installed: pip install '.[spark]' in a clone of "
            "onebit_spark, or "
            "use a cluster that has Spark"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
