"""Factor tables as Arrow tables, for executors and files; and side features by id.

One line of a factor table is one id with the posterior of its row, here with K = 2 factors and an intercept::

    "spread"        id | mean [x1, x2] | spread [s1, s2]                           | intercept b | intercept_spread s0
    "covariance"    id | mean [x1, x2] | covariance [v00, v10, v11, v20, v21, v22] | intercept b

The covariance is the lower triangle of V, row after row, over [b, x1, x2]: the intercept is first. Without intercepts
these columns are absent, and V is over the factors only. After a prior split there is one more column,
``certified_spread`` [s0, s1, s2]: the standard deviations of the certified draws. Their means are those of the model.
With implicit features there is also ``implicit`` [w1, w2, r1, r2]: the weight and the residual
(``core.implicit_features``). A checkpoint has ``directions`` besides, the other vectors [z, d, s, q].
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.hyper_posterior import HyperPosterior
from onebit_spark.core.id_index import IdIndex, one_array, wide
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.model_info import SIDE_OF, ModelInfo, Who
from onebit_spark.core.posterior import MODEL_VECTORS, DoubleArray, FloatArray, Kind, RowPosterior
from onebit_spark.core.side_features import FeatureCoding, SideFeatures, SideTables, Table32, learn_coding
from onebit_spark.errors import RequestError

log = logging.getLogger("onebit_spark")

CERTIFIED = "certified_spread"
IMPLICIT, DIRECTIONS = "implicit", "directions"


def factor_columns(kind: Kind, intercepts: bool, vectors: int = 0) -> dict[str, str]:
    """The columns of a factor table after ``id``, with their Spark types. Scores do not need ``implicit``."""
    columns = {"mean": "array<float>", kind: "array<float>"}
    if intercepts:
        columns["intercept"] = "float"
        if kind == "spread":
            columns["intercept_spread"] = "float"
    if vectors:
        columns[IMPLICIT] = "array<float>"
    return columns


def factor_table(ids: pa.Array, posterior: RowPosterior, drawn: RowPosterior | None = None) -> pa.Table:
    """The factor table of one side: ``ids[i]`` belongs to row i. ``drawn`` is the posterior of the certified draws."""
    first = int(posterior.has_intercept)
    spread = posterior.kind == "spread"
    columns = {
        "id": ids,
        "mean": _lists(posterior.mean),
        posterior.kind: _lists(posterior.scale[:, first:] if spread else posterior.scale),
    }
    if first:
        columns["intercept"] = pa.array(posterior.location[:, 0].astype(np.float32))
        if spread:
            columns["intercept_spread"] = pa.array(posterior.scale[:, 0].astype(np.float32))
    if posterior.implicit is not None:
        kept = MODEL_VECTORS * posterior.rank
        columns[IMPLICIT] = _lists(posterior.implicit[:, :kept])
        if posterior.vectors > MODEL_VECTORS:
            columns[DIRECTIONS] = _lists(posterior.implicit[:, kept:])
    if drawn is not None:
        columns[CERTIFIED] = _lists(drawn.std)
    return pa.table(columns)


def plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists of variable size: Spark accepts no others from a worker."""
    lists = pa.list_(pa.float32())
    fields = (each.with_type(lists) if pa.types.is_fixed_size_list(each.type) else each for each in table.schema)
    return table.cast(pa.schema(fields))


def read_factors(lines: pa.StructArray, prior: RowPosterior) -> RowPosterior:
    """The posterior of every line of a factor table (without ``id``). A null line gets the one row of ``prior``.

    It has as many vectors in ``implicit`` as ``prior``; those that the table lacks are 0.
    """
    known, present, location, scale = _read_locations(lines, prior)
    first = int(prior.has_intercept and prior.kind == "spread")
    scale[known, first:] = _rectangle(present.field(prior.kind), scale.shape[1] - first)
    if first:
        scale[known, 0] = present.field("intercept_spread").to_numpy(zero_copy_only=False)
    implicit = None
    if prior.implicit is not None:
        kept = MODEL_VECTORS * prior.rank
        implicit = np.zeros((len(lines), prior.implicit.shape[1]), prior.implicit.dtype)
        implicit[known, :kept] = _rectangle(present.field(IMPLICIT), kept)
        if prior.vectors > MODEL_VECTORS and DIRECTIONS in [field.name for field in lines.type]:
            implicit[known, kept:] = _rectangle(present.field(DIRECTIONS), implicit.shape[1] - kept)
    return RowPosterior(location, scale, prior.kind, prior.has_intercept, implicit)


