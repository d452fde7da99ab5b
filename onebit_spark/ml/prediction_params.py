"""Params that the estimator and its model share."""

from __future__ import annotations

from typing import TypeVar

from pyspark.ml.param import Params

from onebit_spark.ml.param_types import number, text
from onebit_spark.predictor.served_model import COLD_START

P = TypeVar("P", bound="PredictionParams")
S = TypeVar("S", bound="AnswerParams")


class PredictionParams(Params):
    """The column names that the estimator and its model share."""

    userCol = text("userCol", "column of the user ids")
    itemCol = text("itemCol", "column of the item ids")
    scoreCol = text("scoreCol", "output column of the score E[L]·E[R] (+ intercepts); empty: omitted")
    stdCol = text(
        "stdCol", "output column of the score's spread in an approximate posterior, no error bar; empty: omitted"
    )
    probabilityCol = text("probabilityCol", "output column of the probability of a positive label; empty: omitted")
    predictionCol = text("predictionCol", "output column of the predicted label, as a double; empty: omitted")
    rawPredictionCol = text("rawPredictionCol", "output column of the score, for evaluators; empty: omitted")
    coldStartStrategy = text(
        "coldStartStrategy", "pairs with an unknown id: prior (predict from the prior), drop (leave out), nan"
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            userCol="user", itemCol="item", scoreCol="score", stdCol="std", probabilityCol="probability",
            predictionCol="prediction", rawPredictionCol="rawPrediction", coldStartStrategy="prior",
        )  # fmt: skip

    def getUserCol(self) -> str:
        return self.getOrDefault(self.userCol)

    def getItemCol(self) -> str:
        return self.getOrDefault(self.itemCol)

    def getScoreCol(self) -> str:
        return self.getOrDefault(self.scoreCol)

    def getStdCol(self) -> str:
        return self.getOrDefault(self.stdCol)

    def getProbabilityCol(self) -> str:
        return self.getOrDefault(self.probabilityCol)

    def getPredictionCol(self) -> str:
        return self.getOrDefault(self.predictionCol)

    def getRawPredictionCol(self) -> str:
        return self.getOrDefault(self.rawPredictionCol)

    def getColdStartStrategy(self) -> str:
        return self.getOrDefault(self.coldStartStrategy)

    def setUserCol(self: P, value: str) -> P:
        return self._set(userCol=value)

    def setItemCol(self: P, value: str) -> P:
        return self._set(itemCol=value)

    def setScoreCol(self: P, value: str) -> P:
        return self._set(scoreCol=value)

    def setStdCol(self: P, value: str) -> P:
        return self._set(stdCol=value)

    def setProbabilityCol(self: P, value: str) -> P:
        return self._set(probabilityCol=value)

    def setPredictionCol(self: P, value: str) -> P:
        return self._set(predictionCol=value)

    def setRawPredictionCol(self: P, value: str) -> P:
        return self._set(rawPredictionCol=value)

    def setColdStartStrategy(self: P, value: str) -> P:
        return self._set(coldStartStrategy=value)

    def coldStartProblems(self) -> list[str]:
        """The problem with ``coldStartStrategy``, in words; an empty list if there is none."""
        value = self.getColdStartStrategy()
        return (
            [] if value in COLD_START else [f"coldStartStrategy must be one of {', '.join(COLD_START)}, not {value!r}"]
        )


class AnswerParams(PredictionParams):
    """Params of a model with selective certificates."""

    answeredCol = text(
        "answeredCol",
        "output column: whether the model answers the pair, with a certified error rate; empty: omitted",
    )
    maxError = number("maxError", "the certified error rate of answeredCol; unset: the first that was requested")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(answeredCol="answered")

    def getAnsweredCol(self) -> str:
        return self.getOrDefault(self.answeredCol)

    def getMaxError(self) -> float | None:
        return self.getOrDefault(self.maxError) if self.isDefined(self.maxError) else None

    def setAnsweredCol(self: S, value: str) -> S:
        return self._set(answeredCol=value)

    def setMaxError(self: S, value: float) -> S:
        return self._set(maxError=value)


PLAIN_NAMES = {
    "scoreCol": "score", "stdCol": "std", "probabilityCol": "probability", "predictionCol": "prediction",
    "rawPredictionCol": "", "answeredCol": "", "coldStartStrategy": "prior",
}  # fmt: skip


def plainly_named(model: S, **names: str) -> S:
    """A copy that predicts all pairs and has the default output columns, or ``names``, instead of its own Params."""
    return model.copy({model.getParam(name): value for name, value in {**PLAIN_NAMES, **names}.items()})
