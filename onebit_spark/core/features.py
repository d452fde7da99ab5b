"""Features of rows: the set of partners that a row has rated, and tables that describe the rows.

**Implicit features** (docs/MATH.md, §13). Every row and every column has vectors of length K, side by side in
``RowPosterior.implicit`` as [w r z d s q]. Three of them concern the prior means of the rows that rate it, three its
own prior mean p_i:

    w    its coefficient                             r    its residual |Ω_i|^{−½}(E L_i − p_i)
    z    the preconditioned gradient                 s    |Ω_i|^{−½} times the change of p_i for a step along z
    d    the last step of w                          q    the same for d

A model keeps [w r], and a rating reads [w r z d] of its partner. A half step sums these over the partners of each row,
so implicit features need no pass of their own. ``CoefStep`` is the best step in the span of z and d.

**Side features** (§15) are numbers f_i (``FeatureCoding``), which add Wᵀf_i to the prior mean of a row. A half step
sums Σ f_i d_iᵀ, where d_i is the distance of E x_i from its prior mean, and ``FeatureRidge`` moves W.
"""
# mypy: disallow-untyped-defs=False

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

from onebit_spark.compiled import jit
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses.base import Side
from onebit_spark.core.losses.row_sums import CHUNK, add_weighted_rows
from onebit_spark.core.posterior import (
    PLACE_D,
    PLACE_Q,
    PLACE_R,
    PLACE_S,
    PLACE_W,
    PLACE_Z,
    SENT_VECTORS,
    FloatArray,
    Matrix,
    RowMap,
    RowPosterior,
)
from onebit_spark.data.user_tables import one_array

RIDGE = 5.0  # ρ of implicit features; values from 3 to 10 hardly differ
FEATURE_RIDGE = 5.0  # ρ of side features


def gram_matrix(lines: NDArray[np.floating]) -> NDArray[np.float64]:
    """Σ_i x_i x_iᵀ in double precision, in one thread.

    Ranges of rows are processed in parallel. BLAS would start threads of its own for larger products: with two cores an
    iteration over 2·10⁷ ratings took 1.6 times as long.
    """
    total = _lower_triangle(np.ascontiguousarray(lines))
    return total + np.tril(total, -1).T


@jit
def _lower_triangle(lines):
    """The triangle of XᵀX, four lines at a time: one read and write of a sum for four products."""
    width = lines.shape[1]
    total = np.zeros((width, width))
    fours = len(lines) - len(lines) % 4
    for i in range(0, fours, 4):
        a, b, c, d = lines[i], lines[i + 1], lines[i + 2], lines[i + 3]
        for j in range(width):
            p, q, r, s = np.float64(a[j]), np.float64(b[j]), np.float64(c[j]), np.float64(d[j])
            for k in range(j + 1):
                total[j, k] += p * a[k] + q * b[k] + r * c[k] + s * d[k]
    for i in range(fours, len(lines)):
        for j in range(width):
            p = np.float64(lines[i, j])
            for k in range(j + 1):
                total[j, k] += p * lines[i, k]
    return total


def sent_vectors(partners: RowPosterior) -> FloatArray:
    """[w r z d] of every partner, for ``add_implicit_sums``."""
    assert partners.features is not None
    return np.ascontiguousarray(partners.features.sent)


def add_implicit_sums(
    block: RatingBlock, lo: int, hi: int, partners: FloatArray, own: FloatArray, means: NDArray[np.float64]
) -> None:
    """Write z, s and q of the rows lo … hi−1 to ``own``, their ``implicit``, and add their p_i to ``means`` (m × K).

    ``partners`` are the [w r z d] of the block's columns.
    """
    _add_implicit_sums(block.row_pointers, block.codes, lo, hi, partners, own, RIDGE, means)


def leave_residuals(block: RatingBlock, lo: int, hi: int, rows: RowPosterior, means: NDArray[np.float64]) -> None:
    """Write r_i of the updated rows lo … hi−1, whose prior means are ``means`` (m × D)."""
    assert rows.features is not None
    rank = rows.rank
    counts = np.maximum(block.distinct_counts[lo:hi], 1)
    distance = rows.location[lo:hi, -rank:] - means[lo:hi, -rank:]
    rows.features.r[lo:hi] = distance / np.sqrt(counts)[:, None]


def prior_means(block: RatingBlock, partners: RowPosterior) -> NDArray[np.float64]:
    assert partners.features is not None
    means = np.zeros((block.n_rows, partners.rank))
    weights = np.ascontiguousarray(partners.features.w)
    _add_means(block.row_pointers, block.codes, weights, means)
    return means


