"""The estimator's Params: one per setting of ``TABLES`` in params.py, where each is documented and checked.

They are written out, so that readers, editors and type checkers see them. tests/unit/test_settings.py compares this
file with the declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onebit_spark.ml.params import (
    PredictionParams,
    declared,
    declared_or_word,
    documented_params,
    keyword_defaults,
    keyword_only,
    optional,
    optional_or_word,
    refuse_removed,
)


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

    labelCol, getLabelCol, setLabelCol = declared("labelCol", str)
    ratingCol, getRatingCol, setRatingCol = optional("ratingCol", str)
    threshold, getThreshold, setThreshold = optional("threshold", float)
    weightCol, getWeightCol, setWeightCol = optional("weightCol", str)
    loss, getLoss, setLoss = declared("loss", str)
    prior, getPrior, setPrior = declared("prior", str)
    rank, getRank, setRank = declared_or_word("rank")
    maxRank, getMaxRank, setMaxRank = declared("maxRank", int)
    likelihoodWeight, getLikelihoodWeight, setLikelihoodWeight = optional_or_word("likelihoodWeight")
    alpha, getAlpha, setAlpha = optional("alpha", float)
    beta, getBeta, setBeta = optional("beta", float)
    fitIntercept, getFitIntercept, setFitIntercept = declared("fitIntercept", bool)
    implicitFeatures, getImplicitFeatures, setImplicitFeatures = declared("implicitFeatures", bool)
    solver, getSolver, setSolver = declared("solver", str)
    covariance, getCovariance, setCovariance = declared("covariance", str)
    maxIter, getMaxIter, setMaxIter = declared("maxIter", int)
    tol, getTol, setTol = declared("tol", float)
    seed, getSeed, setSeed = declared("seed", int)
    numUserBlocks, getNumUserBlocks, setNumUserBlocks = optional("numUserBlocks", int)
    numItemBlocks, getNumItemBlocks, setNumItemBlocks = optional("numItemBlocks", int)
    exchange, getExchange, setExchange = declared("exchange", str)
    device, getDevice, setDevice = declared("device", str)
    driverRatings, getDriverRatings, setDriverRatings = optional("driverRatings", int)
    checkpointDir, getCheckpointDir, setCheckpointDir = optional("checkpointDir", str)
    checkpointInterval, getCheckpointInterval, setCheckpointInterval = declared("checkpointInterval", int)
    resume, getResume, setResume = declared("resume", bool)
    delta, getDelta, setDelta = declared("delta", float)
    certificatePriorSplit, getCertificatePriorSplit, setCertificatePriorSplit = optional("certificatePriorSplit", float)
    certificateGrid, getCertificateGrid, setCertificateGrid = declared("certificateGrid", int)

    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(
        self, *,
        userCol: str = "user", itemCol: str = "item", scoreCol: str = "score", stdCol: str = "std",
        probabilityCol: str = "probability", predictionCol: str = "prediction",
        rawPredictionCol: str = "rawPrediction", coldStartStrategy: str = "prior", labelCol: str = "label",
        ratingCol: str | None = None, threshold: float | None = None, weightCol: str | None = None,
        loss: str = "logistic", prior: str = "inverse-gamma", rank: int | str = "auto", maxRank: int = 64,
        likelihoodWeight: float | str | None = None, alpha: float | None = None, beta: float | None = None,
        fitIntercept: bool = True, implicitFeatures: bool = True, solver: str = "mm",
        covariance: str = "full", maxIter: int = 100, tol: float = 1e-05, seed: int = 0,
        numUserBlocks: int | None = None, numItemBlocks: int | None = None, exchange: str = "auto",
        device: str = "cpu", driverRatings: int | None = None,
        checkpointDir: str | None = None,
        checkpointInterval: int = 10, resume: bool = False, delta: float = 0.05,
        certificatePriorSplit: float | None = None, certificateGrid: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self._setDefault(**keyword_defaults(FitParams.__init__))
        self._set_given(**self._input_kwargs)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            """A getter or setter of a removed Param says what to do instead."""
            if name.startswith(("get", "set")):
                refuse_removed([name[3:4].lower() + name[4:]])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


FitParams.__init__.__doc__ = documented_params(FitParams, FitParams.__init__)
