"""Writes ``fit_params.py``: a Param with getter and setter for each setting of ``TABLES``, and the constructor.

    python -m onebit_spark.ml.make_params       after a setting was added, removed or changed

They are generated into a file, so that readers, editors and type checkers see them.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.ml.param import Param

from onebit_spark.core.settings import Setting, documented_parameter
from onebit_spark.ml.param_types import names_of_params, settings_with_params
from onebit_spark.ml.prediction_params import PredictionParams

FILE = Path(__file__).with_name("fit_params.py")

TEXT = '''\
"""The estimator's Params. Written by ``python -m onebit_spark.ml.make_params``: change the settings, not this file."""

from __future__ import annotations

from pyspark import keyword_only
from pyspark.ml.param import Param

from onebit_spark.ml.param_types import accessors, declared_param, keyword_defaults, optional_accessors
from onebit_spark.ml.prediction_params import PredictionParams


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

{params}
{accessors}
    @keyword_only
    def __init__(
        self,
        *,
{signature}    ) -> None:
        """The sections are those of docs/MATH.md. None leaves a Param unset.

        Parameters
        ----------
{documentation}        """
        super().__init__()
        self._setDefault(**keyword_defaults(FitParams.__init__))
        self._set_given(**self._input_kwargs)  # type: ignore[attr-defined]
'''


def written() -> str:
    """The text of the file."""
    settings, shared = settings_with_params(), PredictionParams()
    signature, documentation = [], []
    for name in (name for name, value in vars(PredictionParams).items() if isinstance(value, Param)):
        signature.append(f"{name}: str = {_quoted(shared.getOrDefault(name))}")
        documentation += documented_parameter(name, "str", shared.getParam(name).doc)
    for name, item in settings.items():
        default = repr(item.default) if item.kind is not str or item.optional else _quoted(item.default)
        signature.append(f"{name}: {_kind(item)}{' | None' if item.optional else ''} = {default}")
        documentation += item.documented(name, names_of_params())
    return TEXT.format(
        params="".join(
            f"    {name}: Param[{_kind(item)}] = declared_param({_quoted(name)})\n" for name, item in settings.items()
        ),
        accessors="".join(_accessors(name, item) for name, item in settings.items()),
        signature="".join(f"        {entry},\n" for entry in signature),
        documentation="".join(f"        {line}\n" for line in documentation),
    )


def _accessors(name: str, item: Setting) -> str:
    capital, maker = name[0].upper() + name[1:], "optional_accessors" if item.optional else "accessors"
    return f"    get{capital}, set{capital} = {maker}({name})\n"


def _kind(item: Setting) -> str:
    return item.kind.__name__ + (" | str" if item.words else "")


def _quoted(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
