"""The flags of settings that are declared elsewhere: ``FitConfig``, ``Execution``, ``Terms``, ``Labels``.

    @dataclass(frozen=True, kw_only=True)
    @takes(FitConfig, Terms)
    class Request: …           ─►  a flag for each of their settings that has a key, before the request's own

``filled`` makes the settings of a request. ``in_flags`` describes problems with the names of the flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from onebit_spark.cli.flags import as_flag, flag
from onebit_spark.core.settings import Problem, Setting, declared

C = TypeVar("C", bound=type)
T = TypeVar("T")


def flag_of(table: type, name: str, help: str | None = None) -> Any:
    """Declare the flag of one setting, with its help text or another one."""
    item = declared(table)[name]
    return flag(help or item.described(flag_names(table)), default=item.default, choices=item.choices)


def takes(*tables: type) -> Callable[[C], C]:
    """Add a flag for each setting of these tables to a class, before it becomes a dataclass."""

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
    return (problem.told(flag_names(table)) for problem in problems)


def flag_names(table: type) -> dict[str, str]:
    """The flag of each field, for the settings that have one."""
    return {item.name: as_flag(key) for key, item in _keyed(table).items()}


def _keyed(table: type) -> dict[str, Setting]:
    return {item.key: item for item in declared(table).values() if item.key is not None}
