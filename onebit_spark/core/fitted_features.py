"""What a model has learnt from side features, and how it codes those of other ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onebit_spark.core.feature_coding import FeatureCoding, Table32
from onebit_spark.core.id_index import IdIndex
from onebit_spark.core.losses import OTHER, Side
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.errors import RequestError

Who = Literal["user", "item"]
SIDE_OF: dict[Who, Side] = {"user": "rows", "item": "cols"}
PARTNER: dict[Who, Who] = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class IdLines:
    """One line of numbers per id: the side features of some users, or the means that these explain."""

    ids: pa.Array  # different ids
    lines: NDArray[Any]  # ``lines[i]`` belongs to ``ids[i]``

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, ids: pa.Array) -> NDArray[Any]:
        """The lines of any ids, 0 for those that have none."""
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


def explained(info: ModelInfo, who: Who, coded: Table32) -> NDArray[np.float64]:
    """Wᵀf of coded lines (rows × D)."""
    return np.asarray(coded @ info.scales.features[SIDE_OF[who]])


def feature_effects(info: ModelInfo, who: Who) -> list[tuple[str, float, float, list[float]]]:
    """Of each feature: its name, its effect on a mean score, on the intercept, and on the factors.

    The effect is that of the value of a string, or of one standard deviation of a number. The mean score is that of a
    partner like an unrated one: W_b + W·E[R].
    """
    coding, side = coding_of(info, who), SIDE_OF[who]
    intercepts, rank = info.config.intercepts, info.config.factors
    partner = info.scales.unseen(OTHER[side], intercepts).mean[0, -rank:]
    per_column = {name: sum(f.column == name for f in coding.features) for name in coding.columns}
    effects = []
    for feature, weights in zip(coding.features, info.scales.features[side], strict=True):
        share = (per_column[feature.column] * len(per_column)) ** -0.5
        size = feature.scale if feature.value is not None else share
        effect = size * weights
        own = float(effect[0]) if intercepts else 0.0
        effects.append((feature.name, own + float(effect[-rank:] @ partner), own, effect[-rank:].tolist()))
    return effects