def newcomer_means(
    block: RatingBlock, partners: RowPosterior, centre: NDArray[np.float64], typical: float
) -> NDArray[np.float64]:
    """p_i of new rows, whose ratings are treated as the first of a ``typical`` number n̄ (docs/MATH.md, §13).

    ``centre`` is p̄, the mean of p over all ratings, which the n̄ − |Ω_i| further ratings are expected to have.
    """
    means, counts = prior_means(block, partners), block.distinct_counts[:, None]
    begun = means * np.sqrt(counts / typical) + (1.0 - counts / typical) * centre
    return np.where(counts < typical, begun, means)


def coef_gram(posterior: RowPosterior) -> NDArray[np.float64]:
    """The Gram matrix of [w z d] (3K × 3K); 0 × 0 without implicit features."""
    features = posterior.features
    if features is None:
        return np.zeros((0, 0))
    return gram_matrix(np.hstack([features.w, features.z, features.d], dtype=np.float64))


@jit
def _partner_sums(pointers, codes, i, partners, is_first, part, sums):
    """The sum of the partners' lines over Ω_i. Returns |Ω_i|."""
    sums[:] = 0.0
    count = 0.0
    for lo in range(pointers[i], pointers[i + 1], CHUNK):
        hi = min(lo + CHUNK, pointers[i + 1])
        for l in range(lo, hi):  # a column that is rated twice counts once, and its ratings are neighbours
            is_first[l - lo] = l == pointers[i] or codes[l] >> 1 != codes[l - 1] >> 1
            count += is_first[l - lo]
        add_weighted_rows(partners, codes, lo, hi, 0, is_first, part, sums, True)
    return count


@jit
def _add_implicit_sums(pointers, codes, first, last, partners, own, ridge, means):
    size = means.shape[1]
    w, r, z, d = PLACE_W * size, PLACE_R * size, PLACE_Z * size, PLACE_D * size
    s, q = PLACE_S * size, PLACE_Q * size
    sums = np.empty(SENT_VECTORS * size)
    part = np.empty(SENT_VECTORS * size, partners.dtype)
    is_first = np.empty(CHUNK, partners.dtype)
    for i in range(first, last):
        if pointers[i] == pointers[i + 1]:
            continue
        count = _partner_sums(pointers, codes, i, partners, is_first, part, sums)
        share = 1.0 / np.sqrt(count)
        for k in range(size):
            means[i, k] += share * sums[w + k]
            own[i, z + k] = (sums[r + k] - ridge * own[i, w + k]) / (count + ridge)
            own[i, s + k] = sums[z + k] / count
            own[i, q + k] = sums[d + k] / count


@jit
def _add_means(pointers, codes, weights, means):
    sums, is_first = np.empty(means.shape[1]), np.empty(CHUNK, weights.dtype)
    part = np.empty(means.shape[1], weights.dtype)
    for i in range(len(means)):
        if pointers[i] == pointers[i + 1]:
            continue
        share = 1.0 / np.sqrt(_partner_sums(pointers, codes, i, weights, is_first, part, sums))
        for k in range(len(sums)):
            means[i, k] += share * sums[k]


LEAST_PART = 1e-4  # of the largest eigenvalue; directions below it depend on others, up to float32 rounding
LEAST_SIZE = 1e-4  # of the longest column of Z, or of D; shorter columns are rounding errors


@dataclass(frozen=True)
class ImplicitMove:
    """x ─► x + yC in every line of ``implicit``, where x and y = [y₁ y₂] are some of its vectors, and y₂ ─► yC.

    y₂ is not used on the rating side.
    """

    matrix: Matrix  # ±C, C = [A; B], 2K × K
    value: int  # the position of x among the vectors
    directions: int  # the position of y₁; y₂ is the next one

    def apply_to(self, posterior: RowPosterior, lo: int, hi: int) -> None:
        """Map rows lo … hi−1 in place. The result of a row depends bit for bit on that row alone."""
        assert posterior.implicit is not None
        _move_implicit(posterior.implicit, self.matrix, self.value, self.directions, lo, hi)


