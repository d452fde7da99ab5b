"""The ratings of a DataFrame: under the internal names of ``batches``, and every defect counted in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DecimalType, DoubleType, FloatType, StringType

from onebit_spark.core.hashes import HASH_PARTS, PART_BITS, SALT
from onebit_spark.errors import RequestError
from onebit_spark.input.batches import HASH, ITEM, LABEL, USER, WEIGHT
from onebit_spark.input.columns import (
    bad_weight,
    column_problem,
    matching,
    missing,
    not_zero,
    quoted,
    refuse_stream,
    type_of,
    weight_number,
)
from onebit_spark.input.rating_checks import (
    BIT,
    INTEGRAL,
    Columns,
    Kind,
    RatingCounts,
    as_examples,
    counts_if_sound,
    may_be_refused,
    type_problems,
)
from onebit_spark.input.rating_files import mark_as_derived

MARKS = "__onebit_marks"

_NOT_IDS = (T.ArrayType, T.MapType, T.StructType, T.VariantType, T.NullType, T.UserDefinedType)


def with_weight(df: DataFrame, columns: Columns) -> DataFrame:
    """The ratings without those of weight 0. Every public function calls it first."""
    refuse_stream(df)
    if columns.weight is None:
        return df
    check_columns(df, columns)
    return mark_as_derived(df.where(not_zero(columns.weight)), df, columns)


def positive(df: DataFrame, label_col: str, threshold: float | None) -> Column:
    """The label as a boolean: strictly above the threshold, or above 0 without one."""
    value = label_number(df, label_col)
    return value > F.lit(0.0 if threshold is None else float(threshold))


def check_ratings(df: DataFrame, columns: Columns) -> RatingCounts:
    """Validate and count without the ids: one aggregation to a single line. A single class is allowed."""
    return checked_counts(df, columns, count_ratings(df, columns))


def count_ratings(df: DataFrame, columns: Columns, further: Mapping[str, Column] | None = None) -> dict[str, int]:
    """The totals that ``checked_counts`` takes, and ``further`` aggregates of ``df`` by name, in one pass.

    A flag is 1 if such ratings are there. Only if one must be refused does a second pass count them.
    """
    check_columns(df, columns)
    # A column of its own, so that Spark computes it once per rating though two aggregates use it.
    placed = df.withColumns({MARKS: flag_bits(df, columns)})
    aggregates = {
        "n": F.count(F.lit(1)),
        "above": F.count_if(F.col(MARKS).bitwiseAND(F.lit(BIT["above"])) != 0),
        "marks": F.bit_or(MARKS),
        **{name: F.sum(part) for name, part in zip(HASH_PARTS, fingerprint(df, columns), strict=True)},
        **(further or {}),
    }
    totals = aggregated(placed, aggregates)
    present = {name: int(bool(totals["marks"] & bit)) for name, bit in BIT.items()}
    if may_be_refused(columns, present):
        present = aggregated(df, {name: F.count_if(flag) for name, flag in _flags(df, columns).items()})
    return {**present, **totals}


def aggregated(df: DataFrame, aggregates: Mapping[str, Column]) -> dict[str, int]:
    """Aggregates of all ratings by their names, 0 where one is null."""
    line = df.agg(*(aggregate.alias(name) for name, aggregate in aggregates.items())).first()
    assert line is not None
    return {name: line[name] or 0 for name in aggregates}


# ---- what is counted -------------------------------------------------------------------------------------------------


def flag_bits(df: DataFrame, columns: Columns) -> Column:
    """The flags of a rating as the bits of one integer."""
    bits = [F.when(flag, F.lit(BIT[name])).otherwise(0) for name, flag in _flags(df, columns).items()]
    return reduce(lambda a, b: a.bitwiseOR(b), bits)


def _flags(df: DataFrame, columns: Columns) -> dict[str, Column]:
    """One boolean column per name of ``BIT``."""
    value = label_number(df, columns.label)
    absent = missing(df, columns.label)
    unreadable = ~absent & value.isNull()
    usable = ~absent & value.isNotNull() & ~F.isnan(value)
    flags = {
        "bad_user": missing(df, columns.user),
        "bad_item": missing(df, columns.item),
        "bad_label": absent | (value.isNotNull() & F.isnan(value)),
        "text_label": unreadable,
        "bad_weight": bad_weight(columns.weight) if columns.weight is not None else F.lit(False),
        "plus": usable & (value == 1),
        "minus": usable & (value == -1),
        "zero": usable & (value == 0),
        "other": usable & ~value.isin(1.0, -1.0, 0.0),
        "above": usable & (value > F.lit(float(columns.threshold or 0.0))),
    }
    return {name: F.coalesce(flags[name], F.lit(False)).alias(name) for name in BIT}


def fingerprint(df: DataFrame, columns: Columns) -> list[Column]:
    """56 bits of a hash of the rating, in two columns named ``HASH_PARTS``. A set's fingerprint is their sums.

    A sum changes if a rating occurs twice. With an exclusive or, the two would cancel.
    """
    cell = cell_hash(df, columns)
    whole = F.when(positive(df, columns.label, columns.threshold), F.bitwise_not(cell)).otherwise(cell)
    if columns.weight is not None:
        whole = whole.bitwiseXOR(F.xxhash64(weight_number(columns.weight)))
    mask = F.lit((1 << PART_BITS) - 1).cast("bigint")
    shifted = (whole, F.shiftrightunsigned(whole, PART_BITS))
    return [part.bitwiseAND(mask).alias(name) for name, part in zip(HASH_PARTS, shifted, strict=True)]


def cell_hash(df: DataFrame, columns: Columns) -> Column:
    """A hash of the cell (user, item), the same for all integral widths, which interchange as ids."""
    ids = []
    for name in (columns.user, columns.item):
        integral = type_of(df, name).simpleString() in INTEGRAL
        ids.append(F.col(quoted(name)).cast("bigint") if integral else F.col(quoted(name)))
    return F.xxhash64(F.lit(SALT), *ids)


def label_number(df: DataFrame, label_col: str) -> Column:
    """The label as a double. Text that is no number becomes null; true and false are 1 and 0."""
    column = F.col(quoted(label_col))
    if isinstance(type_of(df, label_col), T.BooleanType):
        return column.cast("int").cast("double")
    number = column.try_cast("double")
    if not isinstance(type_of(df, label_col), T.StringType):
        return number
    word = F.lower(F.trim(column))
    return F.when(word == "true", F.lit(1.0)).when(word == "false", F.lit(0.0)).otherwise(number)


# ---- what is refused -------------------------------------------------------------------------------------------------


def check_columns(df: DataFrame, columns: Columns) -> None:
    """Refuse columns that are not there, or of a type that cannot be what they are for."""
    refuse_stream(df)
    absent = (column_problem(df, name, f" for the {role}") for role, name in columns.roles.items())
    problems = [problem for problem in absent if problem]
    if not problems and len({matching(df, name)[0].name for name in (columns.user, columns.item, columns.label)}) < 3:
        problems.append("user, item and label must be three different columns")
    if not problems:
        problems = type_problems(columns, {role: spark_kind(type_of(df, name)) for role, name in columns.roles.items()})
    if problems:
        raise RequestError("; ".join(problems))


def spark_kind(kind: T.DataType) -> Kind:
    """What a column of this type can be used for."""
    name = kind.simpleString()
    if isinstance(kind, T.NumericType):
        return Kind(name, "number")
    if isinstance(kind, T.BooleanType):
        return Kind(name, "boolean")
    if isinstance(kind, T.StringType):
        return Kind(name, "text")
    return Kind(name, "none" if isinstance(kind, _NOT_IDS) else "id")


def checked_counts(df: DataFrame, columns: Columns, totals: Mapping[str, int]) -> RatingCounts:
    """The counts, or a RequestError: see ``rating_checks.counts_if_sound``."""
    boolean = isinstance(type_of(df, columns.label), T.BooleanType)

    def examples(flag: str) -> str:
        return as_examples(df.where(_flags(df, columns)[flag]).select(*map(quoted, columns.names)).take(3))

    return counts_if_sound(columns, totals, boolean, examples)


def rating_lines(df: DataFrame, columns: Columns, *further: str) -> DataFrame:
    """(user, item, positive), the weights if there are any, and ``further`` columns, of ratings that were checked."""
    return df.select(
        F.col(quoted(columns.user)).alias(USER),
        F.col(quoted(columns.item)).alias(ITEM),
        positive(df, columns.label, columns.threshold).alias(LABEL),
        *_weight(columns),
        *map(quoted, further),
    )


def unchecked_ratings(df: DataFrame, columns: Columns) -> DataFrame:
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
