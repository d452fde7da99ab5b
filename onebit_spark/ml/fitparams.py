"""The estimator's Params: what they mean, their defaults, and what may be wrong with them."""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark.ml.param import Param

from onebit_spark.certificate.certified import Terms
from onebit_spark.core.config import COVARIANCES, EXCHANGES, SOLVERS, FitConfig
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.spectral import STARTS
from onebit_spark.ml.paramkinds import flag, integer, number, text
from onebit_spark.ml.predictionparams import PredictionParams

F = TypeVar("F", bound="FitParams")

_DEFAULT, _TERMS = FitConfig(), Terms()

# Every default that a user can read off ``explainParams``; Params that are not here have none.
DEFAULTS: dict[str, Any] = {
    "labelCol": "label",
    "patience": 3,
    "rank": _DEFAULT.rank,
    "loss": _DEFAULT.loss,
    "prior": _DEFAULT.prior,
    "fitIntercept": _DEFAULT.intercepts,
    "solver": _DEFAULT.solver,
    "covariance": _DEFAULT.covariance,
    "start": _DEFAULT.start,
    "maxIter": _DEFAULT.max_iter,
    "tol": _DEFAULT.tol,
    "seed": _DEFAULT.seed,
    "delta": _TERMS.delta,
    "certificateGrid": _TERMS.grid,
    "exchange": "auto",
    "checkpointInterval": 10,
    "resume": False,
}


