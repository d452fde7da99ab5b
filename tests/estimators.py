"""An estimator with settings that have no Param: where the fit starts, and where shuffled factors are stored."""

from dataclasses import replace

from onebit_spark.estimator import OneBitCompletion


def estimator_with(start="spectral", work_dir=None, **params):
    estimator = OneBitCompletion(**params)
    config, execution = replace(estimator.fitConfig(), start=start), replace(estimator.execution(), work_dir=work_dir)
    estimator.fitConfig, estimator.execution = lambda: config, lambda: execution
    return estimator
