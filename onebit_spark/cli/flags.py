"""A request is a dataclass. Its fields are the flags of a job, with values from command line, config file and defaults.

    @dataclass(frozen=True, kw_only=True)
    class Request:
        ratings: str = flag("path of the ratings")            ─►  --ratings PATH, required
        fit_config: FitConfig = settings(FitConfig)           ─►  --rank, --loss …: one flag for each setting with a key

A config file has the same names as keys. One RequestError names all mistakes.
"""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill, wrap
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from onebit_spark.core.config import RARE, RESUMING, Problem, declared, words_in
from onebit_spark.errors import RequestError

REMOVED = {
    "blocks": "every fit reads the ratings; keep them as Parquet, which is read fastest",
    "no_calibrate": "the fit calibrates its probabilities where that pays; --calibrate uses held-out ratings instead",
}  # flag or key of an earlier version, and what to do instead

MAIN = "the flags that most people need"
INPUT, MODEL, CERTIFICATES, OUTPUT, SPARK = (
    "input", "model", "certificates and probabilities", "output", "Spark and devices"
)  # fmt: skip
GROUPS = (MAIN, INPUT, MODEL, CERTIFICATES, OUTPUT, RESUMING, SPARK)  # of --help, which names those of RARE in one line

Request = TypeVar("Request")

_WANTED = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def flag(
    help: str, *, default: Any = MISSING, choices: Sequence[str] = (), metavar: str | None = None, group: str = MAIN
) -> Any:
    """Declare a flag. It is required if it has no default, and a repeatable key=value if the default is ``dict``."""
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
        *((f"{name} in {path}", name, raw) for name, raw in in_file.items()),
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
            words += [flag, ",".join(map(str, value)) if item.kind is tuple else str(value)]
    return shlex.join(words)


def in_flags(table: type, problems: Iterable[Problem]) -> Iterator[str]:
    """Problems with the settings of a table, in words, each field named as a flag."""
    return (problem.in_words(_flag_names(table)) for problem in problems)


@dataclass(frozen=True)
class Flag:
    """One flag: of a field of the request, or of a setting in a table."""

    kind: type  # str, int, float, bool, dict, or tuple of numbers
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
        silent = self.default is None or self.kind in (bool, dict, tuple)
        return text if silent else f"{text} (default: {self.default})"

    def converted(self, raw: Any) -> Any:
        """The text of a flag, or a value of a config file, in the right type. A ValueError says what it must be."""
        if self.kind is dict:
            return _key_values(raw)
        if self.kind is tuple:
            return _numbers(raw)
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
    """The flags of a request by name."""
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
        if kind not in (dict, tuple):
            kind = next((option for option in get_args(hint) if option is not NoneType), hint)
        required = item.default is MISSING and item.default_factory is MISSING
        metavar = about["metavar"] or _metavar(item.name, kind, choices)
        flags[item.name] = Flag(kind, item.default, required, about["help"], choices, metavar, about["group"], words)
    return flags


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
    for name in sorted(flags, key=lambda name: (*main, name).index(name)):
        item = flags[name]
        _add(groups[MAIN if name in main else item.group], name, item)
    parser.add_argument_group("help").add_argument("-h", "--help", action="help", help="show this text")
    for name in REMOVED.keys() - flags.keys():
        parser.add_argument(as_flag(name), nargs="?", help=argparse.SUPPRESS)
    found, extra = parser.parse_known_args(argv)
    problems = [f"{as_flag(name)} was removed: {REMOVED[name]}" for name in vars(found) if name not in flags]
    for argument in extra:
        near = get_close_matches(argument.partition("=")[0], map(as_flag, flags), 1)
        if not argument.startswith("-"):
            problems.append(f"unexpected argument {argument!r}")
        else:
            hint = f": did you mean {near[0]}?" if near else "; --help lists all flags"
            problems.append(f"unknown flag {argument}{hint}")
    return {name: value for name, value in vars(found).items() if name in flags}, problems


def _add(group: Any, name: str, item: Flag) -> None:
    help = argparse.SUPPRESS if item.group == RARE else item.described
    if item.kind is not bool:
        action = "append" if item.kind is dict else "store"
        group.add_argument(as_flag(name), action=action, help=help, metavar=item.metavar)
    elif item.default:
        group.add_argument(as_flag(name), action=argparse.BooleanOptionalAction, help=help)
    else:
        group.add_argument(as_flag(name), action="store_true", help=help)
        if f"no_{name}" not in REMOVED:  # for a key of the config file
            group.add_argument(as_flag(f"no_{name}"), action="store_false", dest=name, help=argparse.SUPPRESS)


def _metavar(name: str, kind: type, choices: Sequence[str], words: Sequence[str] = ()) -> str:
    if choices:
        return f"{{{','.join(choices)}}}"
    named = {dict: "KEY=VALUE", tuple: "X[,X…]", int: "N", float: "X"}.get(kind)
    return "|".join([named or ("COLUMN" if name.endswith("_col") else "PATH"), *words])


def _from_file(flags: Mapping[str, Flag], path: str) -> tuple[dict[str, Any], list[str]]:
    """The values of a TOML file by flag, and the problems with it."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"--config {path} cannot be read: {error.strerror}"]
    except ValueError as error:  # not TOML, or not UTF-8
        return {}, [f"--config {path} is not TOML: {error}"]
    allowed = [name for name in flags if name != "config"]
    keys = {key: key.replace("-", "_") for key in table}
    gone = [key for key, name in keys.items() if name in REMOVED and name not in allowed]
    unknown = [key for key, name in keys.items() if name not in allowed and key not in gone]
    listed = ", ".join(name.replace("_", "-") for name in allowed)
    problems = [f"{key} in {path} was removed: {REMOVED[keys[key]]}" for key in gone]
    if unknown:
        problems.append(f"unknown key {', '.join(map(repr, unknown))} in {path}; allowed keys: {listed}")
    return {name: table[key] for key, name in keys.items() if name in allowed}, problems


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
