"""Compiles the kernels of fits where nothing is compiled yet: one process for each loss.

Otherwise both processes of the suite would compile all of them.
"""

from concurrent.futures import ProcessPoolExecutor

from onebit_spark import FitConfig
from onebit_spark.cli.compile_ahead import compile_ahead
from onebit_spark.core.compiled import nothing_is_compiled


def compile_fits(loss):
    config = FitConfig(loss=loss, implicit_features=loss == "logistic")
    for weighted in (False, True):
        compile_ahead(config, weighted)


if __name__ == "__main__" and nothing_is_compiled():
    print("Compiling the kernels, once on this machine.")
    with ProcessPoolExecutor(2) as processes:
        list(processes.map(compile_fits, ("logistic", "hinge")))
