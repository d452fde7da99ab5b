"""tune: cross-validation of a grid, and a fit of all ratings with the chosen setting.

OUTPUT/folds/       Parquet, one line per setting and fold
OUTPUT/settings/    Parquet, one line per setting: mean error, standard error, log loss, chosen or not
OUTPUT/tuning.png   the settings in order, and the limit of the one-standard-error rule; needs matplotlib
OUTPUT/best.toml    the chosen setting, as keys of `fit.py --config`
OUTPUT/model/       the fit of all ratings with it; written last
OUTPUT/tasks/       results of finished fits, one JSON file per setting and fold: a killed run continues from them
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark import tuning
from onebit_spark.cli.fit_job import Runtime, columns_of, print_summary, refuse_output, writable
from onebit_spark.cli.progress import TaskProgress
from onebit_spark.cli.requests import TuneRequest
from onebit_spark.core.config import AUTO, FitConfig, declared
from onebit_spark.platform.files import TUNING, Location, continued_folder
from onebit_spark.tuning import VARIED, Score, Task, TaskResult

TYPES = {str: pa.string(), float: pa.float64(), int: pa.int32(), bool: pa.bool_()}
VARIED_COLUMNS = [(name, TYPES[declared(FitConfig)[name].kind]) for name in VARIED]
FOLD_COLUMNS = [
    ("fold", pa.int32()), ("errors", pa.int64()), ("n", pa.int64()), ("log_loss", pa.float64()),
    ("iterations", pa.int32()), ("converged", pa.bool_()), ("effective_rank", pa.int32()), ("seconds", pa.float64()),
]  # fmt: skip
FIGURES = ("error", "standard_error", "log_loss", "seconds")
SCORE_COLUMNS = [*((name, pa.float64()) for name in FIGURES), ("chosen", pa.bool_())]


def tune(runtime: Runtime, request: TuneRequest) -> None:
    configs = [replace(request.fit_config, **varied) for varied in tuning.read_grid(request.grid)]
    spark, columns, seed = runtime.session, columns_of(request), request.fit_config.seed
    there = writable(spark, "--output", request.output)
    killed = (there / "tasks").exists() and not (there / "model").exists()
    refuse_output(spark, "--output", request.output, TUNING, request.overwrite or killed)
    ratings = runtime.table(request, "ratings", columns.names)
    validate = tuning.local_validation if spark is None else tuning.spark_validation
    with (
        validate(ratings, columns, request.folds, seed, request.worker_limit) as validation,
        continued_folder(spark, request.output, TUNING, request.overwrite) as folder,
    ):
        tasks = validation.tasks(configs)
        with TaskProgress(len(tasks), "tuning", quiet=request.quiet) as progress:
            results = tuning.run_tasks(tasks, validation.work, folder / "tasks", progress.advance, validation.at_once)
        folds = [results[first : first + request.folds] for first in range(0, len(results), request.folds)]
        scores = [tuning.score(config, of_config) for config, of_config in zip(configs, folds, strict=True)]
        chosen = tuning.choose(scores)
        _write_results(folder, tasks, results, scores, chosen)
        runtime.save(validation.fit_all(chosen.config, len(configs)), (folder / "model").uri, overwrite=True)
    n, resources = validation.counts.n, validation.resources
    lowest = min(score.error for score in scores)
    summary = [
        f"{len(configs)} settings, {request.folds} folds of {n:,} ratings: {len(tasks)} fits, {resources}.",
        f"Lowest error {lowest:.4f}; the cheapest setting within one standard error of it:",
        f"  {in_words(chosen.config)}: error {chosen.error:.4f} ± {chosen.standard_error:.4f}",
    ]
    print_summary(summary, None, request.quiet, {"results, plot and model": request.output})


def in_words(config: FitConfig) -> str:
    pairs = {name: getattr(config, name) for name in VARIED}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in pairs.items() if value is not None)


def as_toml(config: FitConfig, settings: int) -> str:
    """The setting as keys of ``fit.py --config``, with the number of ``settings`` that were compared."""
    keys = {name: item.key for name, item in declared(FitConfig).items() if item.key is not None}
    others = [name for name in keys if name not in VARIED]
    values = {keys[name].replace("_", "-"): getattr(config, name) for name in (*VARIED, *others)}
    values["certificate-grid"] = settings
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None)


def _write_results(
    folder: Location, tasks: Sequence[Task], results: Sequence[TaskResult], scores: Sequence[Score], chosen: Score
) -> None:
    def setting(config: dict[str, Any]) -> dict[str, Any]:
        return {name: None if config[name] == AUTO else config[name] for name in VARIED}  # as an empty cell

    lines = [
        {**setting(task["config"]), "fold": task["fold"], **result} for task, result in zip(tasks, results, strict=True)
    ]
    figures = [{name: getattr(score, name) for name in FIGURES} for score in scores]
    summary = [
        {**setting(asdict(score.config)), **figures[place], "chosen": score is chosen}
        for place, score in enumerate(scores)
    ]
    for name, rows, columns in (("folds", lines, FOLD_COLUMNS), ("settings", summary, SCORE_COLUMNS)):
        content = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([*VARIED_COLUMNS, *columns])), content)
        (folder / name).delete()
        (folder / name / "part-00000.parquet").write_bytes(content.getvalue())
    if (plot := tuning.plotted(scores, chosen, in_words)) is not None:
        (folder / "tuning.png").write_bytes(plot)
    (folder / "best.toml").write_text(as_toml(chosen.config, len(scores)))
