"""Side features: what is known of a row besides its ratings, such as an age, a genre or a skill (docs/MATH.md, §15).

    x_i ~ N(m + Wᵀf_i + p_i, diag γ),     W_·k ~ N(0, (γ_k/ρ) I)

x_i are the D coordinates of row i, including the intercept. f_i are its p side features, coded as numbers
(``FeatureCoding``). m is the mean of the intercepts, and p_i is the part of the prior mean that implicit features
explain (``implicit_features``). Given the means, W solves a ridge regression in which γ_k cancels. With
G = Σ f_i f_iᵀ over the rows with ratings and d_i = E x_i − (m + Wᵀf_i + p_i),

    W ─► W + ω (G + ρI)⁻¹ (Σ f_i d_iᵀ − ρW),     0 < ω < 2

never raises the objective, and ω = 1 is the exact solution. Implicit features move first (``CoefStep``), and the d_i
are the distances after their step. A half step sums Σ f_i d_iᵀ (p × D numbers) along with its other statistics, and the
driver updates W, so that no further pass over the ratings is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from onebit_spark.core.id_index import one_array
from onebit_spark.core.losses.base import Side
from onebit_spark.core.posterior import FloatArray

Vector = NDArray[np.float64]

FEATURE_RIDGE = 5.0  # ρ


@dataclass(frozen=True)
class FeatureRidge:
    """The ridge regression of the means of a side on its side features."""

    factorised: tuple[Vector, bool]  # Cholesky factor of G + ρI, in the form of ``scipy.linalg.cho_factor``

    @classmethod
    def of(cls, gram: Vector) -> FeatureRidge:
        """From G (p × p)."""
        return cls(scipy.linalg.cho_factor(gram + FEATURE_RIDGE * np.eye(len(gram))))

    def moved(self, weights: Vector, cross: Vector, relaxation: float) -> Vector:
        """The weights (p × D) after a step; ``cross`` is Σ f_i d_iᵀ."""
        step = scipy.linalg.cho_solve(self.factorised, cross - FEATURE_RIDGE * weights)
        return np.asarray(weights + relaxation * step)


def rated_gram(features: FloatArray, counts: NDArray[np.int64]) -> Vector:
    """G = Σ f_i f_iᵀ over the rows with ratings."""
    rated = features[counts > 0].astype(np.float64)
    return np.asarray(rated.T @ rated)


def of_known_size(weights: Mapping[Side, Vector], grams: Mapping[Side, Vector], dimension: int) -> dict[Side, Vector]:
    """W of every side with features: the given one if its shape is right, else 0."""
    sized: dict[Side, Vector] = {}
    for side, gram in grams.items():
        shape = len(gram), dimension
        given = weights.get(side)
        sized[side] = given if given is not None and given.shape == shape else np.zeros(shape)
    return sized


@dataclass(frozen=True)
class SideFeatures:
    """The side features of all rows of a side. Their coding is learnt from the rows with ratings."""

    table: pa.Table  # one line per row
    coding: FeatureCoding  # how columns become numbers
    coded: Table32  # one line of numbers per row

    @classmethod
    def over(cls, table: pa.Table, rated: NDArray[np.bool_]) -> SideFeatures:
        """The features of a table with one line per row."""
        coding, _ = learn_coding(table.filter(pa.array(rated)), "")
        return cls(table, coding, coding.coded(table))

    @classmethod
    def of_rows(cls, given: ArrayLike | pa.Table, rated: NDArray[np.bool_], name: str) -> SideFeatures:
        """The features of an array or a table with one line per row, which is checked."""
        if not isinstance(given, pa.Table):
            numbers = np.asarray(given, np.float64)
            if numbers.ndim != 2:
                raise ValueError(f"{name} must have lines and columns, not the shape {numbers.shape}")
            given = pa.table({str(place): column for place, column in enumerate(numbers.T)})
        table = given
        if table.num_rows != len(rated):
            raise ValueError(f"{name} must have {len(rated):,} lines, one per row or column, not {table.num_rows:,}")
        return cls.over(table, rated)


SideTables = dict[Side, SideFeatures]  # of the sides that have any


def codings_of(features: SideTables) -> dict[Side, FeatureCoding]:
    return {side: known.coding for side, known in features.items()}


def coded_by_rated(features: SideTables, counts: Callable[[Side], NDArray[np.int64]]) -> SideTables:
    """The same features, with codings that are learnt from the rows with ratings in a part of the ratings."""
    coded = {side: SideFeatures.over(known.table, counts(side) > 0) for side, known in features.items()}
    return {side: known for side, known in coded.items() if known.coding.features}


# ---- coding of feature columns ---------------------------------------------------------------------------------------

log = logging.getLogger("onebit_spark")

MOST_VALUES = 1_000  # of different strings in a column, and of elements of an array

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
        """Such as ``age``, ``genre=Drama`` or ``embedding[3]``."""
        if self.value is not None:
            return f"{self.column}={self.value}"
        return self.column if self.element is None else f"{self.column}[{self.element}]"


@dataclass(frozen=True)
class FeatureCoding:
    """How the columns of a table of side features become numbers, one float32 per feature and id.

    A number or a boolean is one feature, a string one feature per value, an array of numbers one feature per element,
    and an array of strings one feature per value. A feature is (z − centre)·scale, where centre and std are the mean
    and the standard deviation over the ids of the table. The features of a column share the weight of one column::

        scale = 1 / (std · √(features of the column · columns)),     so ‖f_i‖² is about 1

    A missing or unknown value counts as the mean, 0.
    """

    features: tuple[Feature, ...]

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(feature) for feature in self.features]

    @classmethod
    def from_list(cls, entries: Iterable[Mapping[str, Any]]) -> FeatureCoding:
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


def warn_of_unknown_values(coding: FeatureCoding, table: pa.Table, what: str) -> None:
    """Log the values of new lines that the coding cannot use: null, not finite, or strings that were not in the fit."""
    for name in coding.columns:
        column = one_array(table[name])
        raw, known = _Raw.of(column), {feature.value for feature in coding.features if feature.column == name}
        usable = raw.present if raw.numeric is None else np.isfinite(raw.numeric).all(axis=1)
        if gaps := int(np.sum(~usable)):
            log.warning("%s: %s: %s", what, name, _unusable(gaps, len(column)))
        unseen = [] if is_list(column.type) else [code for value, code in raw.values.items() if value not in known]
        if n := int(np.sum(np.isin(raw.codes, unseen))):
            example = next(value for value, code in raw.values.items() if code == unseen[0])
            log.warning("%s: %s: %d of %d values were not in the fit, such as %r", what, name, n, len(column), example)


def _unusable(gaps: int, n: int) -> str:
    return f"{gaps:,} of {n:,} values are null, NaN or infinite and count as the mean"


@dataclass(frozen=True)
class _Raw:
    """The decoded values of a column. ``numbers`` gives those of a feature, with nan where they are missing."""

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
            lengths = np.bincount(lines, minlength=len(column)) if len(lines) else np.zeros(len(column), np.int64)
            numeric = np.full((len(column), int(lengths.max(initial=0))), np.nan)  # nan where a list is shorter
            first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            numeric[lines, np.arange(len(lines)) - first[lines]] = as_doubles(flat)
            return cls(numeric, nothing, nothing, {}, present)
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
    """The coding of all columns but the ids, and a note on each column that is left out or has missing values."""
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
            notes.append(f"{name}: {_unusable(gaps, len(column))}")
        by_column.append(features)
    shared = [
        replace(feature, scale=feature.scale / np.sqrt(len(features) * len(by_column)))
        for features in by_column
        for feature in features
    ]
    return FeatureCoding(tuple(shared)), notes


def _learnt(name: str, column: pa.Array) -> tuple[list[Feature], int]:
    """The features of one column, before the division by √columns, and the number of missing values."""
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
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if is_text(inner) or any(is_kind(inner) for is_kind in numeric):
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


def as_doubles(column: pa.Array) -> NDArray[np.float64]:
    """The column as float64, with nan for null."""
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
