"""The flags of the jobs, and the checks that are possible before Spark starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from onebit_spark.cli.flags import CERTIFICATES, INPUT, OUTPUT, SPARK, as_flag, flag, in_flags, settings
from onebit_spark.cli.flags import MODEL as MODEL_FLAGS
from onebit_spark.core.config import RARE, Execution, FitConfig, Labels, Terms, device_problems

FILES = ("parquet", "csv", "json")
TABLE_FORMATS = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}  # Spark needs their packages
FORMATS = (*FILES, *TABLE_FORMATS)
TABLE = re.compile(r"\w+(\.\w+){0,2}")
FILE_ENDINGS = (
    "parquet", "csv", "tsv", "json", "jsonl", "ndjson", "gz", "bz2", "zst", "lz4", "txt", "data", "zip", "orc"
)  # fmt: skip
RUNTIMES = ("auto", "local", "spark")
LOG_LEVELS = ("error", "warn", "info", "debug")


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The flags that all jobs have: what they print, and where Spark is."""

    main: ClassVar[tuple[str, ...]] = ()  # the flags that --help shows first

    quiet: bool = flag("print only errors and where the output is", default=False, group=OUTPUT)
    log_level: str | None = flag(
        "how much Spark logs (default: warn, unless you configured it)", default=None, choices=LOG_LEVELS, group=RARE
    )
    remote: str | None = flag(
        "address of a Spark Connect server, such as sc://host:15002 (default: $SPARK_REMOTE)",
        default=None,
        metavar="URL",
        group=SPARK,
    )

    def problems(self) -> Iterator[str]:
        """All problems, in words."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class JobRequest(SessionRequest):
    """The flags of jobs that read tables."""

    format: str | None = flag(
        "format of the input (default: by the file extension, else parquet)", default=None, choices=FORMATS, group=INPUT
    )
    runtime: str | None = flag(
        "where the job runs: local is this process and needs no Java; auto is local, unless something needs Spark "
        "(default: auto; with jobs/*.py: spark)",
        default=None,
        choices=RUNTIMES,
        group=SPARK,
    )
    option: dict[str, str] = flag(
        "option of the reader, such as sep=; CSV is RFC 4180 (repeatable)", default=dict, group=INPUT
    )
    overwrite: bool = flag("replace an earlier output of this job", default=False, group=OUTPUT)

    inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[Mapping[str, str]] = {}  # flag ─► kind of output: see ``runtime.KINDS``

    def problems(self) -> Iterator[str]:
        """All problems, in words."""
        sources, targets = self.paths(self.inputs), self.paths(self.outputs)
        for name, path in sources.items():
            local = local_path(path)
            if local is not None and not re.search(r"[*?\[{]", path) and not local.exists():
                yield f"{name} {path} does not exist"
        for name, path in targets.items():
            local = local_path(path)
            if local is not None and local.exists() and not self.overwrite:
                yield exists_already(name, path)
            for other, other_path in {**sources, **targets}.items():
                if other != name and _holds(path, other_path):
                    yield f"{other} {other_path} lies in {name} {path}, which is replaced as a whole: choose another"

    def paths(self, names: Iterable[str]) -> dict[str, str]:
        """The given paths among these fields, by flag."""
        return {as_flag(name): getattr(self, name) for name in names if getattr(self, name)}


@dataclass(frozen=True, kw_only=True)
class RatingsRequest(JobRequest):
    """The flags of the jobs that fit ratings: where the ratings are, and their columns."""

    ratings: str = flag("path of the ratings")
    user_col: str = flag("column of the user ids", default="user", group=INPUT)
    item_col: str = flag("column of the item ids", default="item", group=INPUT)
    labels: Labels = settings(Labels, INPUT)

    def problems(self) -> Iterator[str]:
        yield from in_flags(Labels, self.labels.problems())
        if len({self.user_col, self.item_col, self.labels.label_col}) < 3:
            yield "--user-col, --item-col and --label-col must name three different columns"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class FitRequest(RatingsRequest):
    """Fit a model to ratings of users on items, each positive or negative."""

    output: str = flag("folder for the model", metavar="FOLDER")
    fit_config: FitConfig = settings(FitConfig, MODEL_FLAGS)
    execution: Execution = settings(Execution, SPARK)
    terms: Terms = settings(Terms, CERTIFICATES)
    holdout: float | None = flag(
        "keep this share of the ratings out of the fit, to certify the model", default=None, group=CERTIFICATES
    )
    calibrate: bool = flag("calibrate the probabilities on the held-out ratings", default=False, group=CERTIFICATES)
    max_error: tuple[float, ...] = flag(
        "answer only pairs with a certified error rate of at most this, such as 0.05; several: 0.1,0.05",
        default=(),
        group=CERTIFICATES,
    )
    certify_by: str | None = flag(
        "column of the ratings: certify within each of its groups as well",
        default=None,
        metavar="COLUMN",
        group=CERTIFICATES,
    )
    predict: str | None = flag("path of user-item pairs to predict after the fit", default=None, group=OUTPUT)
    predictions: str | None = flag("folder for these predictions, or a file PATH.csv", default=None, group=OUTPUT)
    output_table: str | None = flag("catalog table for these predictions", default=None, metavar="TABLE", group=OUTPUT)
    user_features: str | None = flag(
        "path of side features of the users: one line per user, any columns", default=None, group=INPUT
    )
    item_features: str | None = flag(
        "path of side features of the items: one line per item, any columns", default=None, group=INPUT
    )
    report: bool = flag("draw report.html, the fit in pictures (default: yes)", default=True, group=OUTPUT)
    config: str | None = flag("TOML file with any of these flags as keys; flags win", default=None, group=OUTPUT)

    main = ("ratings", "output", "user_col", "item_col", "label_col", "threshold", "holdout", "max_error", "predict",
            "predictions")  # fmt: skip
    inputs = ("ratings", "predict", "user_features", "item_features")
    outputs: ClassVar = {"output": "model", "predictions": "predictions"}

    def problems(self) -> Iterator[str]:
        for table in (self.fit_config, self.execution, self.terms):
            yield from in_flags(type(table), table.problems())
        yield from in_flags(Execution, device_problems(self.fit_config, self.execution))
        unseen = "ratings that are not fitted: add --holdout 0.1, for example"
        if self.calibrate and self.holdout is None:
            yield f"--calibrate needs {unseen}"
        yield from _selective_problems(self, unseen if self.holdout is None else None)
        if self.holdout is not None and not 0 < self.holdout < 1:
            yield f"--holdout must lie strictly between 0 and 1, not {self.holdout}"
        if (self.predict is None) != (self.predictions is None and self.output_table is None):
            yield "--predict PAIRS and --predictions FOLDER (or --output-table TABLE) go together: give both or neither"
        yield from table_problems(self.output_table, self.paths(self.inputs))
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class PredictRequest(JobRequest):
    """Predict user-item pairs with a fitted model, or recommend items to every user."""

    model: str = flag("folder of the model", metavar="FOLDER")
    output: str | None = flag("folder for the predictions, or a file PATH.csv", default=None)
    output_table: str | None = flag("catalog table for the predictions", default=None, metavar="TABLE", group=OUTPUT)
    pairs: str | None = flag("path of the user-item pairs, in columns named as in the fit", default=None)
    top: int | None = flag("instead of pairs: recommend this many items to every user", default=None)
    exclude_seen: str | None = flag("path of ratings; --top does not recommend these pairs", default=None)
    user_features: str | None = flag(
        "path of side features of users without ratings in the fit", default=None, group=INPUT
    )
    item_features: str | None = flag(
        "path of side features of items without ratings in the fit", default=None, group=INPUT
    )

    main = ("model", "pairs", "top", "exclude_seen", "output", "overwrite")
    inputs = ("model", "pairs", "exclude_seen", "user_features", "item_features")
    outputs: ClassVar = {"output": "predictions"}

    def problems(self) -> Iterator[str]:
        if self.output is None and self.output_table is None:
            yield "give --output FOLDER or --output-table TABLE"
        yield from table_problems(self.output_table, self.paths(self.inputs))
        if (self.pairs is None) == (self.top is None):
            yield "give either --pairs PATH or --top N"
        if self.top is not None and self.top < 1:
            yield f"--top must be an integer of at least 1, not {self.top}"
        if self.exclude_seen is not None and self.top is None:
            yield "--exclude-seen belongs to --top N"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(JobRequest):
    """Measure a fitted model on ratings that it has not seen."""

    model: str = flag("folder of the model", metavar="FOLDER")
    ratings: str = flag("path of the ratings, in columns named as in the fit")
    labels: Labels = settings(
        Labels, INPUT, "threshold", threshold="labels strictly greater are positive (default: as in the fit)"
    )
    certify: bool = flag(
        "certify an upper limit on the error rate; the ratings must not have been fitted", default=False
    )
    terms: Terms = settings(
        Terms,
        CERTIFICATES,
        "delta",
        "grid",
        delta="the certificate holds with probability 1 − δ",
        grid="number of models or settings that are compared on these ratings; each is certified at δ/grid",
    )
    max_error: tuple[float, ...] = flag(
        "with --certify: which share of the pairs can be answered with at most this error rate, such as 0.05",
        default=(),
        group=CERTIFICATES,
    )
    certify_by: str | None = flag(
        "with --certify: column of the ratings; certify within each of its groups as well",
        default=None,
        metavar="COLUMN",
        group=CERTIFICATES,
    )
    output: str | None = flag("JSON file for the figures, such as metrics.json", default=None)

    main = ("model", "ratings", "certify", "max_error", "output", "overwrite")
    inputs = ("model", "ratings")
    outputs: ClassVar = {"output": "figures"}

    def problems(self) -> Iterator[str]:
        yield from in_flags(Labels, self.labels.problems())
        yield from in_flags(Terms, self.terms.problems())
        yield from _selective_problems(self, None if self.certify else "a certificate: add --certify")
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class TuneRequest(RatingsRequest):
    """Choose the settings by cross-validation, and fit all ratings with them. A killed run continues where it was."""

    output: str = flag("folder for results, plot and model", metavar="FOLDER")
    grid: str | None = flag("TOML file with lists of settings to combine (default: see conf/grid.toml)", default=None)
    folds: int = flag("number of folds; each is held out once", default=5)
    fit_config: FitConfig = settings(
        FitConfig,
        MODEL_FLAGS,
        "max_iter",
        "tol",
        "seed",
        max_iter="largest number of iterations of a fit",
        seed="seed of the folds and of the fits",
    )
    worker_limit: int = flag("up to so many ratings, each fit runs on one worker; above, on all", default=5_000_000)

    main = ("ratings", "output", "grid", "folds", "user_col", "item_col", "label_col", "threshold", "worker_limit",
            "overwrite")  # fmt: skip
    inputs = ("ratings", "grid")

    def problems(self) -> Iterator[str]:
        if self.folds < 2:
            yield f"--folds must be an integer of at least 2, not {self.folds}"
        if self.worker_limit < 0:
            yield f"--worker-limit must be 0 or above, not {self.worker_limit}"
        yield from in_flags(FitConfig, self.fit_config.problems())
        for name, path in self.paths(self.inputs).items():
            if self.output and _holds(self.output, path):
                yield f"{name} {path} lies in --output {self.output}: choose another path"
        local = local_path(self.output) if self.output else None
        if local is not None and (local / "model").exists() and not self.overwrite:
            yield exists_already("--output", self.output)
        yield from super().problems()


def under_spark_submit() -> bool:
    """Whether spark-submit started this process. It then passes the port of its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def local_path(path: str) -> Path | None:
    """The path if it is certainly on the disk of this machine. None if only a Spark session can tell."""
    parts = urlsplit(path)
    if is_table_name(path) and not Path(path).exists():
        return None
    if parts.scheme == "file":
        return Path(parts.path)
    if parts.scheme or under_spark_submit() or "HADOOP_CONF_DIR" in os.environ:
        return None
    return Path(path)


