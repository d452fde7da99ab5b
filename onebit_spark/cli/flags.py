"""A request is a dataclass. Its fields are the flags of a job, with values from command line, config file and defaults.

    @dataclass(frozen=True, kw_only=True)
    class Request:
        ratings: str = flag("path of the ratings")            ─►  --ratings RATINGS, required
        rank: int = flag("number of factors", default=10)     ─►  --rank RANK, or `rank = 12` in the file of --config

One RequestError names all mistakes. Settings that are declared elsewhere (``FitConfig``, ``Execution``, ``Terms``,
``Labels``) become flags by ``flag_of`` and ``takes``.
"""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from onebit_spark.core.settings import Problem, Setting, declared, words_in
from onebit_spark.errors import RequestError

REMOVED = {  # flag, or key of a config file ─► what to do instead
    "blocks": "every fit reads the ratings; keep them as Parquet, which is read fastest",
}
_WANTED = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def flag(help: str, *, default: Any = MISSING, choices: Sequence[str] = ()) -> Any:
    """Declare a flag. It is required if it has no default, and a repeatable key=value if the default is ``dict``."""
    metadata = {"help": help, "choices": tuple(choices)}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


class Checked(Protocol):
    """A dataclass of flags that can check their values."""

    def problems(self) -> Iterator[str]: ...


Request = TypeVar("Request", bound=Checked)
C = TypeVar("C", bound=type)
T = TypeVar("T")


def parse(request: type[Request], prog: str, argv: Sequence[str] | None = None) -> Request:
    """The request, or one RequestError with all problems. A flag has priority over the config file."""
    flags = _flags_of(request)
    given, problems = _from_command_line(request, prog, argv)
    path = given.get("config")
    in_file, file_problems = _from_file(flags, path) if path else ({}, [])
    problems += file_problems
    values: dict[str, Any] = {}
    for source, name, raw in (
        *((f"{name} in {path}", name, raw) for name, raw in in_file.items()),
        *((as_flag(name), name, raw) for name, raw in given.items()),
    ):
        try:
            values[name] = flags[name].converted(raw)
        except ValueError as error:
            problems.append(f"{source} {error}")
    required = [name for name, item in flags.items() if item.required]
    problems += [f"{as_flag(name)} is required" for name in required if name not in given and name not in in_file]
    checked = request(**{**dict.fromkeys(required, ""), **values})  # an empty path is not checked
    problems += checked.problems()
    if problems:
        raise RequestError(_numbered(problems))
    return checked


def as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def command_of(job: str, request: Any) -> str:
    """The command with the flags of a request that differ from their defaults, also those of a config file."""
    words = ["onebit-spark", job]
    for name, item in _flags_of(type(request)).items():
        value, flag = getattr(request, name), as_flag(name)
        if name == "config" or value == item.default or value == {}:
            continue
        if item.kind is bool:
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif item.kind is dict:
            words += [word for key, text in value.items() for word in (flag, f"{key}={text}")]
        else:
            words += [flag, ",".join(map(str, value)) if item.kind is tuple else str(value)]
    return shlex.join(words)


@dataclass(frozen=True)
class _Flag:
    kind: type  # str, int, float, bool, dict, or tuple of numbers
    default: Any
    required: bool
    help: str
    choices: tuple[str, ...]
    words: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        text = self.help.replace("%", "%%")
        if self.choices:
            text += f": {', '.join(self.choices)}"
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


def _flags_of(request: type[Checked]) -> dict[str, _Flag]:
    """The flags by field name, in the order of --help: the required ones first."""
    hints = get_type_hints(request)
    flags = {}
    for item in fields(request):  # type: ignore[arg-type]
        hint = hints[item.name]
        kind = (
            get_origin(hint)
            if get_origin(hint) in (dict, tuple)
            else next((option for option in get_args(hint) if option is not NoneType), hint)
        )
        required = item.default is MISSING and item.default_factory is MISSING
        flags[item.name] = _Flag(kind, item.default, required, words=words_in(hint), **item.metadata)
    return dict(sorted(flags.items(), key=lambda pair: not pair[1].required))


