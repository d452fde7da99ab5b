"""SparkFactors: the factor tables of a model on Spark, and the scores of pairs by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from onebit_spark.certificate.certificates import certificate_document
from onebit_spark.core import prediction
from onebit_spark.core.model_info import CERTIFIED, SIDE_OF, ModelInfo, Who, factor_columns
from onebit_spark.core.posterior import packed_size
from onebit_spark.engines.tables import collected_factors
from onebit_spark.errors import RequestError
from onebit_spark.input.ratings import INTEGRAL, checked_ids, missing, quoted, type_of
from onebit_spark.platform.arrow_stream import arrow_udf
from onebit_spark.platform.sessions import as_bytes
from onebit_spark.predictor.fitted_model import FittedModel
from onebit_spark.predictor.predictor import OUTPUTS, ModelSide, Predictor

SCORED = StructType([StructField(name, DoubleType()) for name in OUTPUTS])

# Small models predict on the driver: no Python worker has to start, and nothing is joined.
MOST_PAIRS = 2_000_000
MOST_BYTES = 128 * 2**20  # of both factor tables


@dataclass(frozen=True, eq=False)
class SparkFactors:
    """The factor tables of a model, one line per id, and the columns of ids in the user's DataFrames."""

    info: ModelInfo
    users: DataFrame  # see ``core.model_info``
    items: DataFrame
    columns: Mapping[Who, str]  # ``userCol`` and ``itemCol``
    collected: list[tuple[ModelSide, ModelSide]] = field(default_factory=list)  # both tables on the driver, or nothing

    def of(self, who: Who) -> DataFrame:
        """``users`` or ``items``."""
        return self.users if who == "user" else self.items

    @property
    def spark(self) -> SparkSession:
        return self.users.sparkSession

    @property
    def bytes_per_row(self) -> int:
        """Approximate memory of one id with its factors."""
        dimension = self.info.config.dimension
        floats = dimension + (dimension if self.info.kind == "spread" else packed_size(dimension))
        return 4 * floats + 64

    def fit_driver(self, pairs: int) -> bool:
        """Whether the tables and so many pairs are small enough for the driver."""
        rows = self.info.n_users + self.info.n_items
        return pairs <= MOST_PAIRS and rows * self.bytes_per_row <= MOST_BYTES

    def on_driver(self) -> FittedModel:
        """The model on the driver, without certificates. The tables are collected the first time."""
        if not self.collected:
            users, items = collected_factors(self.users), collected_factors(self.items)
            self.collected.append((ModelSide.of(users, self.info, "user"), ModelSide.of(items, self.info, "item")))
        return FittedModel(self.info, *self.collected[0], certificate_document([]))

    # ---- ids ---------------------------------------------------------------------------------------------------------

    def check_id_type(self, dataset: DataFrame, who: Who) -> None:
        """Refuse a column of ids whose type is not that of the model's.

        Integers of different widths are accepted. Any other cast could merge or split ids, so the user must do it.
        """
        column, expected = self.columns[who], self.info.id_types[who]
        actual = type_of(dataset, column).simpleString()
        if actual != expected and not (actual in INTEGRAL and expected in INTEGRAL):
            raise RequestError(
                f"column {column!r} is of type {actual}, but the model's {who} ids are of type {expected}: "
                f"cast the column to {expected}"
            )

    def check_ids(self, dataset: DataFrame) -> None:
        """Count null and NaN ids in one job, and raise a RequestError if there are any."""
        for who in SIDE_OF:
            self.check_id_type(dataset, who)
        columns = [self.columns[who] for who in SIDE_OF]
        counts = dataset.select(*(F.count_if(missing(dataset, column)) for column in columns)).first()
        absent = [(column, n) for column, n in zip(columns, counts or (), strict=True) if n]
        if problems := [f"column {column!r} holds {n:,} null or NaN ids" for column, n in absent]:
            raise RequestError("; ".join(problems) + ": drop or fill such rows")

    # ---- pairs -------------------------------------------------------------------------------------------------------

    def scored(self, dataset: DataFrame) -> tuple[DataFrame, str]:
        """The pairs with their scores, computed by the executors. Nothing is collected.

        The factors are joined to the pairs (left joins on unique ids), and only the factors are sent to Python.

        Returns the pairs with the columns PREFIX_user and PREFIX_item, null for an unknown id, and PREFIX_scored, a
        struct of ``OUTPUTS``; and PREFIX.
        """
        joined, prefix = self._joined(dataset, factor_columns(self.info.kind, self.info.config.intercepts))
        factors = f"{prefix}_user", f"{prefix}_item"
        predictor = Predictor.of(self.info)

        def score(users: pa.Array, items: pa.Array) -> pa.Array:
            return predictor.score_lines((users, items))

        scoring = arrow_udf(score, [joined.schema[name].dataType for name in factors], SCORED)
        return joined.withColumn(f"{prefix}_scored", scoring(*factors)), prefix

    def scored_here(self, pairs: DataFrame) -> pa.Table:
        """The pairs with ``OUTPUTS``, unknown_user and unknown_item, on the driver. Ids must not be null.

        One job collects the pairs, two more the factors of a model that was loaded, the first time.
        """
        for who in SIDE_OF:
            self.check_id_type(pairs, who)
        model, table = self.on_driver(), pairs.toArrow()
        rows, cols = (model.side(who).positions(table[self.columns[who]]) for who in SIDE_OF)
        for name, values in {**model.predicted(rows, cols), "unknown_user": rows < 0, "unknown_item": cols < 0}.items():
            table = table.append_column(name, pa.array(values))
        return table

    def sampled(self, dataset: DataFrame, seed: int) -> DataFrame:
        """The pairs with one random draw each, ``sampledScore`` (docs/MATH.md, §9.4)."""
        info = self.info
        if info.scale_moments is None:
            raise RequestError("the model was saved by a version without random draws: fit it again")
        certified = [] if info.draw_narrowing is None else [CERTIFIED]
        joined, prefix = self._joined(dataset, [*factor_columns(info.kind, info.config.intercepts), *certified])
        predictor = Predictor.of(info)

        def draw(users: pa.Array, items: pa.Array, keys: pa.Array) -> pa.Array:
            return predictor.sample_lines((users, items), keys, seed)

        ids = (F.col(quoted(self.columns[who])).cast(info.id_types[who]) for who in SIDE_OF)
        factors = f"{prefix}_user", f"{prefix}_item"
        types = [*(joined.schema[name].dataType for name in factors), LongType()]
        score = arrow_udf(draw, types, DoubleType())(*factors, F.xxhash64(*ids))
        return joined.withColumn("sampledScore", score).drop(*factors)

    def _joined(self, dataset: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, str]:
        """The pairs with these columns of both factor tables, as structs PREFIX_user and PREFIX_item or null."""
        prefix = "__onebit"
        while any(name.lower().startswith(prefix) for name in dataset.columns):
            prefix += "_"
        for who in SIDE_OF:
            self.check_id_type(dataset, who)
        checked = checked_ids(dataset, [self.columns[who] for who in SIDE_OF])
        limit = as_bytes(str(self.spark.conf.get("spark.sql.autoBroadcastJoinThreshold")))
        joined = dataset.withColumns({f"{prefix}_{who}_key": ids for who, ids in zip(SIDE_OF, checked, strict=True)})
        for who in SIDE_OF:
            key, known = f"{prefix}_{who}_key", f"{prefix}_{who}_id"
            right = self.of(who).select(F.col("id").alias(known), F.struct(*columns).alias(f"{prefix}_{who}"))
            # Broadcast up to the session's limit. Spark's own estimate is far too small: one element per array.
            hint = "broadcast" if self.info.count(who) * self.bytes_per_row <= limit else "merge"
            joined = joined.join(right.hint(hint), F.col(key) == F.col(known), "left").drop(key, known)
        return joined, prefix


def confidence(info: ModelInfo, score: Column, std: Column) -> Column:
    """|score|/√(c + std²) as in ``core.prediction``; c is the noise of the loss, also in a calibrated model."""
    root = F.sqrt(F.lit(prediction.score_noise(info.config.loss)) + std * std)
    return F.when(score == 0, 0.0).when(root == 0, float("inf")).otherwise(F.abs(score) / root)
