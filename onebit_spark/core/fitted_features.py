"""Side features by id: those of a fit (``FitFeatures``), and the prior means that a model predicts from them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.factor_tables import factor_table, newcomer_rows
from onebit_spark.core.id_index import IdIndex, one_array
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.side_features import FeatureCoding, SideFeatures, SideTables, Table32, learn_coding
from onebit_spark.errors import RequestError

Who = Literal["user", "item"]
SIDE_OF: dict[Who, Side] = {"user": "rows", "item": "cols"}
PARTNER: dict[Who, Who] = {"user": "item", "item": "user"}

log = logging.getLogger("onebit_spark")


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


# ---- features of a fit -----------------------------------------------------------------------------------------------


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