# ---- where values come from ------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise RequestError(f"{message} (--help lists all flags)")


def _from_command_line(
    request: type[Checked], prog: str, argv: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """The given flags, as text, and the problems with the other arguments."""
    parser = _Parser(prog=prog, description=request.__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    flags = _flags_of(request)
    for name, item in flags.items():
        if item.kind is bool:
            parser.add_argument(as_flag(name), action=argparse.BooleanOptionalAction, help=item.described)
        else:
            action = "append" if item.kind is dict else "store"
            metavar = "KEY=VALUE" if item.kind is dict else name.split("_")[-1].upper()
            parser.add_argument(as_flag(name), action=action, help=item.described, metavar=metavar)
    for name in REMOVED.keys() - flags.keys():
        parser.add_argument(as_flag(name), nargs="?", help=argparse.SUPPRESS)
    parsed, extra = parser.parse_known_args(argv)
    given = vars(parsed)
    problems = [f"{as_flag(name)} was removed: {REMOVED[name]}" for name in given if name not in flags]
    problems += [_unknown(argument, [as_flag(name) for name in flags]) for argument in extra]
    return {name: value for name, value in given.items() if name in flags}, problems


def _unknown(argument: str, known: list[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    near = get_close_matches(argument.partition("=")[0], known, 1)
    return f"unknown flag {argument}" + (f": did you mean {near[0]}?" if near else f"; flags: {', '.join(known)}")


def _from_file(flags: dict[str, _Flag], path: str) -> tuple[dict[str, Any], list[str]]:
    """The values of a TOML file by field name, and the problems with it."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"--config {path} cannot be read: {error.strerror}"]
    except ValueError as error:  # not TOML, or not UTF-8
        return {}, [f"--config {path} is not TOML: {error}"]
    allowed = [name for name in flags if name != "config"]
    keys = {key: key.replace("-", "_") for key in table}
    unknown = [key for key, name in keys.items() if name not in allowed and name not in REMOVED]
    listed = ", ".join(name.replace("_", "-") for name in allowed)
    problems = [
        f"{key} in {path} was removed: {REMOVED[name]}"
        for key, name in keys.items()
        if name in REMOVED and name not in allowed
    ]
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


def _numbered(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems: " + "; ".join(f"({i}) {problem}" for i, problem in enumerate(problems, 1))


# ---- settings that are declared elsewhere ----------------------------------------------------------------------------


def flag_of(table: type, name: str, help: str | None = None) -> Any:
    """Declare the flag of one setting, with its help text or another one."""
    item = declared(table)[name]
    return flag(help or item.described(flag_names(table)), default=item.default, choices=item.choices)


def takes(*tables: type) -> Callable[[C], C]:
    """Add a flag for each setting of these tables that has a key to a class, before it becomes a dataclass.

    @dataclass(frozen=True, kw_only=True)
    @takes(FitConfig, Terms)
    class Request: …
    """

    def extended(request: C) -> C:
        added: dict[str, Any] = {}
        for table in tables:
            for key, item in _keyed(table).items():
                added[key] = item.hint
                setattr(request, key, flag_of(table, item.name))
        request.__annotations__ = {**added, **request.__annotations__}
        return request

    return extended


def filled(table: type[T], request: object) -> T:
    """The settings of a request. Settings without a flag have their defaults."""
    values = {item.name: getattr(request, key) for key, item in _keyed(table).items() if hasattr(request, key)}
    return table(**values)


def in_flags(table: type, problems: Iterable[Problem]) -> Iterator[str]:
    """Problems with the settings of a table, in words, each field named as a flag."""
    return (problem.in_words(flag_names(table)) for problem in problems)


def flag_names(table: type) -> dict[str, str]:
    """The flag of each field, for the settings that have one."""
    return {item.name: as_flag(key) for key, item in _keyed(table).items()}


def _keyed(table: type) -> dict[str, Setting]:
    return {item.key: item for item in declared(table).values() if item.key is not None}