def align_factors(factors: pa.Table, ids: pa.Array, prior: RowPosterior, precision: str) -> RowPosterior:
    """The posterior of ``ids`` from a factor table in any order. Ids that it lacks get the one row of ``prior``."""
    known = factors["id"].type
    if wide(known) != wide(ids.type) and not (pa.types.is_integer(known) and pa.types.is_integer(ids.type)):
        raise RequestError(f"the initial model's ids are of type {known}, those of the ratings {ids.type}")
    places = IdIndex(factors["id"]).find(ids)
    lines = one_array(factors.drop_columns("id").to_struct_array())
    return read_factors(lines.take(pa.array(places, mask=places < 0)), prior).astype(precision)


def read_certified(lines: pa.StructArray, prior: RowPosterior) -> RowPosterior:
    """The posterior of the certified draws after a prior split. ``prior`` has independent coordinates."""
    known, present, location, scale = _read_locations(lines, prior)
    scale[known] = _rectangle(present.field(CERTIFIED), prior.dimension)
    return RowPosterior(location, scale, "spread", prior.has_intercept)


def _read_locations(
    lines: pa.StructArray, prior: RowPosterior
) -> tuple[NDArray[np.bool_], pa.StructArray, FloatArray, FloatArray]:
    """Which lines are not null, these lines, the means of all, and scales that are still those of ``prior``."""
    known, present = lines.is_valid().to_numpy(zero_copy_only=False), lines.drop_null()
    first = int(prior.has_intercept)
    location, scale = np.repeat(prior.location, len(lines), axis=0), np.repeat(prior.scale, len(lines), axis=0)
    location[known, first:] = _rectangle(present.field("mean"), prior.dimension - first)
    if first:
        location[known, 0] = present.field("intercept").to_numpy(zero_copy_only=False)
    return known, present, location, scale


def prior_row(
    scales: HyperPosterior, side: Side, kind: Kind, intercepts: bool, vectors: int = 0, precision: str = "float32"
) -> RowPosterior:
    """The prior of an id that was never rated, as a posterior of one row (docs/MATH.md, §8.2).

    ``vectors`` is their number in ``implicit``.
    """
    prior = scales.unseen(side)
    mean = prior.mean.astype(precision)
    row = RowPosterior.isotropic(mean, 1.0 / np.sqrt(prior.precision[0]), kind, intercepts)
    return row.with_implicit(vectors) if vectors else row


def newcomer_rows(row: RowPosterior, known: DoubleArray) -> RowPosterior:
    """Ids without ratings whose features explain the means ``known`` (rows × D), beside those of ``row``."""
    rows = row.take(np.zeros(len(known), np.int64))
    rows.location[:] += known
    return rows


def _lists(table: FloatArray) -> pa.FixedSizeListArray:
    values = np.ascontiguousarray(table, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _rectangle(lists: pa.ListArray, width: int) -> FloatArray:
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), width)


# ---- side features by id ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IdLines:
    """One line of numbers per id, such as side features or the prior means that they explain."""

    ids: pa.Array  # different ids
    lines: NDArray[Any]  # ``lines[i]`` belongs to ``ids[i]``

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, ids: pa.Array) -> NDArray[Any]:
        """The lines of any ids; 0 for ids that have none."""
        places = IdIndex(self.ids).find(ids)
        lines = np.zeros((len(ids), self.lines.shape[1]), self.lines.dtype)
        lines[places >= 0] = self.lines[places[places >= 0]]
        return lines


def coding_of(info: ModelInfo, who: Who) -> FeatureCoding:
    """The coding of a model's user or item features."""
    learned = (info.side_features or {}).get(who)
    if learned is None:
        raise RequestError(f"the model was fitted without {who} features")
    return FeatureCoding.from_list(learned["coding"])


def feature_means(info: ModelInfo, who: Who, coded: Table32) -> NDArray[np.float64]:
    """Wᵀf of coded lines (rows × D)."""
    return np.asarray(coded @ info.scales.features[SIDE_OF[who]])


