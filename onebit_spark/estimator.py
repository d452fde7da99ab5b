"""OneBitCompletion: the pyspark.ml estimator. One path from a DataFrame of ratings to a fitted model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from onebit_spark.certificate.certificates import Terms
from onebit_spark.certificate.certified_fit import certified_fit
from onebit_spark.core.config import FitConfig
from onebit_spark.core.fitted_features import Who
from onebit_spark.core.posterior import HasColumnNorms
from onebit_spark.core.sketch import together
from onebit_spark.core.solver import Iteration
from onebit_spark.engines.driver import DriverEngine
from onebit_spark.engines.exchange_choice import choose_exchange, engine_over
from onebit_spark.engines.validation import Validation, check_watched, divided, watching
from onebit_spark.errors import RequestError
from onebit_spark.input.collect import SizeEstimate
from onebit_spark.input.defects import with_weight
from onebit_spark.input.prepared_ratings import PreparedRatings, prepare_ratings, prepared_for
from onebit_spark.input.rating_sources import RatingsFrame, RatingsSource
from onebit_spark.input.survey import RatingSurvey
from onebit_spark.ml.checkpoint import CheckpointFolder, Checkpointing, subject_of
from onebit_spark.ml.fit_settings import NOT_WITH_VALIDATION, FitChoices
from onebit_spark.ml.freshness import sketch_of
from onebit_spark.ml.model_builder import FitFacts
from onebit_spark.ml.persistence import EstimatorReader, EstimatorWriter
from onebit_spark.ml.phase_timer import Laps
from onebit_spark.ml.side_features import NOT_BY_SHUFFLE, checked_features, digest, known_sides
from onebit_spark.ml.warm_start import warm_start
from onebit_spark.model import OneBitCompletionModel

E = TypeVar("E", bound="OneBitCompletion")
P = TypeVar("P", bound=HasColumnNorms)  # a posterior of a side, in the engine's own form

log = logging.getLogger("onebit_spark")

_DEFAULT, _TERMS = FitConfig(), Terms()


class OneBitCompletion(Estimator[OneBitCompletionModel], FitChoices, MLWritable, MLReadable["OneBitCompletion"]):
    """Completes a binary matrix from some of its entries, by variational Bayes (Cottet and Alquier, 2018).

    The input has one line per rating: a user id, an item id (of any type that can be compared) and a label, ±1, 0/1,
    boolean, or a number with ``threshold``. A cell may be rated several times; every rating counts.

    Parameters
    ----------
    userCol, itemCol, labelCol : str
        Input columns: user ids, item ids, labels.
    ratingCol : str, optional
        ALS's name for ``labelCol``. Set only one of the two.
    threshold : float, optional
        Labels strictly greater than this number are positive, the others negative.
    weightCol : str, optional
        Column of positive weights. A rating counts as so many ratings; one of weight 0 is left out (docs/MATH.md, §16).
    validationIndicatorCol : str, optional
        Boolean column. Rows where it is true are not fitted. The fit measures its loss on them, and may end early.
    patience : int
        End the fit after so many iterations without a better validation loss.
    rank : int
        K, the largest number of factors. Factors that are not needed are switched off.
    loss : {"logistic", "hinge"}
        Loss of a rating (docs/MATH.md, §3 and §4).
    prior : {"inverse-gamma", "gamma"}
        Prior of the factors' scales (§5).
    likelihoodWeight : float or "auto", optional
        κ, the weight of one rating (§1.3). "auto": a tenth of the ratings chooses it (§14). Default: "auto" for the
        logistic loss, 2 for the hinge.
    alpha, beta : float, optional
        α and β of the prior (§7.5). Default: α is a tenth of the number of users and items, and β follows from α.
    fitIntercept : bool
        Fit an intercept for each user and each item (§6).
    implicitFeatures : bool
        Let the prior mean of a user depend on the items that the user rated, and that of an item on its users (§13).
    solver : {"mm", "gradient"}
        Solver of the means; "gradient" is for the hinge loss only (§3.3, §3.4).
    covariance : {"full", "diagonal"}
        What the logistic loss keeps of the posterior covariance of a row (§4.2, §4.3).
    start : {"spectral", "random"}
        Where the fit starts (§7.1).
    maxIter : int
        Largest number of iterations.
    tol : float
        Stop when objective and scores change by less than this share (§7.4). 0: never.
    seed : int
        Seed of the start and of the certificates' draws.
    numUserBlocks, numItemBlocks : int, optional
        Blocks of users and of items. Default: by the number of ratings and cores.
    exchange : {"auto", "driver", "broadcast", "mixed", "shuffle"}
        Where the fit runs: on the driver, or on the executors, and then how factors reach the blocks (docs/cluster.md).
        "auto" chooses by the number of ratings and the size of the factors.
    driverRatings : int, optional
        The most ratings that "auto" fits on the driver; 0: none. Default: by the memory that is free.
    blocksDir : str, optional
        Folder of prepared ratings. The first fit writes it, the next ones read it instead of the ratings: see
        ``prepare``.
    workDir : str, optional
        Folder for the files of ``exchange="shuffle"`` and "mixed". All executors must be able to reach it.
    shuffleStorage : {"files", "executors"}
        Where these tables are: in files of ``workDir``, or on the executors. The latter needs no folder, but a lost
        executor ends the fit.
    checkpointDir : str, optional
        Folder for checkpoints. A killed fit can continue from the last one.
    checkpointInterval : int
        Iterations between two checkpoints.
    resume : bool
        Continue from a checkpoint in ``checkpointDir``, if there is one.
    coldStartStrategy : {"prior", "drop", "nan"}
        Pairs with an id that was never rated: predict from the prior, leave out, or return nan.
    delta : float
        δ. A certificate holds with probability 1 − δ (§9).
    certificateGrid : int
        Number of settings that are compared on these ratings; each is certified at δ/grid (§9.6).
    certificatePriorSplit : float, optional
        Certify random draws with a prior that is learnt from this share of the ratings (§9.5).
    scoreCol, stdCol, probabilityCol, predictionCol, rawPredictionCol : str
        Output columns of the model. An empty name omits the column.

    Examples
    --------

    >>> ratings = spark.createDataFrame(
    ...     [("ann", "tea", 5), ("ann", "rum", 1), ("bob", "tea", 4), ("bob", "rum", 2), ("eve", "tea", 5)],
    ...     "user string, item string, rating int",
    ... )
    >>> model = OneBitCompletion(ratingCol="rating", threshold=3, rank=1, maxIter=5, tol=0).fit(ratings)
    >>> model.transform(ratings.limit(0)).columns
    ['user', 'item', 'rating', 'score', 'std', 'probability', 'prediction', 'rawPrediction']
    >>> pair = spark.createDataFrame([("eve", "rum")], "user string, item string")
    >>> model.transform(pair).select("prediction").first()[0]
    0.0
    """

    @keyword_only
    def __init__(
        self, *, userCol: str = "user", itemCol: str = "item", labelCol: str = "label", ratingCol: str | None = None,
        threshold: float | None = None, weightCol: str | None = None,
        validationIndicatorCol: str | None = None, patience: int = 3,
        rank: int = _DEFAULT.rank, loss: str = _DEFAULT.loss, prior: str = _DEFAULT.prior,
        likelihoodWeight: float | str | None = None, alpha: float | None = None, beta: float | None = None,
        fitIntercept: bool = _DEFAULT.intercepts, implicitFeatures: bool = _DEFAULT.implicit_features,
        solver: str = _DEFAULT.solver, covariance: str = _DEFAULT.covariance, start: str = _DEFAULT.start,
        maxIter: int = _DEFAULT.max_iter, tol: float = _DEFAULT.tol,
        seed: int = _DEFAULT.seed, numUserBlocks: int | None = None, numItemBlocks: int | None = None,
        exchange: str = "auto", driverRatings: int | None = None, blocksDir: str | None = None,
        workDir: str | None = None, shuffleStorage: str = "files", checkpointDir: str | None = None,
        checkpointInterval: int = 10, resume: bool = False, coldStartStrategy: str = "prior",
        delta: float = _TERMS.delta, certificateGrid: int = _TERMS.grid, certificatePriorSplit: float | None = None,
        scoreCol: str = "score", stdCol: str = "std", probabilityCol: str = "probability",
        predictionCol: str = "prediction", rawPredictionCol: str = "rawPrediction",
    ) -> None:  # fmt: skip
        super().__init__()
        self._progress: Callable[[Iteration], None] | None = None
        self._initial: OneBitCompletionModel | None = None
        self._features: dict[Who, DataFrame] = {}
        self.source: str | None = None  # folder of a loaded estimator
        self.setParams(**self._input_kwargs)  # type: ignore[attr-defined]

    def setParams(self: E, **params: Any) -> E:
        """Set Params by the names that the constructor knows; None leaves one as it is."""
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise TypeError(f"OneBitCompletion has no Param {', '.join(unknown)}")
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def setProgress(self: E, callback: Callable[[Iteration], None] | None) -> E:
        """Call ``callback`` after every iteration. Not a Param: it is not saved."""
        self._progress = callback
        return self

    def setInitialModel(self: E, model: OneBitCompletionModel | None) -> E:
        """Start the fit from a model's posterior instead of the spectral start. Not a Param: it is not saved.

        Rank, loss, intercepts and covariance must be the model's; ids that it does not know start at its prior.
        """
        self._initial = model
        return self

    def setUserFeatures(self: E, features: DataFrame | None) -> E:
        """Side features of the users: the column ``userCol``, and columns of any kind. Not a Param.

        Numbers and booleans, strings, arrays of them and pyspark.ml Vectors are used (docs/MATH.md, §15). One line per
        user. Users without a line have the prior of the others. Users without ratings are predicted from their line.
        They are saved with the estimator. One that was loaded reads them from its folder.
        """
        return self._set_features("user", features)

    def setItemFeatures(self: E, features: DataFrame | None) -> E:
        """Side features of the items, as ``setUserFeatures``."""
        return self._set_features("item", features)

    def _set_features(self: E, who: Who, features: DataFrame | None) -> E:
        others = {name: frame for name, frame in self._features.items() if name != who}
        self._features = others if features is None else {**others, who: features}
        return self

    def prepare(self, ratings: DataFrame, dir: str, overwrite: bool = False) -> PreparedRatings:
        """Read, check and count the ratings once, and write them to a folder, for many fits with ``blocksDir``.

        The folder appears whole or not at all; one that exists is refused, unless ``overwrite``. All executors must be
        able to reach it. A fit from it gives the same model, to the bit, and refuses to fit other ratings. It compares
        the columns, the threshold, the files of the source and the query over them. If the ratings do not come from
        files, it reads them once, for their number and fingerprint (docs/cluster.md).
        """
        if problems := self.problems():
            raise RequestError("; ".join(problems))
        if self.getValidationIndicatorCol():
            raise RequestError(NOT_WITH_VALIDATION)
        columns = self.columns()
        return prepare_ratings(with_weight(ratings, columns), columns, dir, overwrite)

    def _fit(self, dataset: DataFrame, counted: SizeEstimate | None = None) -> OneBitCompletionModel:
        """``counted``: what an earlier pass over these ratings has counted."""
        problems = self.problems()
        if self._features and self.getExchange() in ("shuffle", "mixed"):
            problems.append(NOT_BY_SHUFFLE)
        if self._initial is not None:
            problems += [f"{name} does not go with an initial model" for name in self.fromTheBeginning()]
        if problems:
            raise RequestError("; ".join(problems))
        terms, execution = self.certificateTerms(), self.execution()
        config, columns, spark = self.fitConfig(), self.columns(), dataset.sparkSession
        clock = Laps()
        dataset = with_weight(dataset, columns)
        training, watched = divided(dataset, execution.validation_indicator_col)
        features = checked_features(self._features, dataset, columns)
        with ExitStack() as release:
            form = config.form
            if watched is not None:
                counted = None  # it is about all ratings
            source: RatingsSource = RatingsFrame(training, columns)
            if execution.blocks_dir is not None:
                source, counted = prepared_for(training, columns, execution.blocks_dir, counted), None
                log.info("ratings: %s", source)
            chosen = release.enter_context(
                choose_exchange(execution.exchange, source, form, execution.driver_ratings, counted, bool(features))
            )
            n_watched = 0 if watched is None else check_watched(watched, columns).n
            clock.lap("survey")
            checkpoints, checkpoint = None, None
            if folder := execution.checkpoint_dir:
                marks = {str(who): digest(table, getattr(columns, who)) for who, table in features.items()}
                subject = subject_of(config, chosen.tally, terms.prior_split, marks)
                checkpoints = CheckpointFolder(spark, folder, subject, OneBitCompletionModel.load)
                checkpoint = checkpoints.found(execution.resume)
            blocks = execution.row_blocks, execution.col_blocks
            work = execution.work_dir or execution.checkpoint_dir
            sketched = None  # before the heap is full of blocks
            if isinstance(chosen.found, RatingSurvey):  # the watched ratings too: they choose the model
                whole = sketch_of(dataset, columns, chosen.tally.n + n_watched) if n_watched else None
                sketched = whole or chosen.found.sketch()
            engine = release.enter_context(
                engine_over(chosen, training, columns, blocks, form, work, watched, execution.shuffle_storage)
            )
            fitted = engine.fitted if isinstance(engine, DriverEngine) else sketched
            assert fitted is not None
            if self._initial is not None:
                fitted = together(self._initial.fitted, fitted)
            known = known_sides(engine, features, columns)
            facts = FitFacts(dataset, config, columns, chosen, engine, fitted, known, OneBitCompletionModel)
            start, validation, watch = None, None, None
            if self._initial is not None:
                start = warm_start(self._initial, config, engine)
            if checkpoint is not None:
                start = checkpoint.start(config, engine)
            if checkpoints is not None:
                watch = Checkpointing(checkpoints, execution.checkpoint_interval, facts.model, spark)
            if watched is not None:
                newcomers = {side: told.coded_newcomers() for side, told in known.items()}
                measure = release.enter_context(watching(watched, columns, engine, config.loss, newcomers))
                validation = Validation(measure, engine, execution.patience)
            clock.lap("blocking")
            made = certified_fit(
                engine, config, terms, chosen.tally.positives, self._progress, start, validation or watch
            )
            clock.lap("fit")
            own = made.history[len(start.history) if start is not None else 0 :]
            clock.seconds["start"] = clock.seconds["fit"] - sum(step.seconds for step in own)
            if validation is not None:
                clock.move(validation.seconds, "start", "validation")
            curve = validation.history if validation is not None else []
            model = facts.model(made, outlasting=True, seconds=clock.seconds, validation=curve)
        return self._copyValues(model._resetUid(self.uid))

    def write(self) -> EstimatorWriter:
        others = {"the initial model": self._initial, "the progress callback": self._progress}
        return EstimatorWriter(self, self._features, [name for name, other in others.items() if other is not None])

    @classmethod
    def read(cls) -> EstimatorReader:
        return EstimatorReader(cls)


def fit_counted(estimator: OneBitCompletion, ratings: DataFrame, counted: SizeEstimate | None) -> OneBitCompletionModel:
    """``estimator.fit(ratings)``, where an earlier pass has counted these ratings. They must not have changed since."""
    return estimator._fit(ratings, counted)
