"""OneBitCompletionModel: predictions with their spread and probability, the pyspark.ml way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from onebit_spark.certification import Certificate, document
from onebit_spark.columns import missing, quoted
from onebit_spark.errors import RequestError
from onebit_spark.params import PredictionParams
from onebit_spark.persistence import ModelInfo, ModelReader, ModelWriter
from onebit_spark.posterior import packed_size
from onebit_spark.scoring import Scorer, prior_row

INTEGRAL = ("tinyint", "smallint", "int", "bigint")
BATCH_BYTES = 16 * 2**20  # of a table on its way into Spark: a task carries its batch, and may carry 128 MB


@dataclass(frozen=True)
class TrainingSummary:
    """How the fit went; ``objectiveHistory`` is minimised."""

    objectiveHistory: list[float]
    totalIterations: int
    converged: bool
    reason: str
    seconds: dict[str, float]


class OneBitCompletionModel(Model, PredictionParams, MLWritable, MLReadable["OneBitCompletionModel"]):
    """A fitted model: ``info``, and the posterior of both sides as DataFrames of one line an id (see ``scoring``).

    ``certificate`` holds upper limits on the error rate: the content of ``certificate.json``.
    """

    def __init__(
        self, info: ModelInfo, users: DataFrame, items: DataFrame, certificate: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.info = info
        self.certificate = certificate or document([])
        self.users = users
        self.items = items
        self.source: str | None = None  # the folder that the factors are read from, if any
        self._setDefault(userCol=info.columns["user"], itemCol=info.columns["item"])
        for side, name, factors in (("user", "users", users), ("item", "items", items)):
            found, expected = _types(factors.schema), _types(info.factor_schema(side))
            if found != expected:
                raise RequestError(f"damaged model folder: {name}/ should have the columns {expected}, not {found}")

    @classmethod
    def from_tables(
        cls, spark: SparkSession, info: ModelInfo, users: pa.Table, items: pa.Table,
        certificates: Iterable[Certificate] = (),
    ) -> OneBitCompletionModel:  # fmt: skip
        """The model from factor tables in this process (``scoring.factor_table``).

        They travel to the executors with every job that needs them; a saved and loaded model reads Parquet instead.
        """
        user_frame, item_frame = (
            spark.createDataFrame(_rebatched(table), schema=info.factor_schema(side))
            for side, table in (("user", users), ("item", items))
        )
        return cls(info, user_frame, item_frame, document(item.as_dict() for item in certificates))

    # ---- prediction --------------------------------------------------------------------------------------------------

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Append the output columns. Lazy: a null or NaN id ends the first action with the column's name.

        Nothing is collected: the factors join the pairs (left joins on unique ids), and only they enter Python.
        An id that was never rated has the prior's mean and spread, so no prediction is ever null.
        """
        self._check_outputs(dataset)
        prefix = "__onebit"
        while any(name.lower().startswith(prefix) for name in dataset.columns):
            prefix += "_"
        joined = dataset
        for side, column, factors in self._sides():
            self._check_id_type(dataset, side, column)
            key, known = f"{prefix}_{side}_key", f"{prefix}_{side}_id"
            message = f"column {column!r} holds a null or NaN id: drop or fill such rows before transform"
            checked = F.when(missing(dataset, column), F.raise_error(F.lit(message))).otherwise(F.col(quoted(column)))
            lines = F.struct(*(name for name in factors.columns if name != "id"))
            right = factors.select(F.col("id").alias(known), lines.alias(f"{prefix}_{side}")).hint(
                self._join_hint(side)
            )
            joined = joined.withColumn(key, checked).join(right, F.col(key) == F.col(known), "left").drop(key, known)
        scored = joined.withColumn(f"{prefix}_scored", self._scoring_udf()(f"{prefix}_user", f"{prefix}_item"))
        outputs = [value.alias(name) for name, value in self._outputs(F.col(f"{prefix}_scored"))]
        return scored.select("*", *outputs).drop(f"{prefix}_user", f"{prefix}_item", f"{prefix}_scored")

    def checkIds(self, dataset: DataFrame) -> None:
        """Count null and NaN ids now, in one job, and raise a RequestError if there are any."""
        columns = [column for _, column, _ in self._sides()]
        for side, column, _ in self._sides():
            self._check_id_type(dataset, side, column)
        counts = dataset.select(*(F.count_if(missing(dataset, column)) for column in columns)).first()
        assert counts is not None
        told = [
            f"column {column!r} holds {n:,} null or NaN ids" for column, n in zip(columns, counts, strict=True) if n
        ]
        if told:
            raise RequestError("; ".join(told) + ": drop or fill such rows")

    def _sides(self) -> list[tuple[str, str, DataFrame]]:
        return [("user", self.getUserCol(), self.users), ("item", self.getItemCol(), self.items)]

    def _join_hint(self, side: str) -> str:
        """Broadcast a side within the session's limit. Said outright: Spark guesses one element an array, far off."""
        n_rows = self.info.n_users if side == "user" else self.info.n_items
        dimension = self.info.config.dimension
        floats = dimension + (dimension if self.info.kind == "spread" else packed_size(dimension))
        limit = self.users.sparkSession._jsparkSession.sessionState().conf().autoBroadcastJoinThreshold()
        return "broadcast" if n_rows * (4 * floats + 64) <= limit else "merge"

    def _scoring_udf(self) -> Callable[..., Column]:
        intercepts, kind, scales = self.info.config.intercepts, self.info.kind, self.info.scales
        scorer = Scorer(
            self.info.config.loss,
            prior_row(scales, "rows", kind, intercepts),
            prior_row(scales, "cols", kind, intercepts),
        )

        def score(users: pa.Array, items: pa.Array) -> pa.Array:
            return scorer(users, items)

        return F.arrow_udf(score, returnType="score double, std double, probability double")  # type: ignore[call-overload]

    def _outputs(self, scored: Column) -> list[tuple[str, Column]]:
        """The wanted output columns, in order."""
        score, negative = scored["score"], -1.0 if self.info.label_coding == "signed" else 0.0
        majority = 1.0 if self.info.majority > 0 else negative
        prediction = F.when(score > 0, 1.0).when(score < 0, negative).otherwise(majority)
        named = [
            (self.getScoreCol(), score),
            (self.getStdCol(), scored["std"]),
            (self.getProbabilityCol(), scored["probability"]),
            (self.getPredictionCol(), prediction),
            (self.getRawPredictionCol(), score),
        ]
        return [(name, column) for name, column in named if name]

    def _check_outputs(self, dataset: DataFrame) -> None:
        folded = _case_folding(dataset)
        taken = [folded(name) for name in dataset.columns]
        for name, _ in self._outputs(F.lit(None)):
            if folded(name) in taken:
                raise RequestError(
                    f"output column {name!r} is already there: drop or rename it, or set another output name"
                )
            taken.append(folded(name))

    def _check_id_type(self, dataset: DataFrame, side: str, column: str) -> None:
        """Integral widths interchange; any other cast could merge or split ids, so it is left to the user."""
        found = _type_of(dataset, column).simpleString()
        expected = self.info.id_types[side]
        if found != expected and not (found in INTEGRAL and expected in INTEGRAL):
            raise RequestError(
                f"column {column!r} is of type {found}, but the model's {side} ids are of type {expected}: "
                f"cast the column to {expected}"
            )

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
            # V_cc stands at c(c+3)/2 of the packed triangle.
            places = [
                c * (c + 3) // 2 for c in range(self.info.config.dimension - self.rank, self.info.config.dimension)
            ]
            spread = F.array(*(F.sqrt(F.col("covariance")[place]).cast("float") for place in places))
        return side.select("id", F.col("mean").alias("features"), spread.alias("spread"))

    @property
    def rank(self) -> int:
        return self.info.config.rank

    @property
    def effectiveRank(self) -> int:
        """Columns with ‖E L_k‖·‖E R_k‖ above 1% of the largest."""
        return self.info.effective_rank

    @property
    def summary(self) -> TrainingSummary:
        info = self.info
        return TrainingSummary(info.objective_history, info.iterations, info.converged, info.reason, info.seconds)

    # ---- the folder --------------------------------------------------------------------------------------------------

    def write(self) -> ModelWriter:
        return ModelWriter(self)

    @classmethod
    def read(cls) -> ModelReader:
        return ModelReader(cls)


def _types(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _case_folding(dataset: DataFrame) -> Callable[[str], str]:
    """How the session compares column names."""
    return str if dataset.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def _type_of(dataset: DataFrame, column: str) -> DataType:
    """The type of a column. Asked of the schema, for Spark answers ``col("user")`` with a function where none is."""
    folded = _case_folding(dataset)
    found = [field.dataType for field in dataset.schema if folded(field.name) == folded(column)]
    if len(found) != 1:
        number = "no column" if not found else f"{len(found)} times the column"
        raise RequestError(f"there is {number} {column!r} (columns: {', '.join(dataset.columns)})")
    return found[0]


def _rebatched(table: pa.Table) -> pa.Table:
    """The same table in batches of bounded size: Spark cuts by rows only, and a wide row has a wide covariance."""
    rows = max(1, BATCH_BYTES * max(1, table.num_rows) // max(1, table.nbytes))
    return pa.Table.from_batches(table.to_batches(max_chunksize=rows), table.schema)