def feature_effects(info: ModelInfo, who: Who) -> list[tuple[str, float, float, list[float]]]:
    """The name of each feature, and its effect on a mean score, on the intercept and on the factors.

    The effect is that of a value of a string column, or of one standard deviation of a number. The mean score is that
    with an unrated partner: W_b + W·E[R].
    """
    coding, side = coding_of(info, who), SIDE_OF[who]
    intercepts, rank = info.config.intercepts, info.config.factors
    partner = info.scales.unseen(OTHER[side]).mean[0, -rank:]
    per_column = {name: sum(f.column == name for f in coding.features) for name in coding.columns}
    effects = []
    for feature, weights in zip(coding.features, info.scales.features[side], strict=True):
        share = (per_column[feature.column] * len(per_column)) ** -0.5
        size = feature.scale if feature.value is not None else share
        effect = size * weights
        own = float(effect[0]) if intercepts else 0.0
        effects.append((feature.name, own + float(effect[-rank:] @ partner), own, effect[-rank:].tolist()))
    return effects


@dataclass(frozen=True)
class FitFeatures:
    """The side features of the users, or of the items, of a fit."""

    rated: SideFeatures  # of the ids with ratings; null for an id without features
    unrated_ids: pa.Array  # ids with features and without ratings
    unrated: pa.Table  # one line for each of them
    notes: list[str]  # on columns that are left out, and on missing values

    @classmethod
    def of(cls, table: pa.Table, column: str, ids: pa.Array, whose: str) -> FitFeatures:
        """From a checked table of features and the ids with ratings."""
        known = one_array(table[column]).cast(ids.type)
        places = IdIndex(known).find(ids)
        rated = table.take(pa.array(places[places >= 0]))
        if not rated.num_rows:
            raise RequestError(
                f"{whose} features: none of the {table.num_rows:,} ids has a rating: are they other ids?"
            )
        coding, notes = learn_coding(rated, column)
        if not coding.features:
            raise RequestError(f"{whose} features: no column is left: {'; '.join(notes) or 'there are only ids'}")
        aligned = table.drop_columns([column]).take(pa.array(places, mask=places < 0))
        without = len(ids) - rated.num_rows
        if without:
            notes = [*notes, f"{without:,} of {len(ids):,} ids with ratings have no features"]
        unrated = np.ones(table.num_rows, bool)
        unrated[places[places >= 0]] = False
        mask = pa.array(unrated)
        features = SideFeatures(aligned, coding, coding.coded(aligned))
        return cls(features, known.filter(mask), table.filter(mask), [f"{whose} features: {note}" for note in notes])

    def unrated_lines(
        self, row: RowPosterior, coding: FeatureCoding, weights: NDArray[np.float64], narrowing: float | None
    ) -> pa.Table | None:
        """The factor table of the ids without ratings, or None; ``row`` is the prior of an id without ratings."""
        if not len(self.unrated_ids):
            return None
        rows = newcomer_rows(row, coding.coded(self.unrated) @ weights)
        drawn = None
        if narrowing is not None:
            spread = (rows.std * narrowing).astype(rows.location.dtype)
            drawn = RowPosterior(rows.location, spread, "spread", rows.has_intercept)
        return factor_table(self.unrated_ids, rows, drawn)


def digest(table: pa.Table, column: str) -> int:
    """A checksum of a table of features, which does not depend on the order of its lines."""
    ordered = table.sort_by(column).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema.remove_metadata()) as stream:
        stream.write_table(ordered.replace_schema_metadata(None))
    return zlib.crc32(sink.getvalue())


def give_features(
    engine: SideTables, tables: Mapping[Who, pa.Table], columns: Mapping[Who, str], ids: Mapping[Side, pa.Array]
) -> dict[Side, FitFeatures]:
    """Give the side features to an engine, whose ``ids`` have ratings. Columns that are left out are logged."""
    given: dict[Side, FitFeatures] = {}
    for who, table in tables.items():
        side = SIDE_OF[who]
        given[side] = FitFeatures.of(table, columns[who], ids[side], who)
        engine[side] = given[side].rated
        for note in given[side].notes:
            log.info(note)
    return given
