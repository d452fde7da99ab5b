"""The estimator's Params. Written by ``python -m onebit_spark.ml.make_params``: change the settings, not this file."""

from __future__ import annotations

from pyspark import keyword_only
from pyspark.ml.param import Param

from onebit_spark.ml.param_types import accessors, declared_param, keyword_defaults, optional_accessors
from onebit_spark.ml.prediction_params import PredictionParams


class FitParams(PredictionParams):
    """The Params of a fit. A getter of a Param that is unset and has no default returns None."""

    labelCol: Param[str] = declared_param("labelCol")
    ratingCol: Param[str] = declared_param("ratingCol")
    threshold: Param[float] = declared_param("threshold")
    weightCol: Param[str] = declared_param("weightCol")
    loss: Param[str] = declared_param("loss")
    prior: Param[str] = declared_param("prior")
    rank: Param[int] = declared_param("rank")
    likelihoodWeight: Param[float | str] = declared_param("likelihoodWeight")
    alpha: Param[float] = declared_param("alpha")
    beta: Param[float] = declared_param("beta")
    fitIntercept: Param[bool] = declared_param("fitIntercept")
    implicitFeatures: Param[bool] = declared_param("implicitFeatures")
    solver: Param[str] = declared_param("solver")
    start: Param[str] = declared_param("start")
    covariance: Param[str] = declared_param("covariance")
    maxIter: Param[int] = declared_param("maxIter")
    tol: Param[float] = declared_param("tol")
    seed: Param[int] = declared_param("seed")
    numUserBlocks: Param[int] = declared_param("numUserBlocks")
    numItemBlocks: Param[int] = declared_param("numItemBlocks")
    exchange: Param[str] = declared_param("exchange")
    driverRatings: Param[int] = declared_param("driverRatings")
    blocksDir: Param[str] = declared_param("blocksDir")
    workDir: Param[str] = declared_param("workDir")
    shuffleStorage: Param[str] = declared_param("shuffleStorage")
    checkpointDir: Param[str] = declared_param("checkpointDir")
    checkpointInterval: Param[int] = declared_param("checkpointInterval")
    resume: Param[bool] = declared_param("resume")
    validationIndicatorCol: Param[str] = declared_param("validationIndicatorCol")
    patience: Param[int] = declared_param("patience")
    delta: Param[float] = declared_param("delta")
    certificatePriorSplit: Param[float] = declared_param("certificatePriorSplit")
    certificateGrid: Param[int] = declared_param("certificateGrid")

    getLabelCol, setLabelCol = accessors(labelCol)
    getRatingCol, setRatingCol = optional_accessors(ratingCol)
    getThreshold, setThreshold = optional_accessors(threshold)
    getWeightCol, setWeightCol = optional_accessors(weightCol)
    getLoss, setLoss = accessors(loss)
    getPrior, setPrior = accessors(prior)
    getRank, setRank = accessors(rank)
    getLikelihoodWeight, setLikelihoodWeight = optional_accessors(likelihoodWeight)
    getAlpha, setAlpha = optional_accessors(alpha)
    getBeta, setBeta = optional_accessors(beta)
    getFitIntercept, setFitIntercept = accessors(fitIntercept)
    getImplicitFeatures, setImplicitFeatures = accessors(implicitFeatures)
    getSolver, setSolver = accessors(solver)
    getStart, setStart = accessors(start)
    getCovariance, setCovariance = accessors(covariance)
    getMaxIter, setMaxIter = accessors(maxIter)
    getTol, setTol = accessors(tol)
    getSeed, setSeed = accessors(seed)
    getNumUserBlocks, setNumUserBlocks = optional_accessors(numUserBlocks)
    getNumItemBlocks, setNumItemBlocks = optional_accessors(numItemBlocks)
    getExchange, setExchange = accessors(exchange)
    getDriverRatings, setDriverRatings = optional_accessors(driverRatings)
    getBlocksDir, setBlocksDir = optional_accessors(blocksDir)
    getWorkDir, setWorkDir = optional_accessors(workDir)
    getShuffleStorage, setShuffleStorage = accessors(shuffleStorage)
    getCheckpointDir, setCheckpointDir = optional_accessors(checkpointDir)
    getCheckpointInterval, setCheckpointInterval = accessors(checkpointInterval)
    getResume, setResume = accessors(resume)
    getValidationIndicatorCol, setValidationIndicatorCol = optional_accessors(validationIndicatorCol)
    getPatience, setPatience = accessors(patience)
    getDelta, setDelta = accessors(delta)
    getCertificatePriorSplit, setCertificatePriorSplit = optional_accessors(certificatePriorSplit)
    getCertificateGrid, setCertificateGrid = accessors(certificateGrid)

    @keyword_only
    def __init__(
        self,
        *,
        userCol: str = "user",
        itemCol: str = "item",
        scoreCol: str = "score",
        stdCol: str = "std",
        probabilityCol: str = "probability",
        predictionCol: str = "prediction",
        rawPredictionCol: str = "rawPrediction",
        coldStartStrategy: str = "prior",
        labelCol: str = "label",
        ratingCol: str | None = None,
        threshold: float | None = None,
        weightCol: str | None = None,
        loss: str = "logistic",
        prior: str = "inverse-gamma",
        rank: int = 10,
        likelihoodWeight: float | str | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        fitIntercept: bool = True,
        implicitFeatures: bool = True,
        solver: str = "mm",
        start: str = "spectral",
        covariance: str = "full",
        maxIter: int = 100,
        tol: float = 1e-05,
        seed: int = 0,
        numUserBlocks: int | None = None,
        numItemBlocks: int | None = None,
        exchange: str = "auto",
        driverRatings: int | None = None,
        blocksDir: str | None = None,
        workDir: str | None = None,
        shuffleStorage: str = "files",
        checkpointDir: str | None = None,
        checkpointInterval: int = 10,
        resume: bool = False,
        validationIndicatorCol: str | None = None,
        patience: int = 3,
        delta: float = 0.05,
        certificatePriorSplit: float | None = None,
        certificateGrid: int = 1,
    ) -> None:
        """The sections are those of docs/MATH.md. None leaves a Param unset.

        Parameters
        ----------
        userCol : str
            Column of the user ids.
        itemCol : str
            Column of the item ids.
        scoreCol : str
            Output column of the score E[L]·E[R] (+ intercepts); empty: omitted.
        stdCol : str
            Output column of the score's spread in an approximate posterior, no error bar; empty: omitted.
        probabilityCol : str
            Output column of the probability of a positive label; empty: omitted.
        predictionCol : str
            Output column of the predicted label, as a double; empty: omitted.
        rawPredictionCol : str
            Output column of the score, for evaluators; empty: omitted.
        coldStartStrategy : str
            Pairs with an unknown id: prior (predict from the prior), drop (leave out), nan.
        labelCol : str
            Column of the labels: −1/1, 0/1, boolean, or a number with threshold.
        ratingCol : str, optional
            ALS's name for labelCol; set only one of the two.
        threshold : float, optional
            Labels strictly greater are positive, the others negative.
        weightCol : str, optional
            Column of positive weights: a rating counts as so many; 0: as if absent (default: all are 1). See §16.
        loss : {"hinge", "logistic"}
            Loss of a rating. See §3, §4.
        prior : {"gamma", "inverse-gamma"}
            Prior of the factors' scales. See §5.
        rank : int
            K, the largest number of factors; those that are not needed are switched off.
        likelihoodWeight : float or "auto", optional
            κ = λ/n, the weight of one rating; auto: a tenth of the ratings chooses it (default: auto for the logistic
            loss, 2 for the hinge). See §1.3, §14.
        alpha : float, optional
            α of the prior (default: a tenth of the number of users and items with ratings). See §7.5.
        beta : float, optional
            β of the prior, a rate for gamma, a scale for inverse-gamma (default: from α, so that γ is near 0.3). See
            §7.5.
        fitIntercept : bool
            Fit an intercept for each user and each item (default: yes). See §6.
        implicitFeatures : bool
            Let the prior mean of a user depend on the items that the user rated, and that of an item on its users
            (default: yes). See §13.
        solver : {"mm", "gradient"}
            Solver of the means; gradient is for the hinge loss only. See §3.3, §3.4.
        start : {"spectral", "random"}
            Where the fit starts. See §7.1.
        covariance : {"full", "diagonal"}
            What the logistic loss keeps of a row's posterior covariance, D×D numbers or D variances. See §4.2, §4.3.
        maxIter : int
            Largest number of iterations.
        tol : float
            Stop when objective and scores change by less than this share; 0: never. See §7.4.
        seed : int
            Seed of the start and of the certificates' draws.
        numUserBlocks : int, optional
            Blocks of users (default: by size and cores).
        numItemBlocks : int, optional
            Blocks of items (default: by size and cores).
        exchange : {"auto", "driver", "broadcast", "mixed", "shuffle"}
            Where the ratings are fitted: gathered on the driver, or in blocks on the executors, which get the factors
            by broadcast, by shuffle, or those of one side in each way (mixed); auto: by the numbers of ratings and ids.
        driverRatings : int, optional
            Most ratings that exchange=auto fits on the driver (default: by its memory, and at most 20 million on a
            cluster); 0: none.
        blocksDir : str, optional
            Folder of prepared ratings: the first fit writes it, the next ones read it instead of the ratings.
        workDir : str, optional
            Folder that all executors can reach, for the files of exchange=shuffle and mixed; unset: checkpointDir, then
            the checkpoint folder of the SparkContext, then, on a single machine, a temporary one.
        shuffleStorage : {"files", "executors"}
            Where exchange=shuffle and mixed keep their tables: in files of workDir, or on the executors, which needs no
            folder, but a lost executor ends the fit.
        checkpointDir : str, optional
            Folder for checkpoints, from which a killed fit can go on.
        checkpointInterval : int
            Iterations between two checkpoints.
        resume : bool
            Go on from a checkpoint in checkpointDir, if there is one.
        validationIndicatorCol : str, optional
            Boolean column: rows where it is true are not fitted; the loss on them ends a fit that gets worse.
        patience : int
            Iterations without a better validation loss that end the fit.
        delta : float
            A certificate holds with probability 1 − δ. See §9.
        certificatePriorSplit : float, optional
            Certify random draws with a prior that is learnt from this share of the ratings; the saved model then has
            learnt almost only from that share. See §9.5.
        certificateGrid : int
            Number of settings that are compared on these ratings; each is certified at δ/grid. See §9.6.
        """
        super().__init__()
        self._setDefault(**keyword_defaults(FitParams.__init__))
        self._set_given(**self._input_kwargs)  # type: ignore[attr-defined]
