"""From the columns of a table of side features to numbers: one line of float32 per id.

A number or a boolean is one feature. A string is one feature per value. An array of numbers is one feature per element,
an array of strings one per value. A feature is (z − centre)·scale, with the mean and the standard deviation of the
ids' table. The features of one column share the weight of one column::

    scale = 1 / (std · √(features of the column · columns)),     so ‖f_i‖² is about 1

What is missing counts as the mean, 0. So does a value that the coding has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.id_index import one_array

MOST_VALUES = 1_000  # of a column of strings, and elements of an array

Table32 = NDArray[np.float32]


@dataclass(frozen=True)
class Feature:
    """One coded feature."""

    column: str  # name of the column
    value: str | None  # the string that it stands for
    element: int | None  # its position in an array of numbers
    centre: float  # its number is (z − centre)·scale
    scale: float

    @property
    def name(self) -> str:
        """For people: ``age``, ``genre=Drama`` or ``embedding[3]``."""
        if self.value is not None:
            return f"{self.column}={self.value}"
        return self.column if self.element is None else f"{self.column}[{self.element}]"


@dataclass(frozen=True)
class FeatureCoding:
    """The coded features of a side, in order."""

    features: tuple[Feature, ...]

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def as_list(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [asdict(feature) for feature in self.features]

    @classmethod
    def from_list(cls, entries: Iterable[Mapping[str, Any]]) -> FeatureCoding:
        """The inverse of ``as_list``."""
        return cls(tuple(Feature(**entry) for entry in entries))

    @property
    def columns(self) -> list[str]:
        """The columns that the coding reads, each once."""
        return list(dict.fromkeys(feature.column for feature in self.features))

    def coded(self, table: pa.Table) -> Table32:
        """The features of every line of a table that has these columns (rows × p)."""
        lines = np.zeros((table.num_rows, len(self.features)), np.float32)
        for name in self.columns:
            raw = _Raw.of(one_array(table[name]))
            for place, feature in enumerate(self.features):
                if feature.column == name:
                    z = raw.numbers(feature)
                    lines[:, place] = np.where(np.isfinite(z), (z - feature.centre) * feature.scale, 0.0)
        return lines


@dataclass(frozen=True)
class _Raw:
    """A column, ready to be asked for the numbers of a feature; nan where they are missing."""

    numeric: NDArray[np.float64] | None  # lines × elements
    codes: NDArray[np.int64]  # of the strings, flattened
    lines: NDArray[np.int64]  # the line of each string
    values: dict[str, int]  # string ─► code
    present: NDArray[np.bool_]  # lines that are not null

    @classmethod
    def of(cls, column: pa.Array) -> _Raw:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        nothing = np.zeros(0, np.int64)
        kind = column.type
        if pa.types.is_dictionary(kind):
            return cls.of(column.dictionary_decode())
        if is_list(kind):
            lines, flat = pc.list_parent_indices(column).to_numpy().astype(np.int64), pc.list_flatten(column)
            if is_text(kind.value_type):
                return cls(None, *_encoded(flat, lines), present)
            return cls(_square(flat, lines, len(column)), nothing, nothing, {}, present)
        if is_text(kind):
            return cls(None, *_encoded(column, np.arange(len(column))), present)
        return cls(as_doubles(column)[:, None], nothing, nothing, {}, present)

    def numbers(self, feature: Feature) -> NDArray[np.float64]:
        if self.numeric is not None:
            place = feature.element or 0
            return self.numeric[:, place] if place < self.numeric.shape[1] else np.full(len(self.numeric), np.nan)
        z = np.where(self.present, 0.0, np.nan)
        code = self.values.get(str(feature.value), -1)
        z[self.lines[self.codes == code]] = 1.0
        return z


def learn_coding(table: pa.Table, id_column: str) -> tuple[FeatureCoding, list[str]]:
    """The coding of all columns but that of the ids, and a line about each column that is left out or has gaps."""
    by_column: list[list[Feature]] = []
    notes: list[str] = []
    for name in table.column_names:
        if name == id_column:
            continue
        column = one_array(table[name])
        problem = _refused(column.type)
        features, gaps = ([], 0) if problem else _learnt(name, column)
        if problem or not features:
            notes.append(f"{name} is left out: {problem or _why_empty(column)}")
            continue
        if gaps:
            notes.append(f"{name}: {gaps:,} of {len(column):,} values are missing and count as the mean")
        by_column.append(features)
    shared = [
        replace(feature, scale=feature.scale / np.sqrt(len(features) * len(by_column)))
        for features in by_column
        for feature in features
    ]
    return FeatureCoding(tuple(shared)), notes


def _learnt(name: str, column: pa.Array) -> tuple[list[Feature], int]:
    """The features of one column, before the columns share their weight, and the number of gaps."""
    raw = _Raw.of(column)
    if raw.numeric is not None:
        elements: list[int | None] = [None] if not is_list(column.type) else list(range(raw.numeric.shape[1]))
        wanted = [Feature(name, None, element, 0.0, 1.0) for element in elements]
        gaps = int(np.sum(~np.isfinite(raw.numeric).all(axis=1)))
    else:
        gaps = int(np.sum(~raw.present))
        wanted = [Feature(name, value, None, 0.0, 1.0) for value in sorted(raw.values)]
    if len(wanted) > MOST_VALUES:
        return [], gaps
    features = []
    for feature in wanted:
        z = raw.numbers(feature)
        z = z[np.isfinite(z)]
        if len(z) and z.std() > 1e-9 * max(1.0, float(np.abs(z).max())):
            features.append(replace(feature, centre=float(z.mean()), scale=float(1.0 / z.std())))
    return features, gaps


def _refused(kind: pa.DataType) -> str | None:
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    if is_text(inner) or _is_number(inner):
        return None
    return f"a column of type {kind} cannot be a feature; take numbers, booleans, strings or arrays of them"


def _why_empty(column: pa.Array) -> str:
    raw = _Raw.of(column)
    n = len(raw.values) if raw.numeric is None else raw.numeric.shape[1]
    if n > MOST_VALUES:
        what = "different values" if raw.numeric is None else "elements"
        return f"it has {n:,} {what}, and at most {MOST_VALUES:,} are used"
    if not raw.present.any():
        return "all its values are missing"
    return "it has only one value"


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def as_doubles(column: pa.Array) -> NDArray[np.float64]:
    """Numbers, nan where they are null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False), np.float64)


def _encoded(
    strings: pa.Array, lines: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, int]]:
    """Codes of the strings that are not null, the line of each, and the code of each string."""
    valid = strings.is_valid().to_numpy(zero_copy_only=False)
    coded = pc.dictionary_encode(strings.drop_null())
    values = {value: code for code, value in enumerate(coded.dictionary.to_pylist())}
    return coded.indices.to_numpy().astype(np.int64), lines[valid], values


def _square(flat: pa.Array, lines: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Lists of numbers as a matrix; nan where a list is shorter than the longest one."""
    lengths = np.bincount(lines, minlength=n) if len(lines) else np.zeros(n, np.int64)
    out = np.full((n, int(lengths.max(initial=0))), np.nan)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    out[lines, np.arange(len(lines)) - first[lines]] = as_doubles(flat)
    return out
