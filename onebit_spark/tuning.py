"""Cross-validation: every setting is fitted once per fold, without the ratings of that fold, and judged on them.

    for each setting, for each fold:  result file there? ─► skip  :  fit, and write its result file

A TOML file lists values, and all combinations are tried. It may have several such products, in tables named [[grid]].

    prior = ["gamma", "inverse-gamma"]   ─►   {prior: gamma, alpha: 5}, {prior: gamma, alpha: 50},
    alpha = [5, 50]                           {prior: inverse-gamma, alpha: 5}, {prior: inverse-gamma, alpha: 50}

One-standard-error rule: consider all settings whose mean error is within one standard error of the lowest. Take the
smallest rank, then no intercepts, then the smallest error.

The fold of a rating is a hash of its cell (user, item). So the folds are the same on every runtime and in every run,
and all ratings of a cell are held out together: none is predicted from another rating of its own cell.

Ratings that fit one worker are fitted in memory, many fits side by side with one core each. Larger ones are fitted one
after the other, each on all cores or on the whole cluster.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.compiled import sources
from onebit_spark.core.config import AUTO, FitConfig, Terms, available_cores, by_param
from onebit_spark.core.hashes import cell_hashes, fold_hashes
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.prediction import log_loss
from onebit_spark.core.solver import NotConverged
from onebit_spark.errors import RequestError
from onebit_spark.fit import FitTask, fit_model
from onebit_spark.in_process import LocalModels, driver_state, fit_arrays
from onebit_spark.input.ratings import ArrowRatings, CollectedRatings, Columns, RatingCounts
from onebit_spark.input.tables import ArrowTable
from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import broadcast, driver_limits, parallelism
from onebit_spark.predictor.fitted_model import FittedModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onebit_spark.estimator import OneBitCompletion

log = logging.getLogger("onebit_spark")

FOLD = "__onebit_fold"
MOST_SHOWN = 30  # settings in the plot
VARIED = ("loss", "prior", "likelihood_weight", "alpha", "beta", "rank", "intercepts", "implicit_features")

DEFAULT_GRID = """
[[grid]]
loss = "logistic"
prior = ["inverse-gamma", "gamma"]