@dataclass(frozen=True)
class CoefStep:
    matrix: Matrix  # [A; B], 2K × K

    @classmethod
    def best(cls, directions: Matrix, residuals: Matrix, weights: Matrix) -> CoefStep:
        """From YᵀY (2K × 2K), YᵀR (2K × K) and the Gram matrix of [W Z D] (3K × 3K)."""
        rank = residuals.shape[1]
        system = directions + RIDGE * weights[rank:, rank:]
        right = residuals - RIDGE * weights[rank:, :rank]
        size = np.sqrt(np.maximum(np.diag(system), 0.0))
        longest = np.repeat([part.max() for part in np.split(size, 2)], rank)
        unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > LEAST_SIZE * longest)
        system = unit[:, None] * system * unit
        if not np.isfinite(system).all():  # the solver reports the objective, which is not finite either
            return cls(np.zeros_like(right))
        values, vectors = np.linalg.eigh(system)
        # λ³/(λ⁴ + ε⁴), a smooth version of 1/λ above ε and 0 below it. It is at most 1/λ, so no step rises.
        values = np.maximum(values, 0.0)
        least = LEAST_PART * max(values.max(), np.finfo(np.float64).tiny)
        shares = values / least
        inverse = (vectors * (shares**3 / (shares**4 + 1.0) / least)) @ vectors.T
        return cls(unit[:, None] * (inverse @ (unit[:, None] * right)))

    @property
    def of_coef(self) -> ImplicitMove:
        """The change of a line on the rated side."""
        return ImplicitMove(self.matrix, PLACE_W, PLACE_Z)

    @property
    def of_residuals(self) -> ImplicitMove:
        """The change of a line on the rating side."""
        return ImplicitMove(-self.matrix, PLACE_R, PLACE_S)

    def before(self, by: RowMap) -> CoefStep:
        """The same step for lines to which the map x ─► xT has not been applied yet: TAT⁻¹ and TBT⁻¹."""
        rank = self.matrix.shape[1]
        turn = by.matrix[-rank:, -rank:]
        mapped = np.concatenate([turn @ part for part in np.split(self.matrix, 2)])
        return CoefStep(np.ascontiguousarray(np.linalg.solve(turn.T, mapped.T).T, np.float64))

    def moved(self, weights: Matrix) -> Matrix:
        """The Gram matrix of [W Z D] after the step."""
        rank = self.matrix.shape[1]
        w = slice(0, rank)
        d = slice(2 * rank, 3 * rank)
        from_directions = slice(rank, 3 * rank)  # X = [Z D]
        change = np.zeros((3 * rank, 3 * rank))  # [W Z D] times this is [W + X C, Z, X C]
        change[: 2 * rank, : 2 * rank] = np.eye(2 * rank)
        change[from_directions, w] = self.matrix
        change[from_directions, d] = self.matrix
        return np.asarray(change.T @ weights @ change)


@jit
def _move_implicit(implicit, matrix, value, directions, first, last):
    size = matrix.shape[1]
    out = np.empty(size)
    for i in range(first, last):
        line = implicit[i]
        x = line[value * size : (value + 1) * size]
        y = line[directions * size : (directions + 2) * size]
        last_step = y[size:]
        out[:] = 0.0
        for j in range(2 * size):
            part = np.float64(y[j])
            for k in range(size):
                out[k] += part * matrix[j, k]
        for k in range(size):
            x[k] += out[k]
            last_step[k] = out[k]


@dataclass(frozen=True)
class FeatureRidge:
    factorised: tuple[Matrix, bool]  # Cholesky factor of G + ρI, in the form of ``scipy.linalg.cho_factor``

    @classmethod
    def of(cls, gram: Matrix) -> FeatureRidge:
        return cls(scipy.linalg.cho_factor(gram + FEATURE_RIDGE * np.eye(len(gram))))

    def moved(self, weights: Matrix, cross: Matrix, relaxation: float) -> Matrix:
        """The weights (p × D) after a step; ``cross`` is Σ f_i d_iᵀ."""
        step = scipy.linalg.cho_solve(self.factorised, cross - FEATURE_RIDGE * weights)
        return np.asarray(weights + relaxation * step)


def rated_gram(features: FloatArray, counts: NDArray[np.int64]) -> Matrix:
    rated = features[counts > 0].astype(np.float64)
    return np.asarray(rated.T @ rated)


def of_known_size(weights: Mapping[Side, Matrix], grams: Mapping[Side, Matrix], dimension: int) -> dict[Side, Matrix]:
    """W of every side with features: the given one if its shape is right, else 0."""
    sized: dict[Side, Matrix] = {}
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
        if given.num_rows != len(rated):
            raise ValueError(f"{name} must have {len(rated):,} lines, one per row or column, not {given.num_rows:,}")
        return cls.over(given, rated)


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
        if gaps := raw.gaps:
            log.warning("%s: %s", what, f"{name}: {gaps}")
        unseen = [] if is_list(column.type) else [code for value, code in raw.values.items() if value not in known]
        if n := int(np.sum(np.isin(raw.codes, unseen))):
            example = next(value for value, code in raw.values.items() if code == unseen[0])
            log.warning("%s: %s: %d of %d values were not in the fit, such as %r", what, name, n, len(column), example)


