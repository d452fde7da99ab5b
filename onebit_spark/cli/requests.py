"""The flags of the jobs, and the checks that are possible before Spark starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlsplit

from onebit_spark.cli.flags import CERTIFICATES, INPUT, OUTPUT, SPARK, Request, as_flag, repeatable
from onebit_spark.errors import RequestError
from onebit_spark.settings import (
    FINITE,
    RARE,
    SHARE,
    Execution,
    FitConfig,
    Labels,
    Problem,
    Settings,
    Terms,
    at_least,
    device_problems,
    setting,
)

if TYPE_CHECKING:
    from onebit_spark.data.locations import OutputKind

T = TypeVar("T", bound=Settings)

FILES = ("parquet", "csv", "json")
# Spark needs their packages
TABLE_FORMATS = {
    "delta": "Delta Lake",
    "iceberg": "Iceberg",
    "hudi": "Hudi",
}
FORMATS = (*FILES, *TABLE_FORMATS)
TABLE = re.compile(r"\w+(\.\w+){0,2}")
FILE_ENDINGS = (
    "parquet",
    "csv",
    "tsv",
    "json",
    "jsonl",
    "ndjson",
    "gz",
    "bz2",
    "zst",
    "lz4",
    "txt",
    "data",
    "zip",
    "orc",
)
TABULAR = ("predictions", "positions")  # kinds of output that are tables
RUNTIMES = ("auto", "local", "spark")
LOG_LEVELS = ("error", "warn", "info", "debug")


@dataclass(frozen=True, kw_only=True)
class SessionRequest(Request):
    """The flags that all jobs have: what they print, and where Spark is."""

    quiet: bool = setting(False, "print only errors and where the output is", group=OUTPUT)
    log_level: str | None = setting(
        None,
        "how much Spark logs (default: warn, unless you configured it)",
        choices=LOG_LEVELS,
        group=RARE,
    )
    remote: str | None = setting(
        None,
        "address of a Spark Connect server, such as sc://host:15002 (default: $SPARK_REMOTE)",
        group=SPARK,
    )


@dataclass(frozen=True, kw_only=True)
class JobRequest(SessionRequest):
    """The flags of jobs that read tables."""

    format: str | None = setting(
        None,
        "format of the input (default: by the file extension, else parquet)",
        choices=FORMATS,
        group=INPUT,
    )
    runtime: str | None = setting(
        None,
        "where the job runs: local is this process and needs no Java; auto is local, unless "
        "something needs Spark "
        "(default: auto; with jobs/*.py: spark)",
        choices=RUNTIMES,
        group=SPARK,
    )
    option: dict[str, str] = repeatable(
        "option of the reader, such as 'sep=;' (repeatable); CSV follows RFC 4180", group=INPUT
    )
    overwrite: bool = setting(False, "replace an earlier output of this job", group=OUTPUT)

    inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[Mapping[str, str]] = {}  # flag ─► kind of output: see ``fit_job.KINDS``

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        sources = self.paths(self.inputs)
        targets = self.paths(self.outputs)
        for name, path in sources.items():
            local = local_path(path)
            if local is not None and not re.search(r"[*?\[{]", path) and not local.exists():
                yield f"{name} {path} does not exist"
        for name, path in self.paths(
            name for name, what in self.outputs.items() if what in TABULAR
        ).items():
            ending = Path(urlsplit(path).path).suffix
            if ending[1:2].isalpha() and ending.lower() not in (".csv", ".parquet"):
                yield (
                    f"{name} {path} ends in {ending}: name a file PATH.csv, or a folder, "
                    "which gets Parquet files"
                )
        for name, path in targets.items():
            local = local_path(path)
            if local is not None and local.exists() and not self.overwrite:
                yield exists_already(name, path)
            for other, other_path in {**sources, **targets}.items():
                if other != name and _holds(path, other_path):
                    yield (
                        f"{other} {other_path} lies in {name} {path}, which is replaced as a "
                        "whole: choose another"
                    )

    def paths(self, names: Iterable[str]) -> dict[str, str]:
        """The given paths among these fields, by flag."""
        return {as_flag(name): getattr(self, name) for name in names if getattr(self, name)}

    def part(self, table: type[T]) -> T:
        """The settings of one table."""
        names = [item.name for item in fields(table)]  # type: ignore[arg-type]
        return table(**{name: getattr(self, name) for name in names})

    def is_lake_table(self, name: str, lake: str) -> RequestError:
        path = getattr(self, name)
        flag = as_flag(name)
        return RequestError(
            f"{flag} {path} belongs to a table of {TABLE_FORMATS[lake]}, whose folder also has "
            "files that no longer "
            f"count: name the table of the catalog ({flag} catalog.database.table), or read the "
            "folder with --format "
            f"{lake}"
        )

    def no_columns(
        self, name: str, absent: Sequence[str], columns: Sequence[str], csv: bool
    ) -> RequestError:
        from onebit_spark.data.files import separator_in

        named = "name them with --user-col, --item-col, --label-col, --weight-col"
        cure = named if isinstance(self, FitRequest) else "rename them"
        separator = separator_in(columns)
        if csv and separator is not None:
            cure = f"they look separated by {separator!r}: add --option 'sep={separator}'"
        elif csv:
            cure += (
                "; a file without a header line needs --option header=false, and its "
                "columns are _c0, _c1, …"
            )
        # Blanks are overlooked
        visible = [column if column == column.strip() else repr(column) for column in columns]
        return RequestError(
            f"{as_flag(name)} {getattr(self, name)} has no column {', '.join(map(repr, absent))}; "
            f"its columns are {', '.join(visible) or 'none'}: {cure}"
        )


@dataclass(frozen=True, kw_only=True)
class CallsRequest(JobRequest):
    """The flags of the jobs that certify which pairs a model calls."""

    max_error: tuple[float, ...] = setting(
        (),
        "certify which pairs are answered with an error rate of at most this, such as 0.05; "
        "several: 0.1,0.05",
        group=CERTIFICATES,
    )
    min_precision: tuple[str, ...] = setting(
        (),
        "certify which pairs are called positive with at least this precision, such as 0.9; "
        "negatives: negative:0.99; "
        "several: 0.9,0.8",
        group=CERTIFICATES,
    )
    certify_by: str | None = setting(
        None, "column of the ratings: certify within each of its groups as well", group=CERTIFICATES
    )

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.max_error or self.min_precision:
            from onebit_spark.certify.certificates import precision_problems, request_problems

            yield from (f"--max-error {problem}" for problem in request_problems(self.max_error))
            yield from (
                f"--min-precision {problem}" for problem in precision_problems(self.min_precision)
            )

    def without(self, need: str, *names: str) -> Iterator[str]:
        """What is given, but needs something that is not."""
        yield from (f"{as_flag(name)} needs {need}" for name in names if getattr(self, name))


CALLS = ("max_error", "min_precision", "certify_by")


@dataclass(frozen=True, kw_only=True)
class FitRequest(FitConfig, Execution, Labels, Terms, CallsRequest):
    """Fit a model to ratings of users on items, each positive or negative."""

    ratings: str = setting(None, "path of the ratings")
    user_col: str = setting("user", "column of the user ids", group=INPUT)
    item_col: str = setting("item", "column of the item ids", group=INPUT)
    output: str = setting(None, "folder for the model")
    holdout: float | None = setting(
        None,
        "keep this share of the ratings out of the fit, to certify the model",
        check=SHARE,
        group=CERTIFICATES,
    )
    calibrate: bool = setting(
        False, "calibrate the probabilities on the held-out ratings", group=CERTIFICATES
    )
    predict: str | None = setting(
        None, "path of user-item pairs to predict after the fit", group=OUTPUT
    )
    predictions: str | None = setting(
        None, "folder for these predictions, or a file PATH.csv", group=OUTPUT
    )
    output_table: str | None = setting(None, "catalog table for these predictions", group=OUTPUT)
    user_features: str | None = setting(
        None, "path of side features of the users: one line per user, any columns", group=INPUT
    )
    item_features: str | None = setting(
        None, "path of side features of the items: one line per item, any columns", group=INPUT
    )
    report: bool = setting(
        True, "draw report.html, the fit in pictures (default: yes)", group=OUTPUT
    )
    config: str | None = setting(
        None,
        "TOML file with any of these flags as keys; the command line has priority",
        group=OUTPUT,
    )

    main = (
        "ratings",
        "output",
        "user_col",
        "item_col",
        "label_col",
        "threshold",
        "holdout",
        "max_error",
        "predict",
        "predictions",
    )
    inputs = ("ratings", "predict", "user_features", "item_features")
    outputs: ClassVar = {"output": "model", "predictions": "predictions"}

    @property
    def fit_config(self) -> FitConfig:
        return self.part(FitConfig)

    @property
    def execution(self) -> Execution:
        return self.part(Execution)

    @property
    def terms(self) -> Terms:
        return self.part(Terms)

    @property
    def holdout_flag(self) -> str:
        """Its name in messages."""
        return f"--holdout {self.holdout or 0.0:g}"

    def problems(self) -> list[Problem]:
        return [*super().problems(), *device_problems(self.fit_config, self.execution)]

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if len({self.user_col, self.item_col, self.label_col}) < 3:
            yield "--user-col, --item-col and --label-col must name three different columns"
        if self.holdout is None:
            yield from self.without(
                "ratings that are not fitted: add --holdout 0.1, for example", "calibrate", *CALLS
            )
        if (self.predict is None) != (self.predictions is None and self.output_table is None):
            yield (
                "--predict PAIRS and --predictions FOLDER (or --output-table TABLE) go "
                "together: give both or neither"
            )
        yield from table_problems(self.output_table, self.paths(self.inputs))


@dataclass(frozen=True, kw_only=True)
class PredictRequest(JobRequest):
    """Predict user-item pairs with a fitted model, or recommend items to every user."""

    model: str = setting(None, "folder of the model")
    output: str | None = setting(None, "folder for the predictions, or a file PATH.csv")
    output_table: str | None = setting(None, "catalog table for the predictions", group=OUTPUT)
    pairs: str | None = setting(None, "path of the user-item pairs, in columns named as in the fit")
    top: int | None = setting(
        None, "instead of pairs: recommend this many items to every user", check=at_least(1)
    )
    exclude_seen: str | None = setting(
        None, "path of ratings; --top does not recommend these pairs"
    )
    user_features: str | None = setting(
        None, "path of side features of users without ratings in the fit", group=INPUT
    )
    item_features: str | None = setting(
        None, "path of side features of items without ratings in the fit", group=INPUT
    )

    main = ("model", "pairs", "top", "exclude_seen", "output", "overwrite")
    inputs = ("model", "pairs", "exclude_seen", "user_features", "item_features")
    outputs: ClassVar = {"output": "predictions"}

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.output is None and self.output_table is None:
            yield "give --output FOLDER or --output-table TABLE"
        yield from table_problems(self.output_table, self.paths(self.inputs))
        if (self.pairs is None) == (self.top is None):
            yield "give either --pairs PATH or --top N"
        if self.exclude_seen is not None and self.top is None:
            yield "--exclude-seen belongs to --top N"


@dataclass(frozen=True, kw_only=True)
class PositionsRequest(JobRequest):
    """Write where the users of a model stand, or the intercepts and slopes of its items, with error
    bars.
    """

    model: str = setting(None, "folder of the model")
    output: str = setting(None, "folder for the positions, or a file PATH.csv")
    who: str = setting("user", "positions of users, or slopes of items", choices=("user", "item"))
    dimensions: int | None = setting(
        None, "number of dimensions (default: two, or as many as the model has)", check=at_least(1)
    )
    anchor: dict[str, str] = repeatable(
        "a user whose position in the first dimension is positive, ID=1, or negative, ID=-1 "
        "(repeatable)"
    )
    map: str | None = setting(None, "file for a map of the first two dimensions, such as map.html")
    user_features: str | None = setting(
        None, "path of side features of the users: a column with few values colours the map"
    )

    main = ("model", "output", "who", "dimensions", "anchor", "map", "user_features", "overwrite")
    inputs = ("model", "user_features")
    outputs: ClassVar = {"output": "positions", "map": "map"}

    @property
    def signs(self) -> dict[str, str]:
        """The anchors. Their ids may contain "="."""
        return dict(f"{name}={sign}".rsplit("=", 1) for name, sign in self.anchor.items())

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if wrong := [
            f"{name}={sign}" for name, sign in self.signs.items() if sign not in ("1", "+1", "-1")
        ]:
            yield f"--anchor must be ID=1 or ID=-1, not {', '.join(wrong)}"
        if self.user_features is not None and self.map is None:
            yield "--user-features colours the map: add --map map.html"


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(CallsRequest):
    """Measure a fitted model on ratings that it has not seen."""

    model: str = setting(None, "folder of the model")
    ratings: str = setting(None, "path of the ratings, in columns named as in the fit")
    threshold: float | None = setting(
        None,
        "labels strictly greater are positive (default: as in the fit)",
        check=FINITE,
        group=INPUT,
    )
    certify: bool = setting(
        False, "certify an upper limit on the error rate; the ratings must not have been fitted"
    )
    delta: float | None = setting(
        None,
        "the certificate holds with probability 1 − δ (default: 0.05)",
        check=SHARE,
        group=CERTIFICATES,
    )
    certificate_grid: int | None = setting(
        None,
        "number of models or settings that are compared on these ratings; each is certified at "
        "δ/grid (default: 1)",
        check=at_least(1),
        group=CERTIFICATES,
    )
    ranking: int | None = setting(
        None,
        "also measure lists of this many recommended items, over users with positive ratings",
        check=at_least(1),
    )
    exclude_seen: str | None = setting(
        None,
        "path of the fitted ratings; --ranking neither lists nor counts these pairs, and compares "
        "with the items that "
        "have the most positive ones",
    )
    output: str | None = setting(None, "JSON file for the figures, such as metrics.json")

    main = (
        "model",
        "ratings",
        "certify",
        "max_error",
        "min_precision",
        "ranking",
        "exclude_seen",
        "output",
        "overwrite",
    )
    inputs = ("model", "ratings", "exclude_seen")
    outputs: ClassVar = {"output": "figures"}

    @property
    def terms(self) -> Terms:
        return Terms(
            delta=Terms.delta if self.delta is None else self.delta,
            grid=Terms.grid if self.certificate_grid is None else self.certificate_grid,
        )

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.exclude_seen is not None and self.ranking is None:
            yield "--exclude-seen belongs to --ranking N"
        if not self.certify:
            yield from self.without(
                "a certificate: add --certify", *CALLS, "delta", "certificate_grid"
            )


class Target(NamedTuple):
    """Where a table goes: a folder of Parquet files or a CSV file, which appears whole or not at
    all; a table.
    """

    path: str | None
    table: str | None
    overwrite: bool
    what: str = "predictions"

    @classmethod
    def of(cls, request: FitRequest | PredictRequest) -> Target:
        path = request.predictions if isinstance(request, FitRequest) else request.output
        return cls(path, request.output_table, request.overwrite)

    @property
    def kind(self) -> OutputKind:
        from onebit_spark.data.locations import TABLES

        return TABLES[self.what][self.path is not None and is_csv(self.path)]

    @property
    def places(self) -> dict[str, str | None]:
        return {self.what: self.path, f"table of {self.what}": self.table}


# ---- paths and tables --------------------------------------------------------------------------


def under_spark_submit() -> bool:
    """Whether spark-submit started this process. It then passes the port of its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def local_path(path: str) -> Path | None:
    """The path if it is certainly on the disk of this machine.

    None if only a Spark session knows.
    """
    parts = urlsplit(path)
    if is_table_name(path) and not Path(path).exists():
        return None
    if parts.scheme == "file":
        return Path(parts.path)
    if parts.scheme or under_spark_submit() or "HADOOP_CONF_DIR" in os.environ:
        return None
    return Path(path)


def is_table_name(path: str) -> bool:
    """Whether it may name a table of a catalog, such as ``films.ratings``, and not a file, such as
    ``ratings.csv``.
    """
    return (
        "." in path
        and bool(TABLE.fullmatch(path))
        and path.rpartition(".")[2].lower() not in FILE_ENDINGS
    )


def table_problems(name: str | None, sources: Mapping[str, str]) -> Iterator[str]:
    if name is not None and not TABLE.fullmatch(name):
        yield (
            f"--output-table must be TABLE, DATABASE.TABLE or CATALOG.DATABASE.TABLE, not {name!r}"
        )
    for source, path in sources.items():
        if path == name:
            yield (
                f"{source} and --output-table are the same table, {name}: choose another for "
                "the predictions"
            )


def is_csv(path: str) -> bool:
    return path.lower().endswith(".csv")


def exists_already(name: str, path: str) -> str:
    return f"{name} {path} exists already: choose another path or add --overwrite"


def _holds(folder: str, path: str) -> bool:
    outer = urlsplit(folder)
    inner = urlsplit(path)
    same_place = outer.netloc == inner.netloc
    return same_place and Path(os.path.abspath(inner.path)).is_relative_to(
        os.path.abspath(outer.path)
    )
