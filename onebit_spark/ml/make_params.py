"""Writes ``fit_params.py``: a Param with getter and setter for each setting of ``TABLES`` that has a Param.

    python -m onebit_spark.ml.make_params       after a setting was added, removed or changed

The Params are generated into a file, so that readers, editors and type checkers see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from onebit_spark.certificate.certificates import Terms
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.settings import Setting, declared, param_names
from onebit_spark.input.labels import Labels

TABLES = (Labels, FitConfig, Execution, Terms)
FILE = Path(__file__).with_name("fit_params.py")
WIDTH = 120

HEAD = '''\
"""The estimator's Params. Written by ``python -m onebit_spark.ml.make_params``: change the settings, not this file."""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark.ml.param import Param

from onebit_spark.ml.param_types import flag, integer, number, number_or_auto, text
from onebit_spark.ml.prediction_params import PredictionParams

F = TypeVar("F", bound="FitParams")

# The defaults that ``explainParams`` shows. Params that are not listed have none.
DEFAULTS: dict[str, Any] = {
'''
CLASS = '''\
}


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

'''
INIT = """
    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**DEFAULTS)

    def _maybe(self, param: Param[Any]) -> Any:
        return self.getOrDefault(param) if self.isDefined(param) else None
"""
PARAM_KINDS = {str: "text", int: "integer", float: "number", bool: "flag"}


def settings_with_params() -> dict[str, Setting]:
    """All settings that are Params, by the name of the Param."""
    return {item.param: item for table in TABLES for item in declared(table).values() if item.param is not None}


def written() -> str:
    """The text of the file."""
    found = settings_with_params()
    parts = [HEAD]
    parts += [f"    {_quoted(name)}: {_value(item)},\n" for name, item in found.items() if not item.optional]
    parts.append(CLASS)
    names = {field: param for table in TABLES for field, param in param_names(table).items()}
    parts += [_param(name, item, _meaning(item, names)) for name, item in found.items()]
    parts.append(INIT)
    parts += [part for name, item in found.items() for part in _accessors(name, item)]
    return "".join(parts)


def _meaning(item: Setting, names: dict[str, str]) -> str:
    """The line of ``explainParams``: the help, and what the value must be."""
    if item.choices:
        return f"{item.described(names)}: {', '.join(item.choices)}"
    limits = f"; must {item.demand}" if item.check is not None and item.kind is not bool else ""
    return item.described(names) + limits


def _param(name: str, item: Setting, meaning: str) -> str:
    """``name = kind("name", "meaning")``, with the line breaks of the formatter."""
    call, arguments = (
        f"    {name} = {PARAM_KINDS[item.kind]}{'_or_auto' if item.words else ''}(",
        f"{_quoted(name)}, {_quoted(meaning)}",
    )
    if len(call + arguments) < WIDTH:
        return f"{call}{arguments})\n"
    if len(arguments) + 8 <= WIDTH:
        return f"{call}\n        {arguments}\n    )\n"
    pieces = wrap(meaning, WIDTH - 12, drop_whitespace=False)
    lines = [f"        {_quoted(piece)}" for piece in pieces]
    return "\n".join([call, f"        {_quoted(name)},", *lines]) + ",\n    )\n"


def _accessors(name: str, item: Setting) -> Iterator[str]:
    capital, kind = name[0].upper() + name[1:], item.kind.__name__ + (" | str" if item.words else "")
    yield f"\n    def get{capital}(self) -> {kind}{' | None' if item.optional else ''}:\n"
    yield f"        return self.{'_maybe' if item.optional else 'getOrDefault'}(self.{name})\n"
    yield f"\n    def set{capital}(self: F, value: {kind}) -> F:\n        return self._set({name}=value)\n"


def _value(item: Setting) -> str:
    return _quoted(item.default) if item.kind is str else repr(item.default)


def _quoted(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
