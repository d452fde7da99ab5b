"""The flags of the jobs, and the checks that are possible before Spark starts.

A request is a dataclass. Its fields are the flags of a job, with values from command line, config file and defaults.

    @dataclass(frozen=True, kw_only=True)
    class Request:
        ratings: str = flag("path of the ratings")            ─►  --ratings PATH, required
        fit_config: FitConfig = settings(FitConfig)           ─►  --rank, --loss …: one flag for each setting with a key

A config file has the same names as keys. One RequestError names all mistakes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill, wrap
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from onebit_spark.errors import RequestError
from onebit_spark.settings import (
    RARE,
    RESUMING,
    Execution,
    FitConfig,
    Labels,
    Problem,
    Terms,
    declared,
    device_problems,
    words_in,
)

if TYPE_CHECKING:
    from onebit_spark.data.locations import OutputKind

MAIN = "the flags that most people need"
INPUT, MODEL, CERTIFICATES, OUTPUT, SPARK = (
    "input", "model", "certificates and probabilities", "output", "Spark and devices"
)  # fmt: skip
GROUPS = (MAIN, INPUT, MODEL, CERTIFICATES, OUTPUT, RESUMING, SPARK)  # of --help, which names those of RARE in one line

Request = TypeVar("Request")

_WANTED = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def flag(
    help: str, *, default: Any = None, choices: Sequence[str] = (), metavar: str | None = None, group: str = MAIN
) -> Any:
    """Declare a flag. It is required if it has no default and its type does not allow None.

    With the default ``dict`` it is a repeatable key=value.
    """
    metadata = {"help": help, "choices": tuple(choices), "metavar": metavar, "group": group}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings(table: type, group: str, *only: str, **help: str) -> Any:
    """Declare a flag for each setting of a table that has a key, or for ``only`` some; ``help`` replaces help texts."""
    return field(default_factory=table, metadata={"table": table, "group": group, "only": only, "help": help})


def parse(request: type[Request], prog: str, argv: Sequence[str] | None = None) -> Request:
    """The request, or one RequestError with all problems. A flag has priority over the config file."""
    flags = flags_of(request)
    given, problems = _from_command_line(request, flags, prog, argv)
    path = given.get("config")
    in_file, file_problems = _from_file(flags, path) if path else ({}, [])
    problems += file_problems
    required = [name for name, item in flags.items() if item.required]
    values: dict[str, Any] = dict.fromkeys(required, "")  # an empty path is not checked
    for source, name, raw in (
        *((f"{key} in {path}", name, raw) for name, (key, raw) in in_file.items()),
        *((as_flag(name), name, raw) for name, raw in given.items()),
    ):
        try:
            values[name] = flags[name].converted(raw)
        except ValueError as error:
            problems.append(f"{source} {error}")
    problems += [f"{as_flag(name)} is required" for name in required if name not in given and name not in in_file]
    own = {name: value for name, value in values.items() if flags[name].setting is None}
    for item in fields(request):  # type: ignore[arg-type]
        if table := item.metadata.get("table"):
            places = {name: flags[name].setting or ("", "") for name in values}
            own[item.name] = table(**{places[name][1]: values[name] for name in values if places[name][0] == item.name})
    checked: Any = request(**own)
    problems += checked.problems()
    if len(problems) > 1:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        raise RequestError(f"{len(problems)} problems: {listed}")
    if problems:
        raise RequestError(problems[0])
    return checked


def as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def command_of(job: str, request: Any) -> str:
    """The command with the flags of a request that differ from their defaults, also those of a config file."""
    words = ["onebit-spark", job]
    for name, item in flags_of(type(request)).items():
        flag, value = as_flag(name), request
        for field_name in item.setting or (name,):
            value = getattr(value, field_name)
        if name == "config" or value == item.default or value == {}:
            continue
        if item.kind is bool:
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif item.kind is dict:
            words += [word for key, text in value.items() for word in (flag, f"{key}={text}")]
        else:
            words += [flag, ",".join(map(str, value)) if item.kind in (tuple, list) else str(value)]
    return shlex.join(words)


def in_flags(table: type, problems: Iterable[Problem]) -> Iterator[str]:
    return (problem.in_words(_flag_names(table)) for problem in problems)


@dataclass(frozen=True)
class Flag:
    """One flag: of a field of the request, or of a setting in a table."""

    kind: type  # str, int, float, bool, dict, tuple of numbers or list of texts
    default: Any
    required: bool
    help: str
    choices: tuple[str, ...]
    metavar: str
    group: str  # of --help
    words: tuple[str, ...]  # that are allowed beside numbers
    setting: tuple[str, str] | None = None  # the field of the request and the setting in its table

    @property
    def described(self) -> str:
        text = self.help.replace("%", "%%")
        if self.required:
            return f"{text} (required)"
        silent = self.default is None or self.kind in (bool, dict, tuple, list)
        return text if silent else f"{text} (default: {self.default})"

    def converted(self, raw: Any) -> Any:
        """The text of a flag, or a value of a config file, in the right type. A ValueError says what it must be."""
        if self.kind is dict:
            return _key_values(raw)
        if self.kind in (tuple, list):
            return _numbers(raw) if self.kind is tuple else raw if isinstance(raw, list) else [raw]
        value = raw
        if isinstance(raw, str) and raw in self.words:
            return raw
        if isinstance(raw, str) and self.kind in (int, float):
            with suppress(ValueError):  # text that is not a number is refused below
                value = self.kind(raw)
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}, not {raw!r}")
        if type(value) is not self.kind:
            raise ValueError(f"must be {' or '.join([_WANTED[self.kind], *self.words])}, not {raw!r}")
        if value == "":
            raise ValueError("must not be empty")
        return value


def flags_of(request: type) -> dict[str, Flag]:
    """The flags of a request by their names: first those that most people need."""
    hints = get_type_hints(request)
    flags = {}
    for item in fields(request):
        about = item.metadata
        if table := about.get("table"):
            names = _flag_names(table)
            for setting in declared(table).values():
                if setting.key and setting.name in (about["only"] or names):
                    text = about["help"].get(setting.name) or setting.described(names)
                    flags[setting.key] = Flag(
                        setting.kind, setting.default, False, text, setting.choices,
                        _metavar(setting.key, setting.kind, setting.choices, setting.words),
                        setting.group or about["group"], setting.words, (item.name, setting.name),
                    )  # fmt: skip
            continue
        hint, choices, words = hints[item.name], about["choices"], words_in(hints[item.name])
        kind = get_origin(hint)
        if kind not in (dict, tuple, list):
            kind = next((option for option in get_args(hint) if option is not NoneType), hint)
        required = item.default is None and NoneType not in get_args(hint)
        metavar = about["metavar"] or _metavar(item.name, kind, choices)
        flags[item.name] = Flag(kind, item.default, required, about["help"], choices, metavar, about["group"], words)
    main: tuple[str, ...] = request.main  # type: ignore[attr-defined]
    return {name: flags[name] for name in sorted(flags, key=lambda name: (*main, name).index(name))}


def _flag_names(table: type) -> dict[str, str]:
    """Field ─► its flag, for the settings that have one."""
    return {name: as_flag(item.key) for name, item in declared(table).items() if item.key is not None}


# ---- where values come from ------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise RequestError(f"{message} (--help lists all flags)")


class _Formatter(argparse.HelpFormatter):
    """No line breaks within a flag or another word with a hyphen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, width, break_on_hyphens=False)


