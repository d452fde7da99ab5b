"""Measure a model on ratings it has not seen: `spark-submit jobs/evaluate.py --help`, or plain
Python in local mode.
"""

import sys
from pathlib import Path

try:
    import onebit_spark
except ModuleNotFoundError:
    # It is not installed: the job runs from a checkout, and sends the package to the workers.
    onebit_spark = None
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onebit_spark.cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate(ship_package=onebit_spark is None))
