"""Implementations that are found by their files: one module of a folder for each name.

    core/priors/inverse_gamma.py  ─►  PRIORS["inverse-gamma"], --prior inverse-gamma

``names_in`` lists a folder without importing it, so that the command line answers before numpy is
imported. It also works where the package is a zip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar, cast

T = TypeVar("T")

PACKAGE = "onebit_spark"


@cache
def names_in(folder: str) -> tuple[str, ...]:
    """The names of the modules in a folder of the package, such as "core/priors"."""
    path = os.path.join(os.path.dirname(__file__), *folder.split("/"))
    return tuple(sorted(name_of(module.name) for module in iter_modules([path])))


def name_of(module: str) -> str:
    """onebit_spark.core.priors.inverse_gamma ─► inverse-gamma"""
    return module.rpartition(".")[2].replace("_", "-")


class Registry(Mapping[str, type[T]]):
    """The classes of a folder by their names. A module is imported when its class is first read."""

    def __init__(self, folder: str, contract: type) -> None:
        self.folder = folder
        self.contract = contract  # what each of the classes extends
        self._loaded: dict[str, type[T]] = {}

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(names_in(self.folder))

    def __len__(self) -> int:
        return len(names_in(self.folder))

    def _load(self, name: str) -> type[T]:
        if name not in names_in(self.folder):
            raise KeyError(name)
        path = ".".join([PACKAGE, *self.folder.split("/"), name.replace("-", "_")])
        classes = [value for value in vars(import_module(path)).values() if isinstance(value, type)]
        found: list[type[T]] = []
        for each in classes:
            if issubclass(each, self.contract) and each.__module__ == path:
                found.append(cast("type[T]", each))
        if len(found) != 1:
            wanted = f"one subclass of {self.contract.__name__}"
            raise TypeError(f"{path} must define {wanted}, not {len(found)}")
        return found[0]
