"""The flags of a job: a dataclass of settings, which argparse reads from the command line and from
a config file.

    @dataclass(frozen=True, kw_only=True)
    class FitRequest(FitConfig, Request):                     ─►  --rank, --loss …: the settings
        ratings: str = setting(None, "path of the ratings")   ─►  --ratings PATH, required
        option: dict[str, str] = repeatable("a reader's")     ─►  --option KEY=VALUE …

A config file has the same names as keys. They count as flags before those of the command line. One
RequestError names all mistakes. This module imports neither numpy nor Arrow, so that a mistake is
answered at once.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, ClassVar, TypeVar, get_origin

from onebit_spark.errors import RequestError
from onebit_spark.settings import (
    RARE,
    RESUMING,
    Execution,
    FitConfig,
    Labels,
    Setting,
    Settings,
    Terms,
    declared,
    setting,
)

MAIN = "the flags that most people need"
INPUT = "input"
MODEL = "model"
CERTIFICATES = "certificates and probabilities"
OUTPUT = "output"
SPARK = "Spark and devices"
# The groups of --help; one line names the flags of RARE.
GROUPS = (
    MAIN,
    INPUT,
    MODEL,
    CERTIFICATES,
    OUTPUT,
    RESUMING,
    SPARK,
)
GROUP_OF = {FitConfig: MODEL, Labels: INPUT, Terms: CERTIFICATES, Execution: SPARK}

METAVARS = {"model": "FOLDER", "output_table": "TABLE", "certify_by": "COLUMN", "remote": "URL"}
METAVAR_OF = {int: "N", float: "X"}
WANTED = {str: "text that is not empty", int: "an integer", float: "a number"}
SEVERAL = "a number, or several numbers separated by commas"


@dataclass(frozen=True, kw_only=True)
class Request(Settings):
    """The flags of a job and their values."""

    main: ClassVar[tuple[str, ...]] = ()  # the flags that --help shows first

    def mistakes(self) -> Iterator[str]:
        """What is wrong with the values, in words that name the flags."""
        names = {item.name: as_flag(key) for key, item in flags_of(type(self)).items()}
        yield from (problem.in_words(names) for problem in self.problems())


R = TypeVar("R", bound=Request)


def repeatable(help: str, group: str = "") -> Any:
    """Declare a setting of the type ``dict[str, str]``: its flag takes one key=value each time."""
    return field(default_factory=dict, metadata=setting(None, help, group=group).metadata)


def as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def flags_of(request: type[Request]) -> dict[str, Setting]:
    """The settings that have a flag, by their keys: first those that most people need."""
    settings = declared(request).values()  # type: ignore[arg-type]
    flags = {item.key: item for item in settings if item.key}
    return {key: flags[key] for key in dict.fromkeys((*request.main, *flags)) if key in flags}


def parse(request: type[R], prog: str, argv: Sequence[str] | None = None) -> R:
    """The request, or one RequestError with all problems.

    The command line wins over the config file.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    flags = flags_of(request)
    problems = list[str]()
    parser = _make_parser(request, prog, flags, problems)
    found = argparse.Namespace()
    try:
        if "config" in flags and (path := _config_in(words)):
            parser.parse_args(list(_words_in(path, flags, problems)), found)
            problems[:] = [f"{problem} (in {path})" for problem in problems]
        unknown = parser.parse_known_args(words, found)[1]
    except argparse.ArgumentError as error:
        raise RequestError(f"{error} (--help lists all flags)") from None
    problems += [_explain_unknown(word, flags) for word in unknown]
    values = vars(found)
    for key, item in flags.items():
        if get_origin(item.hint) is dict:
            values[item.name] = dict(filter(None, values.get(item.name, ())))
        elif _is_required(item) and item.name not in values:
            values[item.name] = ""  # an empty path is not checked
            problems.append(f"{as_flag(key)} is required")
    made = request(**values)
    problems += made.mistakes()
    if len(problems) > 1:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        raise RequestError(f"{len(problems)} problems: {listed}")
    if problems:
        raise RequestError(problems[0])
    return made


def command_of(job: str, request: Request) -> str:
    """The command with the flags that differ from their defaults, also those of a config file."""
    words = ["onebit-spark", job]
    for key, item in flags_of(type(request)).items():
        flag = as_flag(key)
        value = getattr(request, item.name)
        if key == "config" or value == item.default:
            continue
        if isinstance(value, dict):
            words += [word for name, text in value.items() for word in (flag, f"{name}={text}")]
        elif isinstance(value, bool):
            words.append(flag if value else as_flag(f"no_{key}"))
        else:
            words += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return shlex.join(words)


# ---- the command line --------------------------------------------------------------------------


