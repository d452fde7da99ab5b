"""Bayesian completion of huge binary matrices on Spark, with a certified error rate.

Importing this package starts no JVM.
"""

from onebit_spark.certificate.certified import Certificate, Terms
from onebit_spark.certificate.planning import plan
from onebit_spark.core.config import FitConfig
from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.inprocess import Fit, fit_arrays

__all__ = [
    "Certificate",
    "Fit",
    "FitConfig",
    "FitFailed",
    "NotConverged",
    "RequestError",
    "Terms",
    "fit_arrays",
    "plan",
]
