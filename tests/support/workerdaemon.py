"""The process from which Spark forks the Python workers of the tests: `spark.python.daemon.module`.

After each task a worker runs `gc.collect()`, which visits every object of every imported package:
79 ms per task, as measured. This daemon imports the packages once, before the fork, and hides them
from the collector. Jobs that tests start as processes of their own have the daemon of Spark.
"""

import gc

from pyspark import daemon

import onebit_spark.spark.estimator  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    daemon.manager()