class _Formatter(argparse.HelpFormatter):
    """No line breaks within a flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill(text, width, break_on_hyphens=False)


def _make_parser(
    request: type[Request], prog: str, flags: Mapping[str, Setting], problems: list[str]
) -> argparse.ArgumentParser:
    """A parser that leaves defaults out, and appends wrong values to the problems."""
    shown = {key: f"{as_flag(key)} {_metavar(item)}" for key, item in flags.items()}
    required = [shown[key] for key, item in flags.items() if _is_required(item)]
    rare = [shown[key] for key, item in flags.items() if item.group == RARE]
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=" ".join([prog, *required, "[flags]"]),
        description=request.__doc__,
        epilog=f"Rarely needed: {', '.join(rare)}." if rare else None,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        exit_on_error=False,
        formatter_class=_Formatter,
    )
    groups = {title: parser.add_argument_group(title) for title in (*GROUPS, RARE)}
    for key, item in flags.items():
        title = MAIN if key in request.main else item.group or _group_of(request, item.name)
        text = argparse.SUPPRESS if title == RARE else _help(item, flags)
        if item.kind is bool:
            switch = argparse.BooleanOptionalAction
            groups[title].add_argument(as_flag(key), dest=item.name, action=switch, help=text)
            continue
        groups[title].add_argument(
            as_flag(key),
            dest=item.name,
            action="append" if get_origin(item.hint) is dict else "store",
            type=_reader(item, as_flag(key), problems),
            metavar=_metavar(item),
            help=text,
        )
    parser.add_argument_group("help").add_argument(
        "-h", "--help", action="help", help="show this text"
    )
    return parser


def _group_of(request: type[Request], name: str) -> str:
    tables = (table for table in GROUP_OF if issubclass(request, table) and name in declared(table))
    return GROUP_OF[next(tables)]


def _is_required(item: Setting) -> bool:
    return item.default is None and not item.optional


def _help(item: Setting, flags: Mapping[str, Setting]) -> str:
    text = item.described({other.name: as_flag(key) for key, other in flags.items()}).replace(
        "%", "%%"
    )
    if _is_required(item):
        return f"{text} (required)"
    silent = item.default in (None, (), MISSING) or item.kind is bool
    return text if silent else f"{text} (default: {item.default})"


def _metavar(item: Setting) -> str:
    if item.choices:
        return f"{{{','.join(item.choices)}}}"
    if get_origin(item.hint) in (dict, tuple):
        return "KEY=VALUE" if get_origin(item.hint) is dict else "X[,X…]"
    if item.name in METAVARS:
        return METAVARS[item.name]
    text = "COLUMN" if item.name.endswith("_col") else "PATH"
    return "|".join([METAVAR_OF.get(item.kind, text), *item.words])


def _reader(item: Setting, flag: str, problems: list[str]) -> Callable[[str], object]:
    """A function from the text of a flag to its value.

    A wrong text becomes a problem, and the value its default.
    """
    several = get_origin(item.hint)
    wanted = {dict: "key=value", tuple: SEVERAL}.get(several) or " or ".join(
        [WANTED[item.kind], *item.words]
    )

    def read(text: str) -> object:
        key, separator, value = text.partition("=")
        try:
            if several is dict and key and separator:
                return key, value
            if several is tuple:
                return tuple(item.kind(part) for part in text.split(","))
            if text in item.words:
                return text
            if text and several is not dict:
                return item.kind(text)
        except ValueError:
            pass  # it is a problem
        problems.append(f"{flag} must be {wanted}, not {text!r}")
        return None if several is dict else item.default

    return read


def _explain_unknown(word: str, flags: Mapping[str, Setting]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r}"
    near = get_close_matches(word.partition("=")[0], map(as_flag, flags), 1)
    hint = f": did you mean {near[0]}?" if near else "; --help lists all flags"
    return f"unknown flag {word}{hint}"


# ---- the config file ---------------------------------------------------------------------------


def _config_in(words: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    path: str | None = parser.parse_known_args(words)[0].config
    return path


def _words_in(path: str, flags: Mapping[str, Setting], problems: list[str]) -> Iterator[str]:
    """The keys of a config file as words of a command line.

    ``no-report = true`` is ``report = false``.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise RequestError(f"--config {path} is not TOML: {error}") from None
    keys = [key for key in flags if key != "config"]
    for written, value in table.items():
        name = written.replace("-", "_")
        key = name if name in keys else name.removeprefix("no_")
        is_switch = key in keys and flags[key].kind is bool
        several = get_origin(flags[key].hint) if key in keys else None
        if key not in keys or (key != name and not is_switch):
            listed = ", ".join(key.replace("_", "-") for key in keys)
            problems.append(f"unknown key {written!r}; allowed keys: {listed}")
        elif is_switch and not isinstance(value, bool):
            problems.append(f"{written} must be true or false, not {value!r}")
        elif is_switch:
            yield as_flag(key if value == (key == name) else f"no_{key}")
        elif flags[key].kind is str and several not in (dict, tuple) and not isinstance(value, str):
            problems.append(f"{written} must be text, not {value!r}")
        elif several is dict and isinstance(value, dict | list):
            texts = (
                value
                if isinstance(value, list)
                else [f"{one}={_text(each)}" for one, each in value.items()]
            )
            yield from (f"{as_flag(key)}={text}" for text in texts)
        else:
            text = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
            yield f"{as_flag(key)}={text}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
