"""Params that the estimator and its model share."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from pyspark.ml.param import Params

from onebit_spark.ml.param_types import optional_number, text
from onebit_spark.predictor.asked_model import COLD_START

S = TypeVar("S", bound="AnswerParams")


class PredictionParams(Params):
    """The column names that the estimator and its model share."""

    userCol, getUserCol, setUserCol = text("userCol", "column of the user ids")
    itemCol, getItemCol, setItemCol = text("itemCol", "column of the item ids")
    scoreCol, getScoreCol, setScoreCol = text(
        "scoreCol", "output column of the score E[L]·E[R] (+ intercepts); empty: omitted"
    )
    stdCol, getStdCol, setStdCol = text(
        "stdCol", "output column of the score's spread in an approximate posterior, no error bar; empty: omitted"
    )
    probabilityCol, getProbabilityCol, setProbabilityCol = text(
        "probabilityCol", "output column of the probability of a positive label; empty: omitted"
    )
    predictionCol, getPredictionCol, setPredictionCol = text(
        "predictionCol", "output column of the predicted label, as a double; empty: omitted"
    )
    rawPredictionCol, getRawPredictionCol, setRawPredictionCol = text(
        "rawPredictionCol", "output column of the score, for evaluators; empty: omitted"
    )
    coldStartStrategy, getColdStartStrategy, setColdStartStrategy = text(
        "coldStartStrategy", "pairs with an unknown id: prior (predict from the prior), drop (leave out), nan"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            userCol="user", itemCol="item", scoreCol="score", stdCol="std", probabilityCol="probability",
            predictionCol="prediction", rawPredictionCol="rawPrediction", coldStartStrategy="prior",
        )  # fmt: skip

    def _set_given(self, **params: Any) -> Self:
        """Set Params by name; None leaves one as it is."""
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def coldStartProblems(self) -> list[str]:
        """The problem with ``coldStartStrategy``, in words; an empty list if there is none."""
        value = self.getColdStartStrategy()
        return (
            [] if value in COLD_START else [f"coldStartStrategy must be one of {', '.join(COLD_START)}, not {value!r}"]
        )


class AnswerParams(PredictionParams):
    """Params of a model with selective certificates."""

    answeredCol, getAnsweredCol, setAnsweredCol = text(
        "answeredCol",
        "output column: whether the model answers the pair, with a certified error rate; empty: omitted",
    )
    maxError, getMaxError, setMaxError = optional_number(
        "maxError", "the certified error rate of answeredCol; unset: the first that was requested"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(answeredCol="answered")


PLAIN_NAMES = {
    "scoreCol": "score", "stdCol": "std", "probabilityCol": "probability", "predictionCol": "prediction",
    "rawPredictionCol": "", "answeredCol": "", "coldStartStrategy": "prior",
}  # fmt: skip


def plainly_named(model: S, **names: str) -> S:
    """A copy that predicts all pairs and has the default output columns, or ``names``, instead of its own Params."""
    return model.copy({model.getParam(name): value for name, value in {**PLAIN_NAMES, **names}.items()})
