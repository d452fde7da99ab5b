"""The jobs: fit, predict, positions, evaluate. Each reads its input, calls the package once, and
writes.

flags (argparse from declared settings) ◄ requests (the flags of each job) ◄ running (runtime,
signals, exit codes) fit_job, model_jobs (predict, positions, evaluate): on any runtime; progress
(lines, bars and times); sentences local_runtime (this process), spark_runtime (a session)

A wrong argument is answered before numpy, Arrow or Spark is imported. So the modules of the jobs
are imported later.
"""

from onebit_spark.cli.running import compile_ahead, evaluate, fit, positions, predict

__all__ = ["compile_ahead", "evaluate", "fit", "positions", "predict"]
