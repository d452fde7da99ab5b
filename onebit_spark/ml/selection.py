"""On Spark: which pairs a model answers, and counts of ratings by confidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, ShortType

from onebit_spark.certificate.held_out import answering_threshold
from onebit_spark.core import prediction
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.prediction import EVERYTHING
from onebit_spark.input.columns import quoted
from onebit_spark.platform.arrow_stream import arrow_udf

RUNG = ShortType()


class Answering(Protocol):
    """What this module needs from a model."""

    info: ModelInfo
    certificate: dict[str, Any]

    def getMaxError(self) -> float | None:
        """The certified error rate that was selected."""


def confidence(model: Answering, score: Column, std: Column) -> Column:
    """|score|/√(c + std²) as in ``core.prediction``; c is the noise of the loss, also in a calibrated model."""
    root = F.sqrt(F.lit(prediction.score_noise(model.info.config.loss)) + std * std)
    return F.when(score == 0, 0.0).when(root == 0, float("inf")).otherwise(F.abs(score) / root)


def level(model: Answering) -> Callable[..., Column]:
    """A function from a confidence to the highest level of the model that answers it."""
    thresholds = model.info.confidence_thresholds or EVERYTHING

    def place(confidences: pa.Array) -> pa.Array:
        return pa.array(thresholds.level(confidences.to_numpy(zero_copy_only=False)))

    return arrow_udf(place, [DoubleType()], RUNG)


# ---- what is answered ------------------------------------------------------------------------------------------------


def chosen_threshold(model: Answering) -> float:
    """The confidence from which on the model answers. ∞ if the request could not be met."""
    return answering_threshold(model.certificate, model.getMaxError())


def answers(model: Answering, score: Column, std: Column) -> Column:
    """Whether a pair is confident enough to be answered."""
    threshold = chosen_threshold(model)
    return F.lit(False) if math.isinf(threshold) else confidence(model, score, std) >= threshold


# ---- what is counted -------------------------------------------------------------------------------------------------


def group_column(by: str) -> Column:
    return F.col(quoted(by)).cast("string")
