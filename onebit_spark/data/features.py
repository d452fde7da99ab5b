"""Side features: how the columns of a table become numbers (docs/MATH.md, §15)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.arrays import DoubleArray, Indices, Mask
from onebit_spark.core.loss import Side
from onebit_spark.data.user_tables import one_array
from onebit_spark.records import Fields, Record

log = logging.getLogger("onebit_spark")

MOST_VALUES = 1_000  # of different strings in a column, and of elements of an array
LEAST_STD = 1e-9  # of the largest value of a feature; one that varies less is constant

Table32 = NDArray[np.float32]


# ---- the coding --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feature:
    column: str  # name of the column
    value: str | None  # the string that it stands for
    element: int | None  # its position in an array of numbers
    centre: float  # its number is (z − centre)·scale
    scale: float

    @property
    def name(self) -> str:
        """Such as ``age``, ``genre=Drama`` or ``embedding[3]``."""
        if self.value is not None:
            return f"{self.column}={self.value}"
        return self.column if self.element is None else f"{self.column}[{self.element}]"


@dataclass(frozen=True)
class FeatureCoding:
    """How the columns of a table of side features become numbers, one float32 per feature and id.

    A number or a boolean is one feature, a string one feature per value, an array of numbers one
    feature per element, and an array of strings one feature per value. A feature is
    (z − centre)·scale, where centre and std are the mean and the standard deviation over the ids of
    the table. The features of a column share the weight of one column::

        scale = 1 / (std · √(features of the column · columns)),     so ‖f_i‖² is about 1

    A missing or unknown value counts as the mean, 0.
    """

    features: tuple[Feature, ...]

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def as_list(self) -> list[Fields]:
        return [asdict(feature) for feature in self.features]

    @classmethod
    def from_list(cls, entries: Iterable[Record]) -> FeatureCoding:
        return cls(tuple(Feature(**entry) for entry in entries))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(feature.column for feature in self.features))

    def coded(self, table: pa.Table) -> Table32:
        """The features of every line of a table that has these columns (rows × p)."""
        columns = {name: read_values(table[name]) for name in self.columns}
        lines = np.zeros((table.num_rows, len(self.features)), np.float32)
        for place, feature in enumerate(self.features):
            z = columns[feature.column].numbers(feature)
            lines[:, place] = np.where(np.isfinite(z), (z - feature.centre) * feature.scale, 0.0)
        return lines


def learn_coding(table: pa.Table, id_column: str = "") -> tuple[FeatureCoding, list[str]]:
    """The coding of all columns but the ids.

    The notes are on columns that are left out or have missing values.
    """
    by_column: list[list[Feature]] = []
    notes: list[str] = []
    for name in table.column_names:
        if name == id_column:
            continue
        kind = table[name].type
        values = read_values(table[name]) if can_be_feature(kind) else None
        features = [] if values is None or values.size > MOST_VALUES else values.features(name)
        if values is None or not features:
            notes.append(f"{name} is left out: {why_left_out(kind, values)}")
            continue
        if values.gaps:
            notes.append(f"{name}: {values.gaps}")
        by_column.append(features)
    shared: list[Feature] = []
    for features in by_column:
        share = np.sqrt(len(features) * len(by_column))
        shared += [replace(feature, scale=feature.scale / share) for feature in features]
    return FeatureCoding(tuple(shared)), notes


def can_be_feature(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    is_number = (
        pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_decimal(inner)
    )
    return is_text(inner) or is_number or pa.types.is_boolean(inner)


def why_left_out(kind: pa.DataType, values: Strings | Numbers | None) -> str:
    if values is None:
        cure = "take numbers, booleans, strings or arrays of them"
        return f"a column of type {kind} cannot be a feature; {cure}"
    if values.size > MOST_VALUES:
        return f"it has {values.size:,} {values.parts}, and at most {MOST_VALUES:,} are used"
    return "it has only one value" if values.present.any() else "all its values are missing"


def warn_of_unknown_values(coding: FeatureCoding, table: pa.Table, what: str) -> None:
    """Log the values of new lines that the coding cannot use.

    They are null, not finite, or strings that were not in the fit.
    """
    for name in coding.columns:
        values = read_values(table[name])
        if values.gaps:
            log.warning("%s: %s: %s", what, name, values.gaps)
        known = {feature.value for feature in coding.features if feature.column == name}
        if isinstance(values, Numbers) or is_list(table[name].type):
            continue
        unseen = {code: value for value, code in values.codes.items() if value not in known}
        n = int(np.sum(np.isin(values.code, list(unseen))))
        if n:
            words = "%s: %s: %d of %d values were not in the fit, such as %r"
            log.warning(words, what, name, n, table.num_rows, next(iter(unseen.values())))


# ---- the values of a column --------------------------------------------------------------------


@dataclass(frozen=True)
class Strings:
    """A column of strings, or of arrays of strings."""

    present: Mask  # lines that are not null
    codes: dict[str, int]  # string ─► code
    code: Indices  # of each string that is not null, flattened
    line: Indices  # of each of them
    parts = "different values"

    @property
    def size(self) -> int:
        return len(self.codes)

    @property
    def gaps(self) -> str:
        return gaps_in_words(self.present)

    def numbers(self, feature: Feature) -> DoubleArray:
        """1 for the lines with the string of the feature, 0 for others, nan for missing ones."""
        z = np.where(self.present, 0.0, np.nan)
        z[self.line[self.code == self.codes.get(str(feature.value), -1)]] = 1.0
        return z

    def features(self, name: str) -> list[Feature]:
        plain = [Feature(name, value, None, 0.0, 1.0) for value in sorted(self.codes)]
        return standardise(self, plain)


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, or of arrays of numbers."""

    present: Mask  # lines that are not null
    elements: DoubleArray  # lines × elements; nan where they are missing
    is_list: bool
    parts = "elements"

    @property
    def size(self) -> int:
        return self.elements.shape[1]

    @property
    def gaps(self) -> str:
        return gaps_in_words(np.all(np.isfinite(self.elements), axis=1))

    def numbers(self, feature: Feature) -> DoubleArray:
        place = feature.element or 0
        if place >= self.size:
            return np.full(len(self.elements), np.nan)
        return self.elements[:, place]

    def features(self, name: str) -> list[Feature]:
        places = range(self.size) if self.is_list else [None]
        return standardise(self, [Feature(name, None, place, 0.0, 1.0) for place in places])


