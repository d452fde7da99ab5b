"""A setting is declared once, as a field of a frozen dataclass: its type, default, help and check.

    rank: int = setting(10, "largest number of factors", check=at_least(1))
          ─►  --rank and the key `rank` (cli/flags.py), the Param `rank` (ml/params.py), the report's row,
              and the parameter in the documentation of the class (``documented``)

``declared`` lists the settings of a class. ``problems_of`` checks the values of an object. A problem is a field and a
text. Each front end names the field in its own way: ``--likelihood-weight``, ``likelihoodWeight``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from textwrap import wrap
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

SAME = ""  # the front end's own spelling of the field's name
WIDTH = 120  # of a line of source

T = TypeVar("T")


class Problem(NamedTuple):
    """What is wrong with the value of a field."""

    field: str  # name of the field
    text: str  # The problem, as the words after the name. ``{other}`` in it stands for the name of a second field.
    other: str | None = None  # the second field

    def in_words(self, names: Mapping[str, str]) -> str:
        """The problem as one sentence. ``names`` are the names that a front end gives to the fields."""
        text = self.text
        if self.other is not None:
            text = text.replace("{other}", names.get(self.other, self.other))
        return f"{names.get(self.field, self.field)} {text}"

    def __str__(self) -> str:
        return self.in_words({})


class RefusedSetting(ValueError):
    """A value that is allowed, but not together with the other settings. ``problem`` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Check(NamedTuple):
    """A condition on a value."""

    words: str  # what follows "must" in an error message
    holds: Callable[[Any], bool]  # whether a value satisfies the condition


@dataclass(frozen=True)
class Setting:
    """One declared setting."""

    name: str  # name of the field
    hint: Any  # its type, as it was declared
    kind: type  # str, int, float or bool
    optional: bool  # whether None is allowed
    words: tuple[str, ...]  # words that are allowed besides numbers, such as "auto"
    default: Any  # default value
    help: str  # Help text. Other fields are named in braces.
    choices: tuple[str, ...]  # the allowed values, if they are listed
    check: Check | None  # condition on the value
    see: str  # the sections of docs/MATH.md about it
    key: str | None  # Its flag and config key, with underscores. None: it has none.
    param: str | None  # Its Param. None: it has none.
    group: str  # where --help shows its flag, if not with the others of its table

    def problem(self, value: object) -> Problem | None:
        """The problem with a value, or None."""
        if self.check is None or (self.optional and value is None) or self.check.holds(value):
            return None
        if isinstance(value, str) and value in self.words:
            return None
        return Problem(self.name, f"must {self.demand}, not {value!r}")

    @property
    def demand(self) -> str:
        """What follows "must" in an error message."""
        return " or ".join([self.check.words if self.check else "", *self.words])

    def described(self, names: Mapping[str, str]) -> str:
        """The help text, with the ``names`` that a front end gives to the fields."""
        return self.help.format_map(names)

    def documented(self, name: str, names: Mapping[str, str]) -> list[str]:
        """Its lines in a docstring: name, type, and the help text as a sentence."""
        kind = f"{{{', '.join(map(repr, self.choices))}}}".replace("'", '"') if self.choices else self.kind.__name__
        kind += "".join(f' or "{word}"' for word in self.words) + (", optional" if self.optional else "")
        return documented_parameter(name, kind, self.described(names) + (f". See {self.see}" if self.see else ""))


def setting(
    default: Any, help: str, *, check: Check | None = None, choices: Iterable[str] = (), see: str = "",
    key: str | None = SAME, param: str | None = SAME, group: str = "",
) -> Any:  # fmt: skip
    """Declare a setting: see ``Setting``. By default ``key`` and ``param`` follow from the name of the field."""
    allowed = tuple(choices)
    check = one_of(allowed) if allowed else check
    declaration = {"help": help, "choices": allowed, "check": check, "see": see, "key": key, "param": param}
    declaration["group"] = group
    return field(default=default, metadata=declaration)


@cache
def declared(table: type) -> dict[str, Setting]:
    """The settings of a dataclass, by field name."""
    hints, settings = get_type_hints(table), {}
    for item in fields(table):
        declaration, hint = dict(item.metadata), hints[item.name]
        for front_end, spelling in (("key", item.name), ("param", camel(item.name))):
            declaration[front_end] = spelling if declaration[front_end] == SAME else declaration[front_end]
        kinds = get_args(hint) or (hint,)
        kind = next(kind for kind in kinds if kind is not NoneType)
        optional = NoneType in kinds
        settings[item.name] = Setting(item.name, hint, kind, optional, words_in(hint), item.default, **declaration)
    return settings


def documented(table: type[T]) -> type[T]:
    """The class with a section ``Parameters`` in its docstring, made of its settings."""
    known: type = table
    settings = declared(known)
    names = {name: f"``{name}``" for name in settings}
    lines = [line for name, item in settings.items() for line in item.documented(name, names)]
    table.__doc__ = "\n    ".join([f"{(table.__doc__ or '').rstrip()}\n", "Parameters", "----------", *lines]) + "\n"
    return table


def documented_parameter(name: str, kind: str, text: str) -> list[str]:
    """The lines of a parameter in a docstring. ``text`` becomes a sentence."""
    sentence = (text[0].upper() if text[0].isascii() else text[0]) + text[1:] + "."
    return [f"{name} : {kind}", *wrap(sentence, WIDTH - 8, initial_indent="    ", subsequent_indent="    ")]


def words_in(hint: Any) -> tuple[str, ...]:
    """The words of a type such as ``float | Literal["auto"]``."""
    return tuple(word for part in get_args(hint) if get_origin(part) is Literal for word in get_args(part))


def problems_of(settings: Any) -> list[Problem]:
    """The problems of an object's fields, each checked by itself."""
    table: type = type(settings)
    problems = (item.problem(getattr(settings, name)) for name, item in declared(table).items())
    return [problem for problem in problems if problem is not None]


def param_names(table: type) -> dict[str, str]:
    """Field name ─► name of its Param, for the settings that have one."""
    return {name: item.param for name, item in declared(table).items() if item.param is not None}


def by_param(settings: Any) -> dict[str, Any]:
    """Name of the Param ─► value: arguments for ``OneBitCompletion``."""
    return {param: getattr(settings, name) for name, param in param_names(type(settings)).items()}


def camel(name: str) -> str:
    """likelihood_weight ─► likelihoodWeight"""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


# ---- checks ----------------------------------------------------------------------------------------------------------


def one_of(allowed: tuple[str, ...]) -> Check:
    return Check(f"be one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed)


def at_least(lowest: int) -> Check:
    return Check(f"be an integer of at least {lowest}", lambda value: is_integer(value) and value >= lowest)


def is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


POSITIVE = Check("be a positive finite number", lambda value: is_number(value) and 0 < value < math.inf)
FINITE = Check("be a finite number", lambda value: is_number(value) and math.isfinite(value))
NOT_NEGATIVE = Check("be a finite number, 0 or above", lambda value: is_number(value) and 0 <= value < math.inf)
SHARE = Check("lie strictly between 0 and 1", lambda value: is_number(value) and 0 < value < 1)
YES_OR_NO = Check("be True or False", lambda value: isinstance(value, bool))