def _from_command_line(
    request: type, flags: Mapping[str, Flag], prog: str, argv: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """The given flags, as text, and the problems with the other arguments."""
    needed = [f"{as_flag(name)} {item.metavar}" for name, item in flags.items() if item.required]
    rare = [f"{as_flag(name)} {item.metavar}" for name, item in flags.items() if item.group == RARE]
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *needed, "[flags]"]),
        description=request.__doc__,
        epilog=f"Rarely needed: {', '.join(rare)}." if rare else None,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        formatter_class=_Formatter,
    )
    groups = {title: parser.add_argument_group(title) for title in (*GROUPS, RARE)}
    main: tuple[str, ...] = request.main  # type: ignore[attr-defined]
    for name, item in flags.items():
        _add(groups[MAIN if name in main else item.group], name, item)
    parser.add_argument_group("help").add_argument("-h", "--help", action="help", help="show this text")
    found, extra = parser.parse_known_args(argv)
    problems = []
    for argument in extra:
        near = get_close_matches(argument.partition("=")[0], map(as_flag, flags), 1)
        if not argument.startswith("-"):
            problems.append(f"unexpected argument {argument!r}")
        else:
            hint = f": did you mean {near[0]}?" if near else "; --help lists all flags"
            problems.append(f"unknown flag {argument}{hint}")
    return vars(found), problems


