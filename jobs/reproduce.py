"""Repeat the experiments of the paper: `spark-submit jobs/reproduce.py --help`, or as plain Python
in local mode.

It needs a checkout: the experiments are in `benchmarks/paper/`, not in the package.
"""

import sys
from pathlib import Path

try:
    import onebit_spark
except ModuleNotFoundError:
    # It is not installed: the job runs from a checkout, and sends the package to the workers.
    onebit_spark = None
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

try:
    from paper.job import reproduce
except ModuleNotFoundError as error:
    if error.name != "paper":
        raise
    print(
        "error: reproduce.py needs a checkout: there is no benchmarks/paper beside jobs/",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(reproduce(ship_package=onebit_spark is None))