def is_table_name(path: str) -> bool:
    """Whether it may name a table of a catalog, such as ``films.ratings``, and not a file, such as ``ratings.csv``."""
    return "." in path and bool(TABLE.fullmatch(path)) and path.rpartition(".")[2].lower() not in FILE_ENDINGS


def table_problems(name: str | None, sources: Mapping[str, str]) -> Iterator[str]:
    """Problems with the table for predictions, given the inputs by flag."""
    if name is not None and not TABLE.fullmatch(name):
        yield f"--output-table must be TABLE, DATABASE.TABLE or CATALOG.DATABASE.TABLE, not {name!r}"
    for source, path in sources.items():
        if path == name:
            yield f"{source} and --output-table are the same table, {name}: choose another for the predictions"


def is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def exists_already(name: str, path: str) -> str:
    return f"{name} {path} exists already: choose another path or add --overwrite"


def _holds(folder: str, path: str) -> bool:
    """Whether the path is the folder or lies in it, judged by the names."""
    outer, inner = urlsplit(folder), urlsplit(path)
    same_place = outer.netloc == inner.netloc
    return same_place and Path(os.path.abspath(inner.path)).is_relative_to(os.path.abspath(outer.path))


def _selective_problems(request: FitRequest | EvaluateRequest, missing: str | None) -> Iterator[str]:
    """Problems with the error rates, and flags that need what is ``missing``."""
    if request.max_error:
        from onebit_spark.certificate.held_out import request_problems

        yield from (f"--max-error {problem}" for problem in request_problems(request.max_error))
    for name in ("max_error", "certify_by"):
        if getattr(request, name) and missing:
            yield f"{as_flag(name)} needs {missing}"
