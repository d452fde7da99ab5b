"""Compiles the kernels that the suite needs, in two processes, once on a machine.

Otherwise the processes of the suite would compile them, and wait for each other at the end. `make demo` compiles only
those of the default settings.
"""

from concurrent.futures import ProcessPoolExecutor
from itertools import product

from onebit_spark import FitConfig
from onebit_spark.cli import compile_ahead
from onebit_spark.core.compiled import cache_folder

VARIANTS = [
    {"covariance": "full"},
    {"loss": "hinge", "implicit_features": False},
    {"covariance": "diagonal", "implicit_features": False},
    {"loss": "hinge", "solver": "gradient", "implicit_features": False},
]


def compile_fit(settings):
    precision, weighted, options = settings
    compile_ahead(FitConfig(precision=precision, **options), weighted)


if __name__ == "__main__" and (folder := cache_folder()) is not None and not (folder / "suite").exists():
    print("Compiling the kernels of the suite, once on this machine.")
    with ProcessPoolExecutor(2) as processes:
        list(processes.map(compile_fit, product(("float32", "float64"), (False, True), VARIANTS)))
    (folder / "suite").touch()