[[grid]]
loss = "hinge"
prior = ["inverse-gamma", "gamma"]
rank = 10
likelihood-weight = [1.0, 2.0, 4.0]
intercepts = false
"""

Combination = dict[str, Any]  # of settings, by the fields of FitConfig
Task = dict[str, Any]  # of JSON values, which determine the result
TaskResult = dict[str, Any]  # of JSON values, with ``seconds``


def read_grid(path: str | None = None) -> list[Combination]:
    if path is None:
        return settings_of(DEFAULT_GRID, "the default grid")
    try:
        return settings_of(Path(path).read_text(encoding="utf-8"), f"--grid {path}")
    except OSError as error:
        raise RequestError(f"--grid {path} cannot be read: {error.strerror}") from error


def settings_of(text: str, source: str) -> list[Combination]:
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise RequestError(f"{source} is not TOML: {error}") from error
    tables = content.get("grid", [content])
    if not isinstance(tables, list) or ("grid" in content and len(content) > 1):
        raise RequestError(f"{source} must hold either lists of settings or tables [[grid]] of them, not both")
    keys = {name: name.replace("_", "-") for name in VARIED}
    settings: list[Combination] = []
    problems: list[str] = []
    for table in tables:
        lists = {key.replace("-", "_"): value if isinstance(value, list) else [value] for key, value in table.items()}
        unknown = [name for name in lists if name not in VARIED]
        if unknown:
            allowed = ", ".join(keys.values())
            problems.append(f"unknown key {', '.join(map(repr, unknown))}; allowed keys: {allowed}")
            continue
        settings += [dict(zip(lists, values, strict=True)) for values in product(*lists.values()) if lists]
    for setting in settings:
        wrong = [problem.in_words(keys) for problem in FitConfig(**setting).problems()]
        if setting.get("likelihood_weight") == AUTO:
            wrong.append("likelihood-weight must be a number here: leave it out, and every fit chooses its own")
        problems += [problem for problem in wrong if problem not in problems]
    if not settings and not problems:
        problems.append("it holds no setting")
    if problems:
        raise RequestError(f"{source}: {'; '.join(problems)}")
    return [setting for number, setting in enumerate(settings) if setting not in settings[:number]]


# ---- the choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    config: FitConfig
    error: float  # mean of the error rates
    standard_error: float  # of ``error``
    log_loss: float  # mean
    seconds: float  # of all its fits


def score(config: FitConfig, folds: Sequence[Mapping[str, Any]]) -> Score:
    rates = np.array([fold["errors"] / fold["n"] for fold in folds])
    return Score(
        config=config,
        error=float(rates.mean()),
        standard_error=float(rates.std(ddof=1) / np.sqrt(len(rates))),
        log_loss=float(np.average([fold["log_loss"] for fold in folds], weights=[fold["n"] for fold in folds])),
        seconds=float(sum(fold["seconds"] for fold in folds)),
    )


def limit(scores: Sequence[Score]) -> float:
    """The lowest mean error plus its standard error: settings up to here count as equally good."""
    lowest = min(scores, key=lambda score: score.error)
    return lowest.error + lowest.standard_error


def choose(scores: Sequence[Score]) -> Score:
    equal = [score for score in scores if score.error <= limit(scores)]
    return min(equal, key=lambda score: (score.config.factors, score.config.intercepts, score.error))


def plotted(scores: Sequence[Score], chosen: Score, name_of: Callable[[FitConfig], str]) -> bytes | None:
    """A PNG of the most accurate settings, the best on top, with standard errors and the limit of ``choose``.

    Without matplotlib it logs a warning and returns None.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        log.warning("no tuning.png: it needs matplotlib (pip install '.[plots]')")
        return None
    shown = sorted(scores, key=lambda score: score.error)[:MOST_SHOWN]
    figure = Figure(figsize=(9, 1.2 + 0.25 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(limit(scores), color="0.7", linestyle="--", linewidth=1, zorder=0)
    for place, score in enumerate(shown):
        colour = "C3" if score is chosen else "C0"
        axes.errorbar(score.error, place, xerr=score.standard_error, marker="o", markersize=4, capsize=2, color=colour)
    axes.set_yticks(range(len(shown)), [name_of(score.config) for score in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("error, mean over folds ± standard error; red: chosen; dashed: lowest plus its standard error")
    axes.spines[["top", "right"]].set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()


# ---- tasks that are done once ----------------------------------------------------------------------------------------


def run_tasks(
    tasks: Sequence[Task], work: Callable[[Task], TaskResult], folder: Location, advance: Callable[[int, float], None],
    at_once: int = 1, packages: Sequence[str] = ("onebit_spark",),
) -> list[TaskResult]:  # fmt: skip
    """Do ``work(task)`` for every task, ``at_once`` of them in threads. The results have the order of the tasks.

    Each result is a JSON file in the folder, which appears whole or not at all. A task whose file is there is skipped,
    so a killed run continues. Each version of the code of the ``packages`` has its own subfolder.

    ``advance`` counts finished tasks and their seconds on the clock, 0 for those of an earlier run.
    """
    folder = folder / f"code-{source_digest(packages)}"
    keys = [json.dumps(task, sort_keys=True) for task in tasks]
    names = {key: f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json" for key in keys}
    there = set(folder.names())
    results = {key: json.loads((folder / name).read_text())["result"] for key, name in names.items() if name in there}
    missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in results}
    advance(len(tasks) - len(missing), 0.0)
    at_once = max(1, min(at_once, len(missing)))

    def once(key: str) -> None:
        results[key] = timed(work, missing[key])
        (folder / names[key]).write_text(json.dumps({"task": missing[key], "result": results[key]}) + "\n")

    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(once, key): key for key in missing}
        try:
            for future in as_completed(futures):
                future.result()
                advance(1, results[futures[future]]["seconds"] / at_once)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[key] for key in keys]


def timed(work: Callable[[Task], TaskResult], task: Task) -> TaskResult:
    began = time.perf_counter()
    result = work(task)
    return {"seconds": time.perf_counter() - began, **result}


def source_digest(packages: Iterable[str]) -> str:
    """A hash of the source of some packages, also from a zip."""
    digest = hashlib.sha256()
    for package in packages:
        for name, source in sorted(sources(files(package), package), key=lambda pair: pair[0]):
            digest.update(name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def on_workers(spark: SparkSession, work: Callable[[Task], TaskResult]) -> Callable[[Task], TaskResult]:
    """``work`` as a Spark job of one task, which a thread of the driver starts."""

    def in_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [json.dumps(timed(work, json.loads(text))) for text in batch.column("task").to_pylist()]
            yield pa.RecordBatch.from_pydict({"result": texts})

    def by_spark(task: Task) -> TaskResult:
        line = spark.createDataFrame(pa.table({"task": [json.dumps(task)]})).coalesce(1)
        return json.loads(line.mapInArrow(in_worker, "result string").toArrow()["result"][0].as_py())

    return by_spark


# ---- ratings in memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    rows: NDArray[np.int32]
    cols: NDArray[np.int32]
    labels: NDArray[np.int8]  # ±1
    shape: tuple[int, int]  # of the matrix
    weights: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls, rows: NDArray, cols: NDArray, labels: NDArray, shape: tuple[int, int], weights: NDArray | None = None
    ) -> Sample:
        return cls(rows.astype(np.int32), cols.astype(np.int32), labels.astype(np.int8), shape, weights)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: NDArray) -> Sample:
        weights = None if self.weights is None else self.weights[which]
        return Sample(self.rows[which], self.cols[which], self.labels[which], self.shape, weights)


def folded_sample(ratings: CollectedRatings, n_folds: int, seed: int) -> tuple[Sample, NDArray[np.int32]]:
    block = ratings.ratings
    rows = np.repeat(np.arange(block.n_rows), block.row_counts)
    cols, labels = block.codes >> 1, np.where(block.codes & 1, 1, -1)
    cells = cell_hashes(ratings.users.take(rows), ratings.items.take(cols))
    fold = (fold_hashes(cells, seed) % n_folds).astype(np.int32)
    return Sample.of(rows, cols, labels, (block.n_rows, block.n_columns), block.weights), fold


def fit_fold(sample: Sample, held_out: NDArray[np.bool_], config: FitConfig, threads: int | None = 1) -> TaskResult:
    """Fit the other ratings, and count the errors on those held out. A score of exactly 0 predicts the majority."""
    train, test = sample.take(~held_out), sample.take(held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        sides = train.rows, train.cols, train.labels
        fit = fit_arrays(*sides, config, train.shape, weights=train.weights, threads=threads)
    errors = int(np.count_nonzero(fit.predict(test.rows, test.cols) != test.labels))
    return _result(fit.info, errors, len(test), log_loss(test.labels, fit.probability(test.rows, test.cols)))


def _result(info: ModelInfo, errors: int, n: int, loss: float) -> TaskResult:
    end = {"iterations": info.iterations, "converged": info.converged, "effective_rank": info.effective_rank}
    return {"errors": errors, "n": n, "log_loss": loss, **end}


# ---- cross-validation on both runtimes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossValidation:
    counts: RatingCounts  # of all ratings
    n_folds: int
    seed: int  # of the folds
    work: Callable[[Task], TaskResult]  # fits and judges one fold
    at_once: int  # fits side by side
    resources: str  # of one fit, in words
    fit_all: Callable[[FitConfig, int], Any]  # the model of all ratings, whose setting was chosen among so many

    def tasks(self, configs: Sequence[FitConfig]) -> list[Task]:
        """One task per setting and fold. The folds of a setting follow each other."""
        data = [self.counts.n, self.counts.positives, self.counts.fingerprint]
        return [
            {"data": data, "folds": self.n_folds, "fold": fold, "seed": self.seed, "config": asdict(config)}
            for config in configs
            for fold in range(self.n_folds)
        ]


@contextmanager
def local_validation(
    table: ArrowTable, columns: Columns, n_folds: int, seed: int, worker_limit: int
) -> Iterator[CrossValidation]:
    """Cross-validation in this process. Up to ``worker_limit`` ratings, fits run side by side with one core each."""
    source = ArrowRatings(table, columns)
    ratings, _ = source.divided()
    sample, fold = folded_sample(ratings, n_folds, seed)
    alone = ratings.counts.n <= worker_limit

    def work(task: Task) -> TaskResult:
        return fit_fold(sample, fold == task["fold"], FitConfig(**task["config"]), threads=1 if alone else None)

    def fit_all(config: FitConfig, settings: int) -> Any:
        task = FitTask[FittedModel](config, Terms(grid=settings), columns, source.id_types)
        opening = driver_state(ratings, config, "cpu")
        return fit_model(task, ratings, LocalModels(), opening)

    at_once, resources = (available_cores(), "one core each") if alone else (1, "all cores together")
    yield CrossValidation(ratings.counts, n_folds, seed, work, at_once, resources, fit_all)


@contextmanager
def spark_validation(
    ratings: DataFrame, columns: Columns, n_folds: int, seed: int, worker_limit: int
) -> Iterator[CrossValidation]:
    """Cross-validation on a session.

    Up to ``worker_limit`` ratings, every worker holds all of them and each fit is one Spark task; with a local master
    the fits are threads of this process. More ratings are fitted by the whole cluster, one fit after the other.
    """
    from pyspark.sql import functions as F

    from onebit_spark.input.spark_ratings import cell_hash, check_ratings, collect_ratings, estimate_size, with_weight
    from onebit_spark.ml.scoring import checked_ratings, measure

    spark = ratings.sparkSession
    ratings = with_weight(ratings, columns)
    size = estimate_size(ratings, columns)

    def fit_all(config: FitConfig, settings: int) -> Any:
        return estimator_of(config, columns, settings).fit(ratings)

    if size.n <= worker_limit:
        limits = driver_limits(spark)
        collected = collect_ratings(ratings, columns, size, min(limits.result, limits.heap // 4))
        data = broadcast(spark, folded_sample(collected, n_folds, seed))

        def in_memory(task: Task) -> TaskResult:
            sample, fold = data.value
            return fit_fold(sample, fold == task["fold"], FitConfig(**task["config"]))

        work = in_memory if limits.local else on_workers(spark, in_memory)
        counts, at_once = collected.counts, parallelism(spark)
        try:
            yield CrossValidation(counts, n_folds, seed, work, at_once, "one worker each", fit_all)
        finally:
            data.destroy()
        return

    counts = check_ratings(ratings, columns)
    hashed = F.xxhash64(cell_hash(ratings, columns), F.lit(seed))
    folded = ratings.withColumn(FOLD, F.pmod(hashed, F.lit(n_folds)).cast("int")).persist()

    def on_the_cluster(task: Task) -> TaskResult:
        test = F.col(FOLD) == task["fold"]
        model = estimator_of(FitConfig(**task["config"]), columns).fit(folded.where(~test).drop(FOLD))
        kept = checked_ratings(model.factors, folded.where(test), columns.threshold)
        figures, _ = measure(model.factors, kept.ratings, columns.threshold, kept.counts)
        return _result(model.info, figures["n_wrong"], figures["n"], figures["log_loss"])

    try:
        yield CrossValidation(counts, n_folds, seed, on_the_cluster, 1, "all workers together", fit_all)
    finally:
        folded.unpersist()


def estimator_of(config: FitConfig, columns: Columns, settings: int = 1) -> OneBitCompletion:
    from onebit_spark.estimator import OneBitCompletion

    names: dict[str, Any] = {f"{role}Col": name for role, name in columns.roles.items()}
    return OneBitCompletion(**names, threshold=columns.threshold, certificateGrid=settings, **by_param(config))
