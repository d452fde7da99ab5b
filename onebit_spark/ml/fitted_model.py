"""SparkModel: the factors and the predictions of a fitted model. Further methods are in ``model``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.util import MLReadable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from onebit_spark.certificate.certificates import Certificate, certificate_document
from onebit_spark.certificate.held_out import ungrouped_certificates
from onebit_spark.core.factor_tables import CERTIFIED, DIRECTIONS, factor_columns
from onebit_spark.core.fitted_features import SIDE_OF, Who
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.posterior import packed_size
from onebit_spark.core.sketch import CellSketch
from onebit_spark.engines.tables import collected_factors, factor_frame, factor_schema
from onebit_spark.errors import RequestError, refuse
from onebit_spark.input.columns import INTEGRAL, case_folding, checked_ids, missing, quoted, type_of
from onebit_spark.ml.params import AnswerParams
from onebit_spark.ml.selection import answers, chosen_threshold
from onebit_spark.platform.arrow_stream import arrow_udf
from onebit_spark.platform.sessions import as_bytes
from onebit_spark.predictor.fitted_model import FittedModel
from onebit_spark.predictor.predictor import OUTPUTS, Predictor
from onebit_spark.predictor.side import ModelSide

SCORED = StructType([StructField(name, DoubleType()) for name in OUTPUTS])

# A small model is asked on the driver: no Python worker has to start, and nothing is joined.
MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables


@dataclass(frozen=True)
class TrainingSummary:
    """How the fit went.

    Parameters
    ----------
    objectiveHistory : list of float
        The objective after each iteration. It is minimised.
    totalIterations : int
        Number of iterations.
    converged : bool
        Whether the stopping rule held.
    reason : str
        Why the fit stopped.
    seconds : dict
        Seconds of each phase.
    validationHistory : list of dict
        Held-out loss and error rate after each iteration, with ``validationIndicatorCol``.
    """

    objectiveHistory: list[float]
    totalIterations: int
    converged: bool
    reason: str
    seconds: dict[str, float]
    validationHistory: list[dict[str, float]]


class SparkModel(Model, AnswerParams, MLReadable[Any]):
    """Base class of ``OneBitCompletionModel``, which documents the attributes."""

    def __init__(
        self, info: ModelInfo, users: DataFrame, items: DataFrame, certificate: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.info = info
        self.certificate = certificate or certificate_document([])
        self.users = users
        self.items = items
        self.source: str | None = None  # folder of a loaded model
        self.readFitted: Callable[[], CellSketch] | None = None  # see ``fitted``
        self._collected: list[tuple[ModelSide, ModelSide]] = []  # shared by copies: see ``served``
        self._setDefault(userCol=info.columns["user"], itemCol=info.columns["item"])
        for who in SIDE_OF:
            schema = self.factorsOf(who).schema
            actual, expected = _types(schema), _types(factor_schema(info, who, DIRECTIONS in schema.names))
            if actual != expected:
                raise RequestError(f"damaged model folder: {who}s/ should have the columns {expected}, not {actual}")

    @classmethod
    def from_tables(
        cls, spark: SparkSession, info: ModelInfo, users: pa.Table, items: pa.Table,
        certificates: Iterable[Certificate] = (),
    ) -> Self:  # fmt: skip
        """A model from factor tables in this process (``factor_tables.factor_table``).

        Spark sends the tables to the executors with every job that needs them. A model that was saved and loaded reads
        Parquet instead.
        """
        user_frame, item_frame = (
            factor_frame(spark, table, factor_schema(info, side, DIRECTIONS in table.column_names))
            for side, table in (("user", users), ("item", items))
        )
        return cls(info, user_frame, item_frame, certificate_document(item.as_dict() for item in certificates))

    def factorsOf(self, who: Who) -> DataFrame:
        """``users`` or ``items``."""
        return self.users if who == "user" else self.items

    def idCol(self, who: Who) -> str:
        """``userCol`` or ``itemCol``."""
        return self.getUserCol() if who == "user" else self.getItemCol()

    # ---- prediction --------------------------------------------------------------------------------------------------

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Append the output columns. If there are null or NaN ids, the first action fails with a count of them.

        Nothing is collected. The factors are joined to the pairs (left joins on unique ids), and only the factors are
        sent to Python. An id that was never rated is predicted from the prior, or as ``coldStartStrategy`` says.
        """
        refuse(self.coldStartProblems())
        self._check_outputs(dataset)
        joined, prefix = self._joined(dataset, factor_columns(self.info.kind, self.info.config.intercepts))
        known_pair = F.col(f"{prefix}_user").isNotNull() & F.col(f"{prefix}_item").isNotNull()
        if self.getColdStartStrategy() == "drop":
            joined = joined.where(known_pair)
        factors = f"{prefix}_user", f"{prefix}_item"
        predictor = Predictor.of(self.info)

        def score(users: pa.Array, items: pa.Array) -> pa.Array:
            return predictor.score_lines((users, items))

        scoring = arrow_udf(score, [joined.schema[name].dataType for name in factors], SCORED)
        scored = joined.withColumn(f"{prefix}_scored", scoring(*factors))
        outputs = self._outputs(F.col(f"{prefix}_scored"))
        if self.getColdStartStrategy() == "nan":
            unknown = {self.getAnsweredCol(): F.lit(False)}
            outputs = [
                (name, F.when(known_pair, value).otherwise(unknown.get(name, F.lit(float("nan")))))
                for name, value in outputs
            ]
        return scored.select("*", *(value.alias(name) for name, value in outputs)).drop(
            f"{prefix}_user", f"{prefix}_item", f"{prefix}_scored"
        )

    def _joined(self, dataset: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, str]:
        """The pairs with these columns of both factor tables, as structs PREFIX_user and PREFIX_item or null."""
        prefix = "__onebit"
        while any(name.lower().startswith(prefix) for name in dataset.columns):
            prefix += "_"
        for who in SIDE_OF:
            self.checkIdType(dataset, who)
        checked = checked_ids(dataset, [self.idCol(who) for who in SIDE_OF])
        joined = dataset.withColumns({f"{prefix}_{who}_key": ids for who, ids in zip(SIDE_OF, checked, strict=True)})
        for who in SIDE_OF:
            key, known = f"{prefix}_{who}_key", f"{prefix}_{who}_id"
            right = self.factorsOf(who).select(F.col("id").alias(known), F.struct(*columns).alias(f"{prefix}_{who}"))
            joined = joined.join(right.hint(self._join_hint(who)), F.col(key) == F.col(known), "left").drop(key, known)
        return joined, prefix

    def fitsHere(self, pairs: int) -> bool:
        """Whether the model and so many pairs are small enough to be asked on the driver."""
        return pairs <= MOST_PAIRS and (self.info.n_users + self.info.n_items) * self.bytesPerRow <= MOST_BYTES

    def served(self) -> FittedModel:
        """This model on the driver. Its factors are collected when they are first asked for. For small models."""
        if not self._collected:
            users, items = collected_factors(self.users), collected_factors(self.items)
            self._collected.append((ModelSide.of(users, self.info, "user"), ModelSide.of(items, self.info, "item")))
        return FittedModel(self.info, *self._collected[0], self.certificate)

    def sample(self, dataset: DataFrame, seed: int = 0) -> DataFrame:
        """Append one random draw per pair: ``sampledScore`` and ``sampledPrediction`` (docs/MATH.md, §9.4).

        The certificates `seeger`, `catoni`, `theorem1` and `prior_split` are about this predictor: the sign of a fresh
        draw of the score, not the sign of its mean. A draw is a function of the seed and the two ids. Another seed
        gives other draws. After a prior split the draws have smaller standard deviations than ``std``. Ids that the
        model does not know are drawn from its prior.

        Parameters
        ----------
        dataset : DataFrame
            Pairs of user and item ids.
        seed : int
            Seed of the draws.
        """
        info = self.info
        if info.scale_moments is None:
            raise RequestError("the model was saved by a version without random draws: fit it again")
        split = info.draw_narrowing is not None
        columns = [*factor_columns(info.kind, info.config.intercepts), *([CERTIFIED] if split else [])]
        joined, prefix = self._joined(dataset, columns)
        predictor = Predictor.of(info)

        def draw(users: pa.Array, items: pa.Array, keys: pa.Array) -> pa.Array:
            return predictor.sample_lines((users, items), keys, seed)

        ids = (F.col(quoted(self.idCol(who))).cast(info.id_types[who]) for who in SIDE_OF)
        factors = f"{prefix}_user", f"{prefix}_item"
        lines = [joined.schema[name].dataType for name in factors]
        score = arrow_udf(draw, [*lines, LongType()], DoubleType())(*factors, F.xxhash64(*ids))
        drawn = joined.withColumn("sampledScore", score)
        sign = F.when(F.col("sampledScore") > 0, 1.0).otherwise(info.negative_label)
        return drawn.withColumn("sampledPrediction", sign).drop(f"{prefix}_user", f"{prefix}_item")

    def checkIds(self, dataset: DataFrame) -> None:
        """Count null and NaN ids in one job, and raise a RequestError if there are any."""
        for who in SIDE_OF:
            self.checkIdType(dataset, who)
        columns = [self.idCol(who) for who in SIDE_OF]
        counts = dataset.select(*(F.count_if(missing(dataset, column)) for column in columns)).first()
        assert counts is not None
        problems = [
            f"column {column!r} holds {n:,} null or NaN ids" for column, n in zip(columns, counts, strict=True) if n
        ]
        if problems:
            raise RequestError("; ".join(problems) + ": drop or fill such rows")

    def _join_hint(self, who: Who) -> str:
        """Broadcast a side up to the session's limit. Spark's own estimate is far too small: one element per array."""
        limit = as_bytes(str(self.users.sparkSession.conf.get("spark.sql.autoBroadcastJoinThreshold")))
        return "broadcast" if self.info.count(who) * self.bytesPerRow <= limit else "merge"

    @property
    def bytesPerRow(self) -> int:
        """Approximate memory of one id with its factors."""
        dimension = self.info.config.dimension
        floats = dimension + (dimension if self.info.kind == "spread" else packed_size(dimension))
        return 4 * floats + 64

    def _outputs(self, scored: Column) -> list[tuple[str, Column]]:
        """The output columns that are not omitted, in order."""
        named = [
            (self.getScoreCol(), scored["score"]),
            (self.getStdCol(), scored["std"]),
            (self.getProbabilityCol(), scored["probability"]),
            (self.getPredictionCol(), scored["prediction"]),
            (self.getRawPredictionCol(), scored["score"]),
        ]
        if self.certifiedErrors and self.getAnsweredCol():
            named.append((self.getAnsweredCol(), answers(self, scored["score"], scored["std"])))
        return [(name, column) for name, column in named if name]

    def _check_outputs(self, dataset: DataFrame) -> None:
        folded = case_folding(dataset)
        taken = [folded(name) for name in dataset.columns]
        for name, _ in self._outputs(F.lit(None)):
            if folded(name) in taken:
                raise RequestError(
                    f"output column {name!r} is already there: drop or rename it, or set another output name"
                )
            taken.append(folded(name))

    def checkIdType(self, dataset: DataFrame, who: Who) -> None:
        """Refuse a column of ids whose type is not that of the model's.

        Integers of different widths are accepted. Any other cast could merge or split ids, so the user must do it.
        """
        column, expected = self.idCol(who), self.info.id_types[who]
        actual = type_of(dataset, column).simpleString()
        if actual != expected and not (actual in INTEGRAL and expected in INTEGRAL):
            raise RequestError(
                f"column {column!r} is of type {actual}, but the model's {who} ids are of type {expected}: "
                f"cast the column to {expected}"
            )

    def _floor(self, answeredOnly: bool) -> float | None:
        """The least confidence of a pair in a list, or None."""
        return chosen_threshold(self) if answeredOnly else None

    def changed(self, users: DataFrame | None = None, items: DataFrame | None = None, **info: Any) -> Self:
        """This model with other factors, or with other fields of its ``info``.

        Certificates are about the factors of the model. A model with other factors has no certificates, and no spreads
        of certified draws.
        """
        if users is None and items is None:
            model = type(self)(replace(self.info, **info), self.users, self.items, self.certificate)
            model._collected = self._collected
        else:
            plain = ["id", *factor_columns(*self.info.table_form)]
            model = type(self)(
                replace(self.info, draw_narrowing=None, nine_tenths=None, **info),
                (self.users if users is None else users).select(*plain),
                (self.items if items is None else items).select(*plain),
            )
        model.source, model.readFitted = self.source, self.readFitted
        return self._copyValues(model._resetUid(self.uid))

    # ---- what it was fitted on ---------------------------------------------------------------------------------------

    @property
    def fitted(self) -> CellSketch | None:
        """A sketch of the cells that the model was fitted on. None if an older version saved the model."""
        return None if self.readFitted is None else self.readFitted()

    def fittedOn(self, cells: CellSketch) -> Self:
        """This model with another sketch of the cells that it was fitted on."""
        model = self.changed(fitted=cells.described)
        model.readFitted = lambda: cells
        return model

    @property
    def certifiedErrors(self) -> list[float]:
        """The error rates that were requested, also those that could not be met."""
        return [item["request"] for item in ungrouped_certificates(self.certificate)]

    # ---- what was learnt ---------------------------------------------------------------------------------------------

    @property
    def userFactors(self) -> DataFrame:
        """id, features array<float>, spread array<float>: mean and standard deviation of the K factors."""
        return self._factors(self.users)

    @property
    def itemFactors(self) -> DataFrame:
        """id, features array<float>, spread array<float>: mean and standard deviation of the K factors."""
        return self._factors(self.items)

    def _factors(self, side: DataFrame) -> DataFrame:
        spread = F.col("spread")
        if self.info.kind == "covariance":
            # V_cc is at position c(c+3)/2 of the packed triangle.
            dimension = self.info.config.dimension
            places = [c * (c + 3) // 2 for c in range(dimension - self.rank, dimension)]
            spread = F.array(*(F.sqrt(F.col("covariance")[place]).cast("float") for place in places))
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
            info.objective_history, info.iterations, info.converged, info.reason, info.seconds, info.validation
        )


def _types(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
