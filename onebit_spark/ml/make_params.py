"""Writes ``fit_params.py``: a Param with getter and setter for each setting of ``TABLES``, and the constructor.

    python -m onebit_spark.ml.make_params       after a setting was added, removed or changed

They are generated into a file, so that readers, editors and type checkers see them.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

from pyspark.ml.param import Param

from onebit_spark.core.settings import WIDTH, Setting
from onebit_spark.ml.params import PredictionParams, settings_with_params

FILE = Path(__file__).with_name("fit_params.py")

TEXT = '''\
"""The estimator's Params. Written by ``python -m onebit_spark.ml.make_params``: change the settings, not this file."""

from __future__ import annotations

from pyspark import keyword_only

from onebit_spark.ml.params import (
    PredictionParams,
    declared,
    declared_or_word,
    documented_params,
    keyword_defaults,
    optional,
    optional_or_word,
    refusing_removed,
)


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

{params}
    @refusing_removed
    @keyword_only
    def __init__(
        self, *,
{signature}
    ) -> None:  # fmt: skip
        super().__init__()
        self._setDefault(**keyword_defaults(FitParams.__init__))
        self._set_given(**self._input_kwargs)


FitParams.__init__.__doc__ = documented_params(FitParams, FitParams.__init__)
'''


def written() -> str:
    """The text of the file."""
    settings, shared = settings_with_params(), PredictionParams()
    names = [name for name, value in vars(PredictionParams).items() if isinstance(value, Param)]
    signature = [f"{name}: str = {_quoted(shared.getOrDefault(name))}" for name in names]
    signature += [_argument(name, item) for name, item in settings.items()]
    # A line breaks between arguments only.
    lines = fill(", ".join(signature).replace(", ", ",\0").replace(" ", "~").replace("\0", " "), WIDTH - 9)
    return TEXT.format(
        params="".join(_param(name, item) for name, item in settings.items()),
        signature="\n".join(f"        {line}" for line in lines.replace("~", " ").splitlines()) + ",",
    )


def _param(name: str, item: Setting) -> str:
    capital, kind = name[0].upper() + name[1:], f", {item.kind.__name__}"
    maker = ("optional" if item.optional else "declared") + ("_or_word" if item.words else "")
    call, arguments = f"    {name}, get{capital}, set{capital} = {maker}(", _quoted(name) + ("" if item.words else kind)
    return f"{call}{arguments})\n" if len(call + arguments) < WIDTH else f"{call}\n        {arguments}\n    )\n"


def _argument(name: str, item: Setting) -> str:
    kind = item.kind.__name__ + (" | str" if item.words else "") + (" | None" if item.optional else "")
    default = _quoted(item.default) if isinstance(item.default, str) else repr(item.default)
    return f"{name}: {kind} = {default}"


def _quoted(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