class FitParams(PredictionParams):
    """The Params of ``OneBitCompletion``. A getter of a Param that is unset and has no default returns None."""

    labelCol = text("labelCol", "column of the labels: ±1, 0/1, boolean, or a number with threshold")
    ratingCol = text("ratingCol", "ALS's name for labelCol; not together with it")
    threshold = number("threshold", "a label is positive strictly above this number")
    validationIndicatorCol = text(
        "validationIndicatorCol", "boolean column: true rows are not fitted but watched, and end a fit that gets worse"
    )
    patience = integer("patience", "iterations without a better validation loss that end the fit (≥ 1)")
    rank = integer("rank", "K, the most columns that the factors may have (≥ 1)")
    loss = text("loss", f"loss: {', '.join(LOSSES)}")
    prior = text("prior", f"prior of the scales γ: {', '.join(PRIORS)}")
    likelihoodWeight = number("likelihoodWeight", "κ = λ/n, the weight of one rating (> 0); unset: the loss's own")
    alpha = number("alpha", "shape α of the prior (> 0); unset: a tenth of the number of users and items")
    beta = number("beta", "β of the prior (> 0): a rate for gamma, a scale for inverse-gamma; unset: from alpha")
    fitIntercept = flag("fitIntercept", "whether users and items have intercepts")
    solver = text("solver", f"solver of the hinge's means: {', '.join(SOLVERS)}")
    covariance = text("covariance", f"covariance of a row under the logistic loss: {', '.join(COVARIANCES)}")
    start = text("start", f"start: {', '.join(STARTS)}")
    maxIter = integer("maxIter", "most iterations (≥ 1)")
    tol = number("tol", "stop when objective and scores change relatively by no more (≥ 0; 0 runs maxIter)")
    seed = integer("seed", "seed of the start (0 to 2^63 − 1)")
    numUserBlocks = integer("numUserBlocks", "blocks of users (≥ 1); unset: by ratings and cores")
    numItemBlocks = integer("numItemBlocks", "blocks of items (≥ 1); unset: by ratings and cores")
    exchange = text("exchange", f"how factors reach the blocks: {', '.join(EXCHANGES)}")
    workDir = text(
        "workDir",
        "folder that all executors can reach, for the files of exchange=shuffle; unset: checkpointDir, then the "
        "checkpoint folder of the SparkContext, then, on a single machine, a temporary one",
    )
    delta = number("delta", "δ: a certificate holds with probability 1 − δ (0 < δ < 1)")
    certificateGrid = integer("certificateGrid", "settings compared on these ratings, each certified at δ/grid (≥ 1)")
    certificatePriorSplit = number(
        "certificatePriorSplit", "share of the ratings that a prior is learnt from, to certify on the rest; unset: none"
    )
    checkpointDir = text(
        "checkpointDir", "folder for checkpoints, on a file system that outlives the driver; unset: none"
    )
    checkpointInterval = integer("checkpointInterval", "iterations between two checkpoints (≥ 1)")
    resume = flag("resume", "whether to go on from a checkpoint in checkpointDir, if there is one")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**DEFAULTS)

    def _maybe(self, param: Param[Any]) -> Any:
        return self.getOrDefault(param) if self.isDefined(param) else None

    # ---- one getter and one setter a Param ---------------------------------------------------------------------------

    def getLabelCol(self) -> str:
        return self.getOrDefault(self.labelCol)

    def getRatingCol(self) -> str | None:
        return self._maybe(self.ratingCol)

    def getThreshold(self) -> float | None:
        return self._maybe(self.threshold)

    def getValidationIndicatorCol(self) -> str | None:
        return self._maybe(self.validationIndicatorCol)

    def getPatience(self) -> int:
        return self.getOrDefault(self.patience)

    def getRank(self) -> int:
        return self.getOrDefault(self.rank)

    def getLoss(self) -> str:
        return self.getOrDefault(self.loss)

    def getPrior(self) -> str:
        return self.getOrDefault(self.prior)

    def getLikelihoodWeight(self) -> float | None:
        return self._maybe(self.likelihoodWeight)

    def getAlpha(self) -> float | None:
        return self._maybe(self.alpha)

    def getBeta(self) -> float | None:
        return self._maybe(self.beta)

    def getFitIntercept(self) -> bool:
        return self.getOrDefault(self.fitIntercept)

    def getSolver(self) -> str:
        return self.getOrDefault(self.solver)

    def getCovariance(self) -> str:
        return self.getOrDefault(self.covariance)

    def getStart(self) -> str:
        return self.getOrDefault(self.start)

    def getMaxIter(self) -> int:
        return self.getOrDefault(self.maxIter)

    def getTol(self) -> float:
        return self.getOrDefault(self.tol)

    def getSeed(self) -> int:
        return self.getOrDefault(self.seed)

    def getNumUserBlocks(self) -> int | None:
        return self._maybe(self.numUserBlocks)

    def getNumItemBlocks(self) -> int | None:
        return self._maybe(self.numItemBlocks)

    def getDelta(self) -> float:
        return self.getOrDefault(self.delta)

    def getCertificateGrid(self) -> int:
        return self.getOrDefault(self.certificateGrid)

    def getCertificatePriorSplit(self) -> float | None:
        return self._maybe(self.certificatePriorSplit)

    def getExchange(self) -> str:
        return self.getOrDefault(self.exchange)

    def getWorkDir(self) -> str | None:
        return self._maybe(self.workDir)

    def getCheckpointDir(self) -> str | None:
        return self._maybe(self.checkpointDir)

    def getResume(self) -> bool:
        return self.getOrDefault(self.resume)

    def getCheckpointInterval(self) -> int:
        return self.getOrDefault(self.checkpointInterval)

    def setLabelCol(self: F, value: str) -> F:
        return self._set(labelCol=value)

    def setRatingCol(self: F, value: str) -> F:
        return self._set(ratingCol=value)

    def setThreshold(self: F, value: float) -> F:
        return self._set(threshold=value)

    def setValidationIndicatorCol(self: F, value: str) -> F:
        return self._set(validationIndicatorCol=value)

    def setPatience(self: F, value: int) -> F:
        return self._set(patience=value)

    def setRank(self: F, value: int) -> F:
        return self._set(rank=value)

    def setLoss(self: F, value: str) -> F:
        return self._set(loss=value)

    def setPrior(self: F, value: str) -> F:
        return self._set(prior=value)

    def setLikelihoodWeight(self: F, value: float) -> F:
        return self._set(likelihoodWeight=value)

    def setAlpha(self: F, value: float) -> F:
        return self._set(alpha=value)

    def setBeta(self: F, value: float) -> F:
        return self._set(beta=value)

    def setFitIntercept(self: F, value: bool) -> F:
        return self._set(fitIntercept=value)

    def setSolver(self: F, value: str) -> F:
        return self._set(solver=value)

    def setCovariance(self: F, value: str) -> F:
        return self._set(covariance=value)

    def setStart(self: F, value: str) -> F:
        return self._set(start=value)

    def setMaxIter(self: F, value: int) -> F:
        return self._set(maxIter=value)

    def setTol(self: F, value: float) -> F:
        return self._set(tol=value)

    def setSeed(self: F, value: int) -> F:
        return self._set(seed=value)

    def setNumUserBlocks(self: F, value: int) -> F:
        return self._set(numUserBlocks=value)

    def setNumItemBlocks(self: F, value: int) -> F:
        return self._set(numItemBlocks=value)

    def setDelta(self: F, value: float) -> F:
        return self._set(delta=value)

    def setCertificateGrid(self: F, value: int) -> F:
        return self._set(certificateGrid=value)

    def setCertificatePriorSplit(self: F, value: float) -> F:
        return self._set(certificatePriorSplit=value)

    def setExchange(self: F, value: str) -> F:
        return self._set(exchange=value)

    def setWorkDir(self: F, value: str) -> F:
        return self._set(workDir=value)

    def setCheckpointDir(self: F, value: str) -> F:
        return self._set(checkpointDir=value)

    def setResume(self: F, value: bool) -> F:
        return self._set(resume=value)

    def setCheckpointInterval(self: F, value: int) -> F:
        return self._set(checkpointInterval=value)

    def setNumBlocks(self: F, value: int) -> F:
        """Both numUserBlocks and numItemBlocks, as ALS has it."""
        return self._set(numUserBlocks=value, numItemBlocks=value)