def read_values(column: pa.ChunkedArray | pa.Array) -> Strings | Numbers:
    column = one_array(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    present = is_valid(column)
    flat = column
    lines = np.arange(len(column))
    if is_list(column.type):
        flat = pc.list_flatten(column)
        lines = pc.list_parent_indices(column).to_numpy().astype(np.int64)
    if is_text(flat.type):
        encoded = pc.dictionary_encode(flat.drop_null())
        codes = {value: code for code, value in enumerate(encoded.dictionary.to_pylist())}
        return Strings(
            present, codes, encoded.indices.to_numpy().astype(np.int64), lines[is_valid(flat)]
        )
    lengths = np.bincount(lines, minlength=len(column))
    elements = np.full((len(column), int(lengths.max(initial=0))), np.nan)
    first = np.cumsum(lengths) - lengths
    elements[lines, np.arange(len(lines)) - first[lines]] = as_doubles(flat)
    return Numbers(present, elements, is_list(column.type))


def standardise(values: Strings | Numbers, plain: list[Feature]) -> list[Feature]:
    """The features that vary, before the division by √columns."""
    features = []
    for feature in plain:
        z = values.numbers(feature)
        z = z[np.isfinite(z)]
        if len(z) and z.std() > LEAST_STD * max(1.0, float(np.abs(z).max())):
            features.append(replace(feature, centre=float(z.mean()), scale=float(1.0 / z.std())))
    return features


def gaps_in_words(usable: Mask) -> str:
    """How many lines have no usable value; empty if all have one."""
    n = int(np.sum(~usable))
    if not n:
        return ""
    return f"{n:,} of {len(usable):,} values are null, NaN or infinite and count as the mean"


def is_valid(column: pa.Array) -> Mask:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_doubles(column: pa.Array) -> DoubleArray:
    """The column as float64, with nan for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    doubles = pc.fill_null(column.cast(pa.float64()), np.nan)
    return np.asarray(doubles.to_numpy(zero_copy_only=False), np.float64)


# ---- the features of a side --------------------------------------------------------------------


@dataclass(frozen=True)
class SideFeatures:
    """The side features of all rows of a side.

    Their coding is learnt from the rows with ratings.
    """

    table: pa.Table  # one line per row
    coding: FeatureCoding  # how columns become numbers
    coded: Table32  # one line of numbers per row

    @classmethod
    def over(cls, table: pa.Table, rated: Mask) -> SideFeatures:
        coding, _ = learn_coding(table.filter(pa.array(rated)))
        return cls(table, coding, coding.coded(table))

    @classmethod
    def of_rows(cls, given: ArrayLike | pa.Table, rated: Mask, name: str) -> SideFeatures:
        """The features of an array or a table with one line per row, which is checked."""
        if not isinstance(given, pa.Table):
            numbers = np.asarray(given, np.float64)
            if numbers.ndim != 2:
                raise ValueError(
                    f"{name} must have lines and columns, not the shape {numbers.shape}"
                )
            given = pa.table({str(place): column for place, column in enumerate(numbers.T)})
        if given.num_rows != len(rated):
            wanted = f"{len(rated):,} lines, one per row or column"
            raise ValueError(f"{name} must have {wanted}, not {given.num_rows:,}")
        return cls.over(given, rated)


SideTables = dict[Side, SideFeatures]  # of the sides that have any


def codings_of(features: SideTables) -> dict[Side, FeatureCoding]:
    return {side: known.coding for side, known in features.items()}


def coded_by_rated(features: SideTables, counts: Callable[[Side], Indices]) -> SideTables:
    """The same features, with codings that are learnt from the rows with ratings in a part of the
    ratings.
    """
    coded = {
        side: SideFeatures.over(known.table, counts(side) > 0) for side, known in features.items()
    }
    return {side: known for side, known in coded.items() if known.coding.features}
