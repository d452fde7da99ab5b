"""The estimator's Params. Written by ``python -m onebit_spark.ml.make_params``: change the settings, not this file."""

from __future__ import annotations

from typing import Any, TypeVar

from pyspark.ml.param import Param

from onebit_spark.ml.param_types import flag, integer, number, number_or_auto, text
from onebit_spark.ml.prediction_params import PredictionParams

F = TypeVar("F", bound="FitParams")

# The defaults that ``explainParams`` shows. Params that are not listed have none.
DEFAULTS: dict[str, Any] = {
    "labelCol": "label",
    "loss": "logistic",
    "prior": "inverse-gamma",
    "rank": 10,
    "fitIntercept": True,
    "implicitFeatures": True,
    "solver": "mm",
    "start": "spectral",
    "covariance": "full",
    "maxIter": 100,
    "tol": 1e-05,
    "seed": 0,
    "exchange": "auto",
    "shuffleStorage": "files",
    "checkpointInterval": 10,
    "resume": False,
    "patience": 3,
    "delta": 0.05,
    "certificateGrid": 1,
}


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

    labelCol = text("labelCol", "column of the labels: −1/1, 0/1, boolean, or a number with threshold")
    ratingCol = text("ratingCol", "ALS's name for labelCol; set only one of the two")
    threshold = number(
        "threshold", "labels strictly greater are positive, the others negative; must be a finite number"
    )
    weightCol = text(
        "weightCol", "column of positive weights: a rating counts as so many; 0: as if absent (default: all are 1)"
    )
    loss = text("loss", "loss: hinge, logistic")
    prior = text("prior", "prior of the factors' scales: gamma, inverse-gamma")
    rank = integer(
        "rank",
        "largest number of factors; those that are not needed are switched off; must be an integer of at least 1",
    )
    likelihoodWeight = number_or_auto(
        "likelihoodWeight",
        "κ, the weight of one rating; auto: a tenth of the ratings chooses it (default: auto for the logistic loss, 2"
        " for the hinge); must be a positive finite number or auto",
    )
    alpha = number(
        "alpha", "α of the prior (default: a tenth of the number of users and items); must be a positive finite number"
    )
    beta = number("beta", "β of the prior (default: follows from α); must be a positive finite number")
    fitIntercept = flag("fitIntercept", "fit an intercept for each user and each item (default: yes)")
    implicitFeatures = flag(
        "implicitFeatures",
        "let the prior mean of a user depend on the items that the user rated, and that of an item on its users "
        "(default: yes)",
    )
    solver = text("solver", "solver of the means; gradient is for the hinge loss only: mm, gradient")
    start = text("start", "where the fit starts: spectral, random")
    covariance = text("covariance", "what the logistic loss keeps of the posterior covariance of a row: full, diagonal")
    maxIter = integer("maxIter", "largest number of iterations; must be an integer of at least 1")
    tol = number(
        "tol",
        "stop when objective and scores change by less than this share; 0: never; must be a finite number, 0 or above",
    )
    seed = integer("seed", "seed of the start; must be an integer from 0 to 2^63 − 1")
    numUserBlocks = integer(
        "numUserBlocks", "blocks of users (default: by size and cores); must be an integer of at least 1"
    )
    numItemBlocks = integer(
        "numItemBlocks", "blocks of items (default: by size and cores); must be an integer of at least 1"
    )
    exchange = text(
        "exchange",
        "where the ratings are fitted: gathered on the driver, or in blocks on the executors, which get the factors "
        "by broadcast, by shuffle, or those of one side in each way (mixed); auto: by the numbers of ratings and ids:"
        " auto, driver, broadcast, mixed, shuffle",
    )
    driverRatings = integer(
        "driverRatings",
        "most ratings that exchange=auto fits on the driver (default: by its memory, and at most 20 million on a "
        "cluster); 0: none; must be an integer of at least 0",
    )
    blocksDir = text(
        "blocksDir", "folder of prepared ratings: the first fit writes it, the next ones read it instead of the ratings"
    )
    workDir = text(
        "workDir",
        "folder that all executors can reach, for the files of exchange=shuffle and mixed; unset: checkpointDir, then"
        " the checkpoint folder of the SparkContext, then, on a single machine, a temporary one",
    )
    shuffleStorage = text(
        "shuffleStorage",
        "where exchange=shuffle keeps its tables: in files of workDir, or on the executors, which needs no folder, "
        "but a lost executor ends the fit: files, executors",
    )
    checkpointDir = text("checkpointDir", "folder for checkpoints, from which a killed fit can go on")
    checkpointInterval = integer(
        "checkpointInterval", "iterations between two checkpoints; must be an integer of at least 1"
    )
    resume = flag("resume", "go on from a checkpoint in checkpointDir, if there is one")
    validationIndicatorCol = text(
        "validationIndicatorCol", "boolean column: true rows are not fitted but watched, and end a fit that gets worse"
    )
    patience = integer(
        "patience", "iterations without a better validation loss that end the fit; must be an integer of at least 1"
    )
    delta = number("delta", "a certificate holds with probability 1 − δ; must lie strictly between 0 and 1")
    certificatePriorSplit = number(
        "certificatePriorSplit",
        "certify random draws with a prior that is learnt from this share of the ratings; the saved model then has "
        "learnt almost only from that share; must lie strictly between 0 and 1",
    )
    certificateGrid = integer(
        "certificateGrid",
        "number of settings that are compared on these ratings; each is certified at δ/grid; must be an integer of at"
        " least 1",
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**DEFAULTS)

    def _maybe(self, param: Param[Any]) -> Any:
        return self.getOrDefault(param) if self.isDefined(param) else None

    def getLabelCol(self) -> str:
        return self.getOrDefault(self.labelCol)

    def setLabelCol(self: F, value: str) -> F:
        return self._set(labelCol=value)

    def getRatingCol(self) -> str | None:
        return self._maybe(self.ratingCol)

    def setRatingCol(self: F, value: str) -> F:
        return self._set(ratingCol=value)

    def getThreshold(self) -> float | None:
        return self._maybe(self.threshold)

    def setThreshold(self: F, value: float) -> F:
        return self._set(threshold=value)

    def getWeightCol(self) -> str | None:
        return self._maybe(self.weightCol)

    def setWeightCol(self: F, value: str) -> F:
        return self._set(weightCol=value)

    def getLoss(self) -> str:
        return self.getOrDefault(self.loss)

    def setLoss(self: F, value: str) -> F:
        return self._set(loss=value)

    def getPrior(self) -> str:
        return self.getOrDefault(self.prior)

    def setPrior(self: F, value: str) -> F:
        return self._set(prior=value)

    def getRank(self) -> int:
        return self.getOrDefault(self.rank)

    def setRank(self: F, value: int) -> F:
        return self._set(rank=value)

    def getLikelihoodWeight(self) -> float | str | None:
        return self._maybe(self.likelihoodWeight)

    def setLikelihoodWeight(self: F, value: float | str) -> F:
        return self._set(likelihoodWeight=value)

    def getAlpha(self) -> float | None:
        return self._maybe(self.alpha)

    def setAlpha(self: F, value: float) -> F:
        return self._set(alpha=value)

    def getBeta(self) -> float | None:
        return self._maybe(self.beta)

    def setBeta(self: F, value: float) -> F:
        return self._set(beta=value)

    def getFitIntercept(self) -> bool:
        return self.getOrDefault(self.fitIntercept)

    def setFitIntercept(self: F, value: bool) -> F:
        return self._set(fitIntercept=value)

    def getImplicitFeatures(self) -> bool:
        return self.getOrDefault(self.implicitFeatures)

    def setImplicitFeatures(self: F, value: bool) -> F:
        return self._set(implicitFeatures=value)

    def getSolver(self) -> str:
        return self.getOrDefault(self.solver)

    def setSolver(self: F, value: str) -> F:
        return self._set(solver=value)

    def getStart(self) -> str:
        return self.getOrDefault(self.start)

    def setStart(self: F, value: str) -> F:
        return self._set(start=value)

    def getCovariance(self) -> str:
        return self.getOrDefault(self.covariance)

    def setCovariance(self: F, value: str) -> F:
        return self._set(covariance=value)

    def getMaxIter(self) -> int:
        return self.getOrDefault(self.maxIter)

    def setMaxIter(self: F, value: int) -> F:
        return self._set(maxIter=value)

    def getTol(self) -> float:
        return self.getOrDefault(self.tol)

    def setTol(self: F, value: float) -> F:
        return self._set(tol=value)

    def getSeed(self) -> int:
        return self.getOrDefault(self.seed)

    def setSeed(self: F, value: int) -> F:
        return self._set(seed=value)

    def getNumUserBlocks(self) -> int | None:
        return self._maybe(self.numUserBlocks)

    def setNumUserBlocks(self: F, value: int) -> F:
        return self._set(numUserBlocks=value)

    def getNumItemBlocks(self) -> int | None:
        return self._maybe(self.numItemBlocks)

    def setNumItemBlocks(self: F, value: int) -> F:
        return self._set(numItemBlocks=value)

    def getExchange(self) -> str:
        return self.getOrDefault(self.exchange)

    def setExchange(self: F, value: str) -> F:
        return self._set(exchange=value)

    def getDriverRatings(self) -> int | None:
        return self._maybe(self.driverRatings)

    def setDriverRatings(self: F, value: int) -> F:
        return self._set(driverRatings=value)

    def getBlocksDir(self) -> str | None:
        return self._maybe(self.blocksDir)

    def setBlocksDir(self: F, value: str) -> F:
        return self._set(blocksDir=value)

    def getWorkDir(self) -> str | None:
        return self._maybe(self.workDir)

    def setWorkDir(self: F, value: str) -> F:
        return self._set(workDir=value)

    def getShuffleStorage(self) -> str:
        return self.getOrDefault(self.shuffleStorage)

    def setShuffleStorage(self: F, value: str) -> F:
        return self._set(shuffleStorage=value)

    def getCheckpointDir(self) -> str | None:
        return self._maybe(self.checkpointDir)

    def setCheckpointDir(self: F, value: str) -> F:
        return self._set(checkpointDir=value)

    def getCheckpointInterval(self) -> int:
        return self.getOrDefault(self.checkpointInterval)

    def setCheckpointInterval(self: F, value: int) -> F:
        return self._set(checkpointInterval=value)

    def getResume(self) -> bool:
        return self.getOrDefault(self.resume)

    def setResume(self: F, value: bool) -> F:
        return self._set(resume=value)

    def getValidationIndicatorCol(self) -> str | None:
        return self._maybe(self.validationIndicatorCol)

    def setValidationIndicatorCol(self: F, value: str) -> F:
        return self._set(validationIndicatorCol=value)

    def getPatience(self) -> int:
        return self.getOrDefault(self.patience)

    def setPatience(self: F, value: int) -> F:
        return self._set(patience=value)

    def getDelta(self) -> float:
        return self.getOrDefault(self.delta)

    def setDelta(self: F, value: float) -> F:
        return self._set(delta=value)

    def getCertificatePriorSplit(self) -> float | None:
        return self._maybe(self.certificatePriorSplit)

    def setCertificatePriorSplit(self: F, value: float) -> F:
        return self._set(certificatePriorSplit=value)

    def getCertificateGrid(self) -> int:
        return self.getOrDefault(self.certificateGrid)

    def setCertificateGrid(self: F, value: int) -> F:
        return self._set(certificateGrid=value)