def _add(group: Any, name: str, item: Flag) -> None:
    help = argparse.SUPPRESS if item.group == RARE else item.described
    if item.kind is not bool:
        action = "append" if item.kind is dict else "store"
        group.add_argument(as_flag(name), action=action, help=help, metavar=item.metavar)
    elif item.default:
        group.add_argument(as_flag(name), action=argparse.BooleanOptionalAction, help=help)
    else:
        group.add_argument(as_flag(name), action="store_true", help=help)
        # for a key of the config file
        group.add_argument(as_flag(f"no_{name}"), action="store_false", dest=name, help=argparse.SUPPRESS)


def _metavar(name: str, kind: type, choices: Sequence[str], words: Sequence[str] = ()) -> str:
    if choices:
        return f"{{{','.join(choices)}}}"
    named = {dict: "KEY=VALUE", tuple: "X[,X…]", list: "X[,X…]", int: "N", float: "X"}.get(kind)
    return "|".join([named or ("COLUMN" if name.endswith("_col") else "PATH"), *words])


def _from_file(flags: Mapping[str, Flag], path: str) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """The keys of a config file by their flags, as they are written, with their values; and the problems with others.

    As on the command line, ``no-report = true`` is ``report = false``, and the last one counts.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"--config {path} cannot be read: {error.strerror}"]
    except ValueError as error:  # not TOML, or not UTF-8
        return {}, [f"--config {path} is not TOML: {error}"]
    allowed = {name: item for name, item in flags.items() if name != "config"}
    negated = {f"no_{name}": name for name, item in allowed.items() if item.kind is bool}
    found: dict[str, tuple[str, Any]] = {}
    problems, unknown = [], []
    for key, value in table.items():
        written = key.replace("-", "_")
        name = negated.get(written, written)
        if name not in allowed:
            unknown.append(key)
            continue
        opposite = written in negated and isinstance(value, bool)
        found[name] = key, not value if opposite else value
    if unknown:
        listed = ", ".join(name.replace("_", "-") for name in allowed)
        problems.append(f"unknown key {', '.join(map(repr, unknown))} in {path}; allowed keys: {listed}")
    return found, problems


def _key_values(raw: Any) -> dict[str, str]:
    """From ["sep=;", …] on the command line, or a table in the config file."""
    if isinstance(raw, dict):
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in raw.items()}
    texts = [str(text) for text in raw] if isinstance(raw, list) else [str(raw)]
    wrong = [text for text in texts if text.find("=") < 1]
    if wrong:
        raise ValueError(f"must be key=value, not {', '.join(map(repr, wrong))}")
    return dict(text.split("=", 1) for text in texts)


def _numbers(raw: Any) -> tuple[float, ...]:
    """From "0.1,0.05" on the command line, or a number or a list of numbers in the config file."""
    parts = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, list) else [raw]
    try:
        if any(isinstance(part, bool) for part in parts):
            raise ValueError
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError(f"must be a number, or several numbers separated by commas, not {raw!r}") from None


# ---- the jobs --------------------------------------------------------------------------------------------------------

FILES = ("parquet", "csv", "json")
TABLE_FORMATS = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi"}  # Spark needs their packages
FORMATS = (*FILES, *TABLE_FORMATS)
TABLE = re.compile(r"\w+(\.\w+){0,2}")
FILE_ENDINGS = (
    "parquet", "csv", "tsv", "json", "jsonl", "ndjson", "gz", "bz2", "zst", "lz4", "txt", "data", "zip", "orc"
)  # fmt: skip
TABULAR = ("predictions", "positions")  # kinds of output that are tables
RUNTIMES = ("auto", "local", "spark")
LOG_LEVELS = ("error", "warn", "info", "debug")


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """The flags that all jobs have: what they print, and where Spark is."""

    main: ClassVar[tuple[str, ...]] = ()  # the flags that --help shows first

    quiet: bool = flag("print only errors and where the output is", default=False, group=OUTPUT)
    log_level: str | None = flag(
        "how much Spark logs (default: warn, unless you configured it)", choices=LOG_LEVELS, group=RARE
    )
    remote: str | None = flag(
        "address of a Spark Connect server, such as sc://host:15002 (default: $SPARK_REMOTE)",
        metavar="URL",
        group=SPARK,
    )

    def problems(self) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True, kw_only=True)
class JobRequest(SessionRequest):
    """The flags of jobs that read tables."""

    format: str | None = flag(
        "format of the input (default: by the file extension, else parquet)", choices=FORMATS, group=INPUT
    )
    runtime: str | None = flag(
        "where the job runs: local is this process and needs no Java; auto is local, unless something needs Spark "
        "(default: auto; with jobs/*.py: spark)",
        choices=RUNTIMES,
        group=SPARK,
    )
    option: dict[str, str] = flag(
        "option of the reader, such as 'sep=;' (repeatable); CSV follows RFC 4180", default=dict, group=INPUT
    )
    overwrite: bool = flag("replace an earlier output of this job", default=False, group=OUTPUT)

    inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[Mapping[str, str]] = {}  # flag ─► kind of output: see ``fit_job.KINDS``

    def problems(self) -> Iterator[str]:
        sources, targets = self.paths(self.inputs), self.paths(self.outputs)
        for name, path in sources.items():
            local = local_path(path)
            if local is not None and not re.search(r"[*?\[{]", path) and not local.exists():
                yield f"{name} {path} does not exist"
        for name, what in self.outputs.items():
            ending = Path(urlsplit(getattr(self, name) or "").path).suffix
            if what in TABULAR and ending[1:2].isalpha() and ending.lower() not in (".csv", ".parquet"):
                yield (
                    f"{as_flag(name)} {getattr(self, name)} ends in {ending}: name a file PATH.csv, or a folder, which "
                    "gets Parquet files"
                )
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

    def is_lake_table(self, name: str, lake: str) -> RequestError:
        path, flag = getattr(self, name), as_flag(name)
        return RequestError(
            f"{flag} {path} belongs to a table of {TABLE_FORMATS[lake]}, whose folder also has files that no longer "
            f"count: name the table of the catalog ({flag} catalog.database.table), or read the folder with --format "
            f"{lake}"
        )

    def no_columns(self, name: str, absent: Sequence[str], columns: Sequence[str], csv: bool) -> RequestError:
        from onebit_spark.data.files import separator_in

        named = "name them with --user-col, --item-col, --label-col, --weight-col"
        cure = named if isinstance(self, FitRequest) else "rename them"
        separator = separator_in(columns)
        if csv and separator is not None:
            cure = f"they look separated by {separator!r}: add --option 'sep={separator}'"
        elif csv:
            cure += "; a file without a header line needs --option header=false, and its columns are _c0, _c1, …"
        visible = [column if column == column.strip() else repr(column) for column in columns]  # blanks are overlooked
        return RequestError(
            f"{as_flag(name)} {getattr(self, name)} has no column {', '.join(map(repr, absent))}; "
            f"its columns are {', '.join(visible) or 'none'}: {cure}"
        )


@dataclass(frozen=True, kw_only=True)
class CallsRequest(JobRequest):
    """The flags of the jobs that certify which pairs a model calls."""

    max_error: tuple[float, ...] = flag(
        "certify which pairs are answered with an error rate of at most this, such as 0.05; several: 0.1,0.05",
        default=(),
        group=CERTIFICATES,
    )
    min_precision: list[str] = flag(
        "certify which pairs are called positive with at least this precision, such as 0.9; negatives: negative:0.99; "
        "several: 0.9,0.8", default=(), group=CERTIFICATES,
    )  # fmt: skip
    certify_by: str | None = flag(
        "column of the ratings: certify within each of its groups as well", metavar="COLUMN", group=CERTIFICATES
    )

    def calls_problems(self, missing: str | None) -> Iterator[str]:
        """Problems with the error rates and precisions, and flags that need what is ``missing``."""
        if self.max_error or self.min_precision:
            from onebit_spark.certify.certificates import precision_problems, request_problems

            yield from (f"--max-error {problem}" for problem in request_problems(self.max_error))
            yield from (f"--min-precision {problem}" for problem in precision_problems(self.min_precision))
        for name in ("max_error", "min_precision", "certify_by"):
            if getattr(self, name) and missing:
                yield f"{as_flag(name)} needs {missing}"


@dataclass(frozen=True, kw_only=True)
class FitRequest(CallsRequest):
    """Fit a model to ratings of users on items, each positive or negative."""

    ratings: str = flag("path of the ratings")
    user_col: str = flag("column of the user ids", default="user", group=INPUT)
    item_col: str = flag("column of the item ids", default="item", group=INPUT)
    labels: Labels = settings(Labels, INPUT)
    output: str = flag("folder for the model", metavar="FOLDER")
    fit_config: FitConfig = settings(FitConfig, MODEL)
    execution: Execution = settings(Execution, SPARK)
    terms: Terms = settings(Terms, CERTIFICATES)
    holdout: float | None = flag(
        "keep this share of the ratings out of the fit, to certify the model", group=CERTIFICATES
    )
    calibrate: bool = flag("calibrate the probabilities on the held-out ratings", default=False, group=CERTIFICATES)
    predict: str | None = flag("path of user-item pairs to predict after the fit", group=OUTPUT)
    predictions: str | None = flag("folder for these predictions, or a file PATH.csv", group=OUTPUT)
    output_table: str | None = flag("catalog table for these predictions", metavar="TABLE", group=OUTPUT)
    user_features: str | None = flag("path of side features of the users: one line per user, any columns", group=INPUT)
    item_features: str | None = flag("path of side features of the items: one line per item, any columns", group=INPUT)
    report: bool = flag("draw report.html, the fit in pictures (default: yes)", default=True, group=OUTPUT)
    config: str | None = flag("TOML file with any of these flags as keys; the command line has priority", group=OUTPUT)

    main = ("ratings", "output", "user_col", "item_col", "label_col", "threshold", "holdout", "max_error", "predict",
            "predictions")  # fmt: skip
    inputs = ("ratings", "predict", "user_features", "item_features")
    outputs: ClassVar = {"output": "model", "predictions": "predictions"}

    @property
    def holdout_flag(self) -> str:
        """Its name in messages."""
        return f"--holdout {self.holdout or 0.0:g}"

    def problems(self) -> Iterator[str]:
        for table in (self.labels, self.fit_config, self.execution, self.terms):
            yield from in_flags(type(table), table.problems())
        yield from in_flags(Execution, device_problems(self.fit_config, self.execution))
        if len({self.user_col, self.item_col, self.labels.label_col}) < 3:
            yield "--user-col, --item-col and --label-col must name three different columns"
        unseen = "ratings that are not fitted: add --holdout 0.1, for example"
        if self.calibrate and self.holdout is None:
            yield f"--calibrate needs {unseen}"
        yield from self.calls_problems(unseen if self.holdout is None else None)
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
    output: str | None = flag("folder for the predictions, or a file PATH.csv")
    output_table: str | None = flag("catalog table for the predictions", metavar="TABLE", group=OUTPUT)
    pairs: str | None = flag("path of the user-item pairs, in columns named as in the fit")
    top: int | None = flag("instead of pairs: recommend this many items to every user")
    exclude_seen: str | None = flag("path of ratings; --top does not recommend these pairs")
    user_features: str | None = flag("path of side features of users without ratings in the fit", group=INPUT)
    item_features: str | None = flag("path of side features of items without ratings in the fit", group=INPUT)

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
class PositionsRequest(JobRequest):
    """Write where the users of a model stand, or the intercepts and slopes of its items, with error bars."""

    model: str = flag("folder of the model", metavar="FOLDER")
    output: str = flag("folder for the positions, or a file PATH.csv")
    who: str = flag("positions of users, or slopes of items", default="user", choices=("user", "item"))
    dimensions: int | None = flag("number of dimensions (default: two, or as many as the model has)")
    anchor: dict[str, str] = flag(
        "a user whose position in the first dimension is positive, ID=1, or negative, ID=-1 (repeatable)", default=dict
    )
    map: str | None = flag("file for a map of the first two dimensions, such as map.html", default=None)
    user_features: str | None = flag("path of side features of the users: a column with few values colours the map")

    main = ("model", "output", "who", "dimensions", "anchor", "map", "user_features", "overwrite")
    inputs = ("model", "user_features")
    outputs: ClassVar = {"output": "positions", "map": "map"}

    @property
    def signs(self) -> dict[str, str]:
        """The anchors. Their ids may contain "="."""
        return dict(f"{name}={sign}".rsplit("=", 1) for name, sign in self.anchor.items())

    def problems(self) -> Iterator[str]:
        if self.dimensions is not None and self.dimensions < 1:
            yield f"--dimensions must be an integer of at least 1, not {self.dimensions}"
        if wrong := [f"{name}={sign}" for name, sign in self.signs.items() if sign not in ("1", "+1", "-1")]:
            yield f"--anchor must be ID=1 or ID=-1, not {', '.join(wrong)}"
        if self.user_features is not None and self.map is None:
            yield "--user-features colours the map: add --map map.html"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(CallsRequest):
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
    ranking: int | None = flag("also measure lists of this many recommended items, over users with positive ratings")
    exclude_seen: str | None = flag(
        "path of the fitted ratings; --ranking neither lists nor counts these pairs, and compares with the items that "
        "have the most positive ones"
    )
    output: str | None = flag("JSON file for the figures, such as metrics.json")

    main = (
        "model", "ratings", "certify", "max_error", "min_precision", "ranking", "exclude_seen", "output", "overwrite",
    )  # fmt: skip
    inputs = ("model", "ratings", "exclude_seen")
    outputs: ClassVar = {"output": "figures"}

    def problems(self) -> Iterator[str]:
        yield from in_flags(Labels, self.labels.problems())
        yield from in_flags(Terms, self.terms.problems())
        if self.ranking is not None and self.ranking < 1:
            yield f"--ranking must be an integer of at least 1, not {self.ranking}"
        if self.exclude_seen is not None and self.ranking is None:
            yield "--exclude-seen belongs to --ranking N"
        missing = None if self.certify else "a certificate: add --certify"
        yield from self.calls_problems(missing)
        for name, item in declared(Terms).items():
            if missing and getattr(self.terms, name) != item.default:
                yield f"{as_flag(item.key or name)} needs {missing}"
        yield from super().problems()


class Target(NamedTuple):
    """Where a table goes: a folder of Parquet files or a CSV file, which appears whole or not at all; a table."""

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


# ---- paths and tables ------------------------------------------------------------------------------------------------


def under_spark_submit() -> bool:
    """Whether spark-submit started this process. It then passes the port of its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def local_path(path: str) -> Path | None:
    """The path if it is certainly on the disk of this machine. None if only a Spark session knows."""
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
    outer, inner = urlsplit(folder), urlsplit(path)
    same_place = outer.netloc == inner.netloc
    return same_place and Path(os.path.abspath(inner.path)).is_relative_to(os.path.abspath(outer.path))
