"""OneBitCompletionModel: the fitted model in pyspark.ml, and its folder.

MODEL/metadata.json    ModelInfo and format_version; written last
MODEL/metadata/        pyspark.ml's own: class, uid, Params
MODEL/users/           Parquet, one line per id: see ``model_info``
MODEL/items/
MODEL/fitted/          Parquet, a sketch of the cells that were fitted: see ``data.hashes``
MODEL/certificate.json upper limits on the error rate: see ``certificates``
MODEL/report.html      if the model was diagnosed: see ``report``

VECTORS/users/         Parquet, ids and vectors: see ``model_folder``
VECTORS/items/
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml import Model
from pyspark.ml.util import DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onebit_spark.certify.certificates import (
    OF_PREDICTIONS,
    SELECTIVE,
    Certificate,
    calling_threshold,
    calls_unknown,
    certificate_document,
    ungrouped_certificates,
)
from onebit_spark.certify.requests import CertificateRequest, Document, Precisions
from onebit_spark.core.confidences import TOWARDS, Call
from onebit_spark.data.hashes import CellSketch, merged_sketch
from onebit_spark.data.locations import MODEL, VECTORS, Location, explained, replace_folder
from onebit_spark.data.ratings import NoRatings, RatingCounts
from onebit_spark.engines.spark.columns import case_folding
from onebit_spark.engines.spark.engine import collected_factors, factor_schema
from onebit_spark.engines.spark.sessions import described
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_folder import CERTIFICATE, FITTED, SEAL, certificate_of, check_model
from onebit_spark.model_info import (
    METADATA,
    N_RATINGS,
    SIDE_OF,
    ModelInfo,
    feature_effects,
    plain_columns,
)
from onebit_spark.predict.figures import Figures
from onebit_spark.predict.judged import JudgedModel
from onebit_spark.predict.new_ratings import warn_dropped
from onebit_spark.predict.positions import who_problems
from onebit_spark.predict.predictor import OUTPUTS
from onebit_spark.predict.ranking import NOTHING_SEEN
from onebit_spark.predict.sides import Anchors, ModelSide
from onebit_spark.report.map import MOST_POINTS, REPORTED
from onebit_spark.report.page import REPORT, page_of
from onebit_spark.settings import Who
from onebit_spark.spark import scoring
from onebit_spark.spark.fold_in import Changes, NewRatings, fold_in, fold_in_features, update
from onebit_spark.spark.params import AnswerParams, read_params
from onebit_spark.spark.positions import draw, next_questions, positions
from onebit_spark.spark.recommend import ranking, recommend
from onebit_spark.spark.scoring import SparkFactors, SparkRatings, judge


@dataclass(frozen=True)
class TrainingSummary:
    objectiveHistory: list[float]  # The objective after each iteration. It is minimised.
    totalIterations: int
    converged: bool  # whether the stopping rule held
    reason: str  # why the fit stopped
    seconds: dict[str, float]  # of each phase


class OneBitCompletionModel(
    Model, JudgedModel, AnswerParams, MLWritable, MLReadable["OneBitCompletionModel"]
):
    """A fitted model. ``OneBitCompletion.fit`` makes it; ``transform`` predicts pairs.

    The methods return new models and DataFrames. They do not change the model.

    Attributes
    ----------
    info : ModelInfo
        Settings, counts and history of the fit: the content of ``metadata.json``.
    users, items : DataFrame
        Posterior of each user and each item, one line per id: see ``model_info``.
    certificate : dict
        Upper limits on the error rate: the content of ``certificate.json``.
    source : str or None
        The folder that the factors are read from, for a model that was loaded.
    """

    def __init__(
        self,
        info: ModelInfo,
        users: DataFrame,
        items: DataFrame,
        certificate: Document | None = None,
    ) -> None:
        super().__init__()
        self.info = info
        self.certificate = certificate or certificate_document([])
        self.users = users
        self.items = items
        self.source: str | None = None  # folder of a loaded model
        self.readFitted: Callable[[], CellSketch] | None = None  # see ``fitted``
        self._collected: list[tuple[ModelSide, ModelSide]] = []  # shared by copies: see ``factors``
        self._setDefault(userCol=info.columns["user"], itemCol=info.columns["item"])
        for who, schema in (("user", users.schema), ("item", items.schema)):
            actual = _types(schema)
            expected = _types(factor_schema(info, who, schema.names))
            if actual != expected:
                raise RequestError(
                    f"damaged model folder: {who}s/ should have the columns {expected}, not "
                    f"{actual}"
                )

    @property
    def factors(self) -> SparkFactors:
        columns: dict[Who, str] = {"user": self.getUserCol(), "item": self.getItemCol()}
        return SparkFactors(self.info, self.users, self.items, columns, self._collected)

    @property
    def predicts_unknown(self) -> bool:
        return self.getColdStartStrategy() == "prior"

    # ---- prediction -----------------------------------------------------------------------------

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Append the output columns.

        If there are null or NaN ids, the first action fails with a count of them.

        Nothing is collected. An id that was never rated is predicted from the prior, or as
        ``coldStartStrategy`` says.
        """
        refuse(self.coldStartProblems())
        folded = case_folding(dataset)
        taken = [folded(name) for name in dataset.columns]
        for name, _ in self._outputs(F.lit(None), F.lit(True)):
            if folded(name) in taken:
                raise RequestError(
                    f"output column {name!r} is already there: drop or rename it, or set another "
                    "output name"
                )
            taken.append(folded(name))
        scored, prefix = self.factors.scored(dataset)
        known = scoring.known_pair(prefix)
        outputs = self._outputs(F.col(f"{prefix}_scored"), known)
        if self.getColdStartStrategy() == "drop":
            scored = scored.where(known)
        elif self.getColdStartStrategy() == "nan":
            unknown = dict.fromkeys(self.callColumns().values(), F.lit(False))
            outputs = [
                (name, F.when(known, value).otherwise(unknown.get(name, F.lit(float("nan")))))
                for name, value in outputs
            ]
        columns = (value.alias(name) for name, value in outputs)
        return scored.select("*", *columns).drop(
            f"{prefix}_user", f"{prefix}_item", f"{prefix}_scored"
        )

    def _outputs(self, scored: Column, known: Column) -> list[tuple[str, Column]]:
        own = (
            self.getScoreCol(),
            self.getStdCol(),
            self.getProbabilityCol(),
            self.getPredictionCol(),
        )
        named = list(zip(own, (scored[field] for field in OUTPUTS), strict=True))
        named.append((self.getRawPredictionCol(), scored["score"]))
        names = self.callColumns()
        calls = self.calls(scored["score"], scored["std"], known)
        named += [(names[call], made) for call, made in calls.items()]
        return [(name, column) for name, column in named if name]

    def calls(self, score: Column, std: Column, known: Column) -> dict[Call, Column]:
        """Whether pairs with these scores and standard deviations are answered (``maxError``), or
        called positive or negative (``minPrecision``), for what is certified; ``known`` is whether
        the model knows both ids.
        """
        certified = [call for call in TOWARDS if ungrouped_certificates(self.certificate, call)]
        made = {
            call: scoring.called(self.info, call, self._threshold(call), score, std)
            for call in certified
        }
        return {
            call: one if calls_unknown(self.certificate, call) else one & known
            for call, one in made.items()
        }

    def _threshold(self, call: Call) -> float:
        return calling_threshold(self.certificate, call, self.getMaxError(), self.getMinPrecision())

    def sample(self, dataset: DataFrame, seed: int = 0) -> DataFrame:
        """Append one random draw per pair: ``sampledScore`` and ``sampledPrediction``
        (docs/MATH.md, §9.4).

        The certificates `seeger`, `catoni` and `theorem1` are about this predictor: the sign of a
        fresh draw of the score, not the sign of its mean. See ``FittedModel.sample``.
        """
        sign = F.when(F.col("sampledScore") > 0, 1.0).otherwise(self.info.negative_label)
        return self.factors.sampled(dataset, seed).withColumn("sampledPrediction", sign)

    # ---- recommendations ------------------------------------------------------------------------

    def recommendForAllUsers(
        self,
        numItems: int,
        z: float | None = None,
        excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:
        """The best items of each user: the user and ``recommendations``, an array of structs with
        the best first.

        A struct has the item, ``rating`` (the score), ``std`` and ``probability``. The items are
        ranked by probability; with ``z`` by score − z·std, which prefers items that the model is
        sure of. The pairs of ``excludeSeen``, such as the ratings of the fit, are not recommended.
        With ``answeredOnly`` only pairs are listed for which ``answered`` is true. This gives no
        guarantee for the lists: the certificate is about pairs drawn like the held-out ratings, and
        the best pairs are not drawn like them.
        """
        return self._recommended("user", numItems, z, excludeSeen, answeredOnly)

    def recommendForAllItems(
        self,
        numUsers: int,
        z: float | None = None,
        excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:
        """The best users of each item. The parameters are those of ``recommendForAllUsers``."""
        return self._recommended("item", numUsers, z, excludeSeen, answeredOnly)

    def recommendForUserSubset(
        self,
        dataset: DataFrame,
        numItems: int,
        z: float | None = None,
        excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:
        """The best items of the users in ``dataset``.

        Users that the model does not know are left out.
        """
        return self._recommended("user", numItems, z, excludeSeen, answeredOnly, dataset)

    def recommendForItemSubset(
        self,
        dataset: DataFrame,
        numUsers: int,
        z: float | None = None,
        excludeSeen: DataFrame | None = None,
        answeredOnly: bool = False,
    ) -> DataFrame:
        """The best users of the items in ``dataset``.

        Items that the model does not know are left out.
        """
        return self._recommended("item", numUsers, z, excludeSeen, answeredOnly, dataset)

    def _recommended(
        self,
        who: Who,
        n: int,
        z: float | None,
        seen: DataFrame | None,
        answered: bool,
        subset: DataFrame | None = None,
    ) -> DataFrame:
        floor = self._threshold("answered") if answered else None
        return recommend(self.factors, who, n, z, seen, floor, subset)

    # ---- positions ------------------------------------------------------------------------------

    def positions(
        self,
        who: Literal["user", "item"] = "user",
        dimensions: int | None = None,
        anchors: Anchors | None = None,
    ) -> DataFrame:
        """Positions of the users, or intercepts and slopes of the items, with standard deviations
        (docs/positions.md).

        The parameters and the columns are those of ``FittedModel.positions``, the id is in
        ``userCol`` or ``itemCol``. ``difficulty`` and ``difficulty_std`` are null where one of them
        exceeds 10 in magnitude. ``info.position_axes.shares`` are the shares of the scores'
        variance.
        """
        return positions(self.factors, who, dimensions, anchors)

    def nextQuestions(
        self, users: DataFrame, n: int = 10, excludeSeen: DataFrame | None = None
    ) -> DataFrame:
        """The n items whose answers would say most about each user: see
        ``FittedModel.next_questions``.

        A user that the model does not know is a new one. Pairs of ``excludeSeen`` are not asked.
        The columns are the user, ``rank`` from 1 on, the item and ``information``.
        """
        return next_questions(self.factors, users, n, excludeSeen)

    # ---- new users and items --------------------------------------------------------------------

    def foldIn(
        self,
        ratings: DataFrame,
        who: Literal["user", "item"] = "user",
        threshold: float | None = None,
        features: DataFrame | None = None,
    ) -> OneBitCompletionModel:
        """A model that also knows the users (or the items) in ``ratings``: see
        ``FittedModel.fold_in``.

        ``ratings`` are all ratings of the new users, with the columns of the fit, that of the
        weights included. ``features`` are side features of the new ids, if the model was fitted
        with such features.
        """
        refuse(who_problems(who))
        given = NewRatings.of(
            self.factors, ratings, self.info.threshold if threshold is None else threshold
        )
        changes = fold_in(self.factors, given, who, features) if given.n else {}
        return self._with_ratings(given, changes) if changes else self

    def update(
        self,
        ratings: DataFrame,
        threshold: float | None = None,
        userFeatures: DataFrame | None = None,
        itemFeatures: DataFrame | None = None,
    ) -> OneBitCompletionModel:
        """This model after new ratings, at most 2,000,000, without a refit: see
        ``FittedModel.update``.

        ``ratings`` are the new ratings only, with the columns of the fit. docs/streaming.md is
        about ratings that arrive as a stream.
        """
        given: dict[Who, DataFrame | None] = {"user": userFeatures, "item": itemFeatures}
        features = {who: frame for who, frame in given.items() if frame is not None}
        new = NewRatings.of(
            self.factors, ratings, self.info.threshold if threshold is None else threshold
        )
        return self._with_ratings(new, update(self.factors, new, features)) if new.n else self

    def _with_ratings(self, given: NewRatings, changes: Changes) -> Self:
        sketch = scoring.sketch_of(given.frame, given.columns, given.n, self.sketch_limit)
        return self.with_factors(changes).fittedOn(merged_sketch(self.fitted, sketch))

    def foldInFeatures(
        self, features: DataFrame, who: Literal["user", "item"] = "user"
    ) -> OneBitCompletionModel:
        """A model that also knows these users (or items): see ``FittedModel.fold_in_features``."""
        refuse(who_problems(who))
        changes, added = fold_in_features(self.factors, features, who)
        if not added:
            return self
        warn_dropped(self.certificate, who, added)
        learnt = self.info.side_features or {}
        newcomers = learnt[who]["newcomers"] + added
        known = {**learnt, who: {**learnt[who], "newcomers": newcomers}}
        return self.with_factors(changes, replace(self.info, side_features=known))

    @property
    def userFeatureWeights(self) -> DataFrame:
        """What was learnt from the side features of the users, one line per feature.

        ``feature``; ``effect`` on the score of an item like the mean one; ``intercept`` and
        ``factors``, of which it is made. An effect is that of a string's value, or of one standard
        deviation of a number.
        """
        return self._feature_weights("user")

    @property
    def itemFeatureWeights(self) -> DataFrame:
        """What was learnt from the side features of the items: see ``userFeatureWeights``."""
        return self._feature_weights("item")

    def _feature_weights(self, who: Literal["user", "item"]) -> DataFrame:
        schema = "feature string, effect double, intercept double, factors array<double>"
        return self.users.sparkSession.createDataFrame(feature_effects(self.info, who), schema)

    # ---- quality --------------------------------------------------------------------------------

    def diagnose(
        self,
        ratings: DataFrame,
        source: str = "held-out ratings",
        *,
        fitted: bool = False,
        counts: RatingCounts | None = None,
    ) -> OneBitCompletionModel:
        """This model with the figures of its report, measured on ``ratings``: see
        ``FittedModel.diagnose``.

        ``counts`` is the count of the ratings, if they were checked before.
        """
        return self.diagnose_on(self.judge(ratings, counts=counts), source, fitted)

    def judge(
        self,
        ratings: DataFrame,
        threshold: float | None = None,
        by: str | None = None,
        counts: RatingCounts | None = None,
    ) -> SparkRatings:
        return judge(self.factors, ratings, threshold, by, counts)

    def draw(self, anchors: Anchors | None = None, most: int = MOST_POINTS) -> Figures:
        return draw(self.factors, anchors or {}, most)

    def draw_report(self) -> Figures | None:
        axes = self.info.position_axes
        known = axes is not None and axes.dimensions > 1 and N_RATINGS in self.users.columns
        return self.draw(most=REPORTED) if known else None

    def calibrate(self, ratings: DataFrame) -> OneBitCompletionModel:
        """This model with probabilities that agree with the frequencies in ``ratings``:
        ``FittedModel.calibrate``.
        """
        return self.calibrate_on(self.judge(ratings))

    def certify(
        self,
        ratings: DataFrame,
        maxError: float | Sequence[float] = (),
        delta: float = 0.05,
        by: str | None = None,
        certificateGrid: int = 1,
        minPrecision: Precisions = (),
    ) -> OneBitCompletionModel:
        """This model with an upper limit on the error rate of its predictions: see ``headline``.

        It holds with probability 1 − δ, for pairs drawn like ``ratings`` (docs/MATH.md, §9.2),
        which have the columns of the fit. Ratings that were fitted are refused, and those of weight
        0 do not count. Earlier certificates from ratings that the model had not seen are replaced.
        ``certificateGrid`` settings were compared on these ratings. With ``coldStartStrategy``
        "drop" or "nan", pairs with an unknown id count as not answered, not in ``holdout``.

        ``maxError`` requests error rates among answered pairs: see ``certifySelective``.
        ``minPrecision`` requests precisions among called pairs (§10.6), such as 0.9 for positives
        or "negative:0.99". The model then has columns ``positive`` and ``negative``; at least these
        shares of the pairs that it calls so are. The Param ``minPrecision`` selects one of several
        for each column; by default it is the first. If a precision cannot be met, no pair is called
        so.

        The requests share δ, and with a column ``by``, within each of whose groups they are
        certified as well, so do the groups. The thresholds of groups are reported but not applied.
        """
        request = CertificateRequest.of(maxError, delta, by, certificateGrid, minPrecision)
        return self.withCertificates(self._certified(ratings, request))

    def certifySelective(
        self,
        ratings: DataFrame,
        maxError: float | Sequence[float] = 0.05,
        delta: float = 0.05,
        by: str | None = None,
        certificateGrid: int = 1,
    ) -> OneBitCompletionModel:
        """This model with a column ``answered``.

        Where it is true, at most ``maxError`` of the predictions are wrong.

        This holds with probability 1 − δ, for pairs drawn like ``ratings`` (docs/MATH.md, §10).
        Earlier selective certificates are replaced. Several error rates share δ; the Param
        ``maxError`` selects one, by default the first. If a rate cannot be met, nothing is
        answered. The other parameters are those of ``certify``.
        """
        request = CertificateRequest.of(maxError, delta, by, certificateGrid)
        if not request.rates:
            raise RequestError("maxError must hold at least one error rate")
        _, *selective = self._certified(ratings, request)
        return self.withCertificates(selective, [SELECTIVE])

    def ranking(
        self, ratings: DataFrame, n: int = 10, excludeSeen: DataFrame | None = None
    ) -> Figures:
        """How many positive ratings the lists of ``recommendForAllUsers(n)`` find: see
        ``FittedModel.ranking``.

        ``ratings`` were not fitted, and have the columns of the fit. ``excludeSeen`` are the
        ratings that were fitted.
        """
        on = self.judge(ratings)
        seen = None
        if excludeSeen is not None:
            try:
                seen = self.judge(excludeSeen)
            except NoRatings:
                raise RequestError(NOTHING_SEEN.format("excludeSeen")) from None
        return self.rank_on(on, n, seen)

    def rank_on(self, on: SparkRatings, n: int, seen: SparkRatings | None = None) -> Figures:
        return ranking(self.factors, on, n, seen)

    def _certified(self, ratings: DataFrame, request: CertificateRequest) -> list[Certificate]:
        refuse(self.coldStartProblems())
        scoring.check_request(self.factors, ratings, request)
        return self.certify_on(self.judge(ratings, by=request.by), request)[1]

    def withCertificates(
        self, certificates: Sequence[Certificate], insteadOf: Sequence[str] = OF_PREDICTIONS
    ) -> Self:
        """This model with other certificates: see ``FittedModel.with_certificates``."""
        return self.replace_certificates(certificates, insteadOf)

    def with_certificate(self, certificate: Document) -> Self:
        return self._remade(self.info, {}, certificate)

    def with_info(self, info: ModelInfo) -> Self:
        return self._remade(info, {}, self.certificate)

    def with_factors(self, changes: Changes, info: ModelInfo | None = None) -> Self:
        """This model with other factors, and so without certificates."""
        info = info or self.info
        counts = {who: changes[who].n if who in changes else info.count(who) for who in SIDE_OF}
        return self._remade(
            replace(info, n_users=counts["user"], n_items=counts["item"]), changes, None
        )

    def _remade(self, info: ModelInfo, changes: Changes, certificate: Document | None) -> Self:
        tables: dict[Who, DataFrame] = {"user": self.users, "item": self.items}
        if changes:
            tables |= {who: change.table for who, change in changes.items()}
            plain = {who: plain_columns(info, each.columns) for who, each in tables.items()}
            tables = {who: each.select("id", *plain[who]) for who, each in tables.items()}
        model = type(self)(info, tables["user"], tables["item"], certificate)
        if not changes:
            model._collected = self._collected
        model.source = self.source
        model.readFitted = self.readFitted
        return self._copyValues(model._resetUid(self.uid))

    @property
    def fitted(self) -> CellSketch | None:
        """A sketch of the cells that the model was fitted on.

        None after ``fit_arrays``, and of a checkpoint.
        """
        return None if self.readFitted is None else self.readFitted()

    def fittedOn(self, cells: CellSketch) -> Self:
        """This model with another sketch of the cells that it was fitted on."""
        model = self.with_info(replace(self.info, fitted=cells.described))
        model.readFitted = lambda: cells
        return model

    # ---- what was learnt ------------------------------------------------------------------------

    @property
    def userFactors(self) -> DataFrame:
        """id, features array<float>, spread array<float>: mean and standard deviation of the K
        factors.
        """
        return self._factors(self.users)

    @property
    def itemFactors(self) -> DataFrame:
        """See ``userFactors``."""
        return self._factors(self.items)

    def _factors(self, side: DataFrame) -> DataFrame:
        spread = F.col("spread")
        if self.info.kind == "covariance":
            # V_cc is at position c(c+3)/2 of the packed triangle.
            dimension = self.info.config.dimension
            places = [c * (c + 3) // 2 for c in range(dimension - self.rank, dimension)]
            spread = F.array(
                *(F.sqrt(F.col("covariance")[place]).cast("float") for place in places)
            )
        return side.select("id", F.col("mean").alias("features"), spread.alias("spread"))

    @property
    def rank(self) -> int:
        """K, the largest number of factors."""
        return self.info.config.factors

    @property
    def effectiveRank(self) -> int:
        """Number of factors in use (docs/MATH.md, §8.5)."""
        return self.info.effective_rank

    @property
    def summary(self) -> TrainingSummary:
        """How the fit went."""
        info = self.info
        return TrainingSummary(
            info.objective_history, info.iterations, info.converged, info.reason, info.seconds
        )

    def exportVectors(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write vectors whose inner product is the score: see ``FittedModel.export_vectors``."""
        spark = self.users.sparkSession
        if Location(spark, path).uri == self.source:
            raise RequestError(
                f"the model was loaded from {path} and still reads its factors there: export them "
                "elsewhere"
            )
        one = F.lit(1.0).cast("float")
        intercept = F.col("intercept")
        ends = {"users": (one, intercept), "items": (intercept, one)}
        with described(spark, "writing"), replace_folder(spark, path, VECTORS, overwrite) as folder:
            for name, factors in (("users", self.users), ("items", self.items)):
                vector = (
                    F.concat("mean", F.array(*ends[name]))
                    if self.info.config.intercepts
                    else F.col("mean")
                )
                factors.select("id", vector.alias("vector")).write.parquet(
                    (Location(spark, folder) / name).uri
                )
            (Location(spark, folder) / SEAL).write_text("")

    def write(self) -> ModelWriter:
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        return ModelReader(cls)


def _types(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


# ---- the folder --------------------------------------------------------------------------------


class ModelWriter(MLWriter):
    """``model.write()``.

    The folder appears whole or not at all. An old one remains until the new one is complete.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str | os.PathLike[str]) -> None:
        spark = self._model.users.sparkSession
        if Location(spark, path).uri == self._model.source:
            raise RequestError(
                f"the model was loaded from {path} and still reads its factors there: save it "
                "elsewhere"
            )
        with (
            described(spark, "writing"),
            replace_folder(spark, path, MODEL, self.shouldOverwrite) as folder,
        ):
            write_model(self._model, folder)


def write_model(model: Any, folder: str) -> None:
    spark = model.users.sparkSession
    with ThreadPoolExecutor(1) as beside:  # the report is drawn while Spark writes
        page = beside.submit(page_of, model.info, model.certificate)
        for name, factors in (("users", model.users), ("items", model.items)):
            _write_factors(factors, Location(spark, folder) / name, model.factors.fit_driver(0))
        if model.fitted is not None:
            _write_parquet(model.fitted.table, Location(spark, folder) / FITTED)
        DefaultParamsWriter.saveMetadata(model, folder, spark)
        (Location(spark, folder) / CERTIFICATE).write_text(
            json.dumps(model.certificate, indent=2, ensure_ascii=False)
        )
        if text := page.result():
            (Location(spark, folder) / REPORT).write_text(text)
    (Location(spark, folder) / METADATA).write_text(model.info.to_json())


def _write_factors(factors: DataFrame, folder: Location, small: bool) -> None:
    """Write a small table as Parquet in this process, which is faster than a Spark job; a large one
    with Spark.
    """
    if small:
        # Ids of a type that only Spark can write
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):
            _write_parquet(collected_factors(factors), folder)
            return
    factors.write.parquet(folder.uri)


def _write_parquet(table: pa.Table, folder: Location) -> None:
    content = io.BytesIO()
    pq.write_table(table, content)
    (folder / "part-00000.parquet").write_bytes(content.getvalue())


class ModelReader(MLReader[Any]):
    """``OneBitCompletionModel.read()``. A damaged folder raises a RequestError of one line."""

    def __init__(self, model_class: type[Any]) -> None:
        super().__init__()
        self._class = model_class

    def load(self, path: str | os.PathLike[str]) -> Any:
        folder = Location(self.sparkSession, path)
        check_model(folder, path)
        try:
            info = ModelInfo.from_json((folder / METADATA).read_text())
            factors = []
            for part in (self._part(folder, name) for name in ("users", "items")):
                with explained(f"damaged model folder: {part.name}/"):
                    factors.append(read_parquet(part))
            certificate = certificate_of(folder)
            with explained("damaged model folder"):
                model = self._class(info, *factors, certificate)
            if info.fitted is not None:
                model.readFitted = partial(_read_sketch, self._part(folder, FITTED), **info.fitted)
            read_params(model, folder, "damaged model folder: metadata/")
        except RequestError as error:
            raise RequestError(f"cannot load {path}: {error}") from None
        model.source = folder.uri
        return model

    def _part(self, folder: Location, name: str) -> Location:
        if not (folder / name).is_folder():
            raise RequestError(f"damaged model folder: it has no {name}/")
        return folder / name


def _read_sketch(folder: Location, limit: int, complete: bool) -> CellSketch:
    with explained("damaged model folder: fitted/"):
        cells = (
            folder.spark.read.schema("hash bigint, ratings bigint").parquet(folder.uri).toArrow()
        )
    return CellSketch.of_table(cells, limit, complete)


def read_parquet(folder: Location) -> DataFrame:
    frame = folder.spark.read.parquet(folder.uri)
    _ = frame.schema  # Spark Connect reads the files only now
    return frame
