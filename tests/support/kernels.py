"""Compiles the kernels that the suite needs, once on a machine.

Otherwise the processes of the suite would compile them, and wait for each other at the end. `make
demo` compiles only those of the default settings.
"""

import logging
from itertools import product

from onebit_spark import FitConfig
from onebit_spark.kernels.ahead import compile_kernels

VARIANTS = [
    {"covariance": "full"},
    {"loss": "hinge", "implicit_features": False},
    {"covariance": "diagonal", "implicit_features": False},
    {"loss": "hinge", "solver": "gradient", "implicit_features": False},
]

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    for precision, weighted, options in product(("float32", "float64"), (False, True), VARIANTS):
        compile_kernels(FitConfig(precision=precision, **options), weighted)
