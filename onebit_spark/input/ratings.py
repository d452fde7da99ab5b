"""The ratings of a DataFrame under the names that are used inside, and what is read off them as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, DoubleType, FloatType, StringType

from onebit_spark.input.columns import INTEGRAL, quoted, type_of, weight_number
from onebit_spark.input.defects import BIT, Columns, cell_hash, label_number, positive
from onebit_spark.input.hashes import cell_hashes, hash_sums

USER, ITEM, LABEL, WEIGHT = "__onebit_user", "__onebit_item", "__onebit_label", "__onebit_weight"
HASH = "__onebit_hash"


def prepared(df: DataFrame, columns: Columns, *further: str) -> DataFrame:
    """(user, item, positive), the weights if there are any, and ``further`` columns, of ratings that were checked."""
    return df.select(
        F.col(quoted(columns.user)).alias(USER),
        F.col(quoted(columns.item)).alias(ITEM),
        positive(df, columns.label, columns.threshold).alias(LABEL),
        *_weight(columns),
        *map(quoted, further),
    )


def raw(df: DataFrame, columns: Columns) -> DataFrame:
    """The two ids, the label as a number, the cell's hash and the weight, if there is one: nothing is checked yet.

    Where both ids are integers there is no hash: ``read_batch`` computes it.
    """
    integers = all(type_of(df, name).simpleString() in INTEGRAL for name in (columns.user, columns.item))
    text = isinstance(type_of(df, columns.label), StringType | DecimalType)
    return df.select(
        *(_id(df, name).alias(alias) for name, alias in ((columns.user, USER), (columns.item, ITEM))),
        (label_number(df, columns.label) if text else F.col(quoted(columns.label))).alias(LABEL),
        *([] if integers else [cell_hash(df, columns).alias(HASH)]),
        *_weight(columns),
    )


def _weight(columns: Columns) -> list[Column]:
    return [] if columns.weight is None else [weight_number(columns.weight).alias(WEIGHT)]


def _id(df: DataFrame, name: str) -> Column:
    """The id; −0.0 is 0.0, as Spark's grouping and joins have it."""
    value = F.col(quoted(name))
    if isinstance(type_of(df, name), FloatType | DoubleType):
        return F.when(value == 0, F.lit(0.0).cast(type_of(df, name))).otherwise(value)
    return value


@dataclass(frozen=True)
class RatingBatch:
    """Some raw ratings in this process, without their ids."""

    positive: NDArray[np.bool_]
    # ``defects.cell_hash`` of the cells; 0 for all if an id is null, for such ratings are refused.
    hashes: NDArray[np.int64]
    weights: NDArray[np.float32] | None  # NaN for null
    # To be summed over batches: ``n``, the counts of ``defects.BIT``, HASH_PARTS, ``absent`` if a label is null, and
    # with weights ``weight``, their finite sum.
    facts: dict[str, Any]


def read_batch(table: pa.Table, threshold: float | None) -> RatingBatch:
    """What is read off some raw ratings."""
    label, facts = count_labels(table[LABEL], threshold)
    if HASH in table.schema.names:
        hashes = np.asarray(table[HASH].to_numpy())
    elif table[USER].null_count or table[ITEM].null_count:
        hashes = np.zeros(len(table), np.int64)
    else:
        hashes = cell_hashes(table[USER].to_numpy(), table[ITEM].to_numpy())
    weights = None
    if WEIGHT in table.schema.names:
        weights = np.array(table[WEIGHT].to_numpy(), np.float32)  # a copy: a view would keep the whole table
        facts["bad_weight"] = int(np.count_nonzero(~((weights > 0) & (weights < np.inf))))
        facts["weight"] = float(np.sum(weights, dtype=np.float64, where=np.isfinite(weights)))
    if table[LABEL].null_count:
        facts["absent"] = 1
    return RatingBatch(label, hashes, weights, facts | hash_sums(hashes, label, weights))


def count_labels(labels: pa.ChunkedArray, threshold: float | None) -> tuple[NDArray[np.bool_], dict[str, Any]]:
    """Which labels are positive, and how often each flag of ``defects.BIT`` holds, on labels as Spark holds them.

    A null is counted as ``bad_label``, like NaN.
    """
    values = (labels.cast(pa.int8()) if pa.types.is_boolean(labels.type) else labels).to_numpy()  # null is NaN
    limit = np.float64(0.0 if threshold is None else threshold)  # so that numpy compares doubles, as Spark does
    above: NDArray[np.bool_] = values > limit
    kinds = {name: int(np.count_nonzero(values == value)) for name, value in _VALUES.items()}
    if values.dtype.kind == "f":
        kinds["bad_label"] = int(np.count_nonzero(np.isnan(values)))
    kinds["other"] = len(values) - sum(kinds.values())
    return above, {**dict.fromkeys(BIT, 0), **kinds, "n": len(values), "above": int(np.count_nonzero(above))}


_VALUES = {"plus": 1, "minus": -1, "zero": 0}
