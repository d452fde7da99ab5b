"""jobs/tune.py: cross-validation of a grid on Spark, and a fit of all ratings with the chosen setting.

OUTPUT/folds/       Parquet, one line per setting and fold
OUTPUT/settings/    Parquet, one line per setting: mean error, standard error, log loss, chosen or not
OUTPUT/tuning.png   the settings in order, and the limit of the one-standard-error rule
OUTPUT/best.toml    the chosen setting, as keys of `fit.py --config`
OUTPUT/model/       the fit of all ratings with it; written last
OUTPUT/tasks/       results of finished tasks: see tasks.Ledger
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from onebit_spark.cli.experiment_requests import TuneRequest
from onebit_spark.core.config import FitConfig
from onebit_spark.core.output_kinds import TUNING
from onebit_spark.core.settings import declared
from onebit_spark.tuning.grid import VARIED, read_grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onebit_spark.platform.files import Location
    from onebit_spark.tuning.folds import Score
    from onebit_spark.tuning.tasks import Task, TaskResult

SQL = {str: "string", float: "double", int: "int", bool: "boolean"}
VARIED_COLUMNS = ", ".join(f"{name} {SQL[declared(FitConfig)[name].kind]}" for name in VARIED)
FOLD_COLUMNS = (
    "fold int, errors bigint, n bigint, log_loss double, iterations int, converged boolean, effective_rank int, "
    "seconds double"
)
SCORE_COLUMNS = "error double, standard_error double, log_loss double, seconds double, chosen boolean"


def run_tune(spark: SparkSession, request: TuneRequest) -> None:
    from onebit_spark.cli.job_tables import read_table
    from onebit_spark.cli.task_progress import TaskProgress
    from onebit_spark.input.defects import Columns
    from onebit_spark.platform.files import continued_folder
    from onebit_spark.tuning import folds as tuning
    from onebit_spark.tuning.cross_validation import CrossValidation
    from onebit_spark.tuning.tasks import Ledger

    configs = [replace(request.fit_config(), **varied) for varied in read_grid(request.grid)]
    _check_output(spark, request)
    columns = Columns(request.user_col, request.item_col, request.label_col, request.threshold, request.weight_col)
    ratings = read_table(spark, request, "ratings", columns.names)
    validation = CrossValidation.of(ratings, columns, request.folds, request.seed)
    n = validation.surveyed.tally.n
    alone = n <= request.worker_limit
    tasks = validation.tasks(configs)
    with continued_folder(spark, request.output, TUNING, request.overwrite) as folder:
        ledger = Ledger(spark, (folder / "tasks").uri)
        with TaskProgress(len(tasks), "tuning", quiet=request.quiet) as progress:
            run = validation.in_workers if alone else validation.one_after_the_other
            results = run(tasks, ledger, progress)
        folds = [results[first : first + request.folds] for first in range(0, len(results), request.folds)]
        scores = [tuning.score(config, of_config) for config, of_config in zip(configs, folds, strict=True)]
        chosen = tuning.choose(scores)
        _write_results(spark, folder, tasks, results, scores, chosen)
        model = validation.estimator(chosen.config, settings=len(configs)).fit(ratings)
        model.write().overwrite().save((folder / "model").uri)
    if not request.quiet:
        how = "one worker each" if alone else "all workers together"
        print(f"{len(configs)} settings, {request.folds} folds of {n:,} ratings: {len(tasks)} fits, {how}.")
        lowest = min(score.error for score in scores)
        print(f"Lowest error {lowest:.4f}; the cheapest setting within one standard error of it:")
        print(f"  {told(chosen.config)}: error {chosen.error:.4f} ± {chosen.standard_error:.4f}")
    print(request.output if request.quiet else f"results, plot and model: {request.output}", flush=True)


def told(config: FitConfig) -> str:
    """The setting in one line, without defaults."""
    pairs = {name: getattr(config, name) for name in VARIED}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in pairs.items() if value is not None)


def as_toml(config: FitConfig, settings: int) -> str:
    """The setting as keys of ``fit.py --config``, with the number of ``settings`` that were compared."""
    keys = {name: item.key for name, item in declared(FitConfig).items() if item.key is not None}
    others = [name for name in keys if name not in VARIED]
    values = {keys[name].replace("_", "-"): getattr(config, name) for name in (*VARIED, *others)}
    values["certificate-grid"] = settings
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None)


def _check_output(spark: SparkSession, request: TuneRequest) -> None:
    """Refuse an output folder that is neither new, nor that of a killed run, nor may be overwritten."""
    from onebit_spark.cli.job_tables import refuse_output, writable

    folder = writable(spark, "--output", request.output)
    killed = (folder / "tasks").exists() and not (folder / "model").exists()
    refuse_output(spark, "--output", request.output, TUNING, request.overwrite or killed)


def _write_results(
    spark: SparkSession,
    folder: Location,
    tasks: Sequence[Task],
    results: Sequence[TaskResult],
    scores: Sequence[Score],
    chosen: Score,
) -> None:
    from onebit_spark.tuning import figures

    def setting(config: dict[str, Any]) -> dict[str, Any]:
        return {name: config[name] for name in VARIED}

    lines = [
        {**setting(task["config"]), "fold": task["fold"], **result} for task, result in zip(tasks, results, strict=True)
    ]
    summary = [
        {
            **setting(asdict(score.config)),
            "error": score.error,
            "standard_error": score.standard_error,
            "log_loss": score.log_loss,
            "seconds": score.seconds,
            "chosen": score is chosen,
        }
        for score in scores
    ]
    for name, rows, columns in (
        ("folds", lines, f"{VARIED_COLUMNS}, {FOLD_COLUMNS}"),
        ("settings", summary, f"{VARIED_COLUMNS}, {SCORE_COLUMNS}"),
    ):
        spark.createDataFrame(rows, columns).coalesce(1).write.mode("overwrite").parquet((folder / name).uri)
    (folder / "tuning.png").write_bytes(figures.tuning(scores, chosen, told))
    (folder / "best.toml").write_text(as_toml(chosen.config, len(scores)))