@dataclass(frozen=True)
class _Raw:
    """The decoded values of a column: numbers, with nan where they are missing, or strings."""

    numeric: NDArray[np.float64] | None  # lines × elements
    codes: NDArray[np.int64]  # of the strings, flattened
    lines: NDArray[np.int64]  # the line of each string
    values: dict[str, int]  # string ─► code
    present: NDArray[np.bool_]  # lines that are not null
    is_list: bool

    @classmethod
    def of(cls, column: pa.Array) -> _Raw:
        kind, lines = column.type, np.arange(len(column))
        if pa.types.is_dictionary(kind):
            return cls.of(column.dictionary_decode())
        present, flat = column.is_valid().to_numpy(zero_copy_only=False), column
        if is_list(kind):
            lines, flat = pc.list_parent_indices(column).to_numpy().astype(np.int64), pc.list_flatten(column)
        if is_text(flat.type):
            coded = pc.dictionary_encode(flat.drop_null())
            values = {value: code for code, value in enumerate(coded.dictionary.to_pylist())}
            valid = flat.is_valid().to_numpy(zero_copy_only=False)
            codes = coded.indices.to_numpy().astype(np.int64)
            return cls(None, codes, lines[valid], values, present, is_list(kind))
        lengths = np.bincount(lines, minlength=len(column))
        numeric = np.full((len(column), int(lengths.max(initial=0))), np.nan)  # nan where a list is shorter
        first = np.cumsum(lengths) - lengths
        numeric[lines, np.arange(len(lines)) - first[lines]] = as_doubles(flat)
        nothing = np.zeros(0, np.int64)
        return cls(numeric, nothing, nothing, {}, present, is_list(kind))

    @property
    def size(self) -> int:
        """The number of different strings, or of elements."""
        return len(self.values) if self.numeric is None else self.numeric.shape[1]

    @property
    def gaps(self) -> str:
        """How many lines have no usable value, in words; empty if all have one."""
        usable = self.present if self.numeric is None else np.isfinite(self.numeric).all(axis=1)
        gaps, n = int(np.sum(~usable)), len(self.present)
        return f"{gaps:,} of {n:,} values are null, NaN or infinite and count as the mean" if gaps else ""

    def numbers(self, feature: Feature) -> NDArray[np.float64]:
        if self.numeric is not None:
            place = feature.element or 0
            return self.numeric[:, place] if place < self.numeric.shape[1] else np.full(len(self.numeric), np.nan)
        z = np.where(self.present, 0.0, np.nan)
        code = self.values.get(str(feature.value), -1)
        z[self.lines[self.codes == code]] = 1.0
        return z

    def learnt(self, name: str) -> list[Feature]:
        """The features of the column that vary, before the division by √columns."""
        if self.numeric is None:
            wanted = [Feature(name, value, None, 0.0, 1.0) for value in sorted(self.values)]
        else:
            wanted = [Feature(name, None, place if self.is_list else None, 0.0, 1.0) for place in range(self.size)]
        features = []
        for feature in wanted:
            z = self.numbers(feature)
            z = z[np.isfinite(z)]
            if len(z) and z.std() > 1e-9 * max(1.0, float(np.abs(z).max())):
                features.append(replace(feature, centre=float(z.mean()), scale=float(1.0 / z.std())))
        return features


def learn_coding(table: pa.Table, id_column: str) -> tuple[FeatureCoding, list[str]]:
    """The coding of all columns but the ids, and a note on each column that is left out or has missing values."""
    by_column: list[list[Feature]] = []
    notes: list[str] = []
    for name in table.column_names:
        if name == id_column:
            continue
        column = one_array(table[name])
        raw = _Raw.of(column) if _can_be_feature(column.type) else None
        features = [] if raw is None or raw.size > MOST_VALUES else raw.learnt(name)
        if not features:
            notes.append(f"{name} is left out: {_why_left_out(column.type, raw)}")
            continue
        if raw is not None and raw.gaps:
            notes.append(f"{name}: {raw.gaps}")
        by_column.append(features)
    shared = [
        replace(feature, scale=feature.scale / np.sqrt(len(features) * len(by_column)))
        for features in by_column
        for feature in features
    ]
    return FeatureCoding(tuple(shared)), notes


def _can_be_feature(kind: pa.DataType) -> bool:
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return is_text(inner) or any(is_kind(inner) for is_kind in numeric)


def _why_left_out(kind: pa.DataType, raw: _Raw | None) -> str:
    if raw is None:
        return f"a column of type {kind} cannot be a feature; take numbers, booleans, strings or arrays of them"
    if raw.size > MOST_VALUES:
        what = "different values" if raw.numeric is None else "elements"
        return f"it has {raw.size:,} {what}, and at most {MOST_VALUES:,} are used"
    return "it has only one value" if raw.present.any() else "all its values are missing"


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_doubles(column: pa.Array) -> NDArray[np.float64]:
    """The column as float64, with nan for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False), np.float64)
