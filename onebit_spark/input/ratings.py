"""The ratings of a DataFrame: columns and their types, defects counted in one pass; and tables of side features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DecimalType, DoubleType, FloatType, StringType, StructField

from onebit_spark.core.hashes import HASH_PARTS, PART_BITS, SALT
from onebit_spark.errors import RequestError
from onebit_spark.input.arrow_ratings import Holdout
from onebit_spark.input.batches import HASH, ITEM, LABEL, USER, WEIGHT
from onebit_spark.input.rating_checks import (
    BIT,
    EXAMPLES,
    INTEGRAL,
    Columns,
    RatingCounts,
    as_examples,
    check_id_type,
    checked_lines,
    column_count_problem,
    counts_if_sound,
    may_be_refused,
    type_problems,
)

MARKS = "__onebit_marks"

# ---- columns ---------------------------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """A column name in backticks, so that dots in it have no meaning."""
    return "`" + name.replace("`", "``") + "`"


def missing(table: DataFrame, name: str) -> Column:
    """Null, or NaN in a floating column."""
    value = F.col(quoted(name))
    floating = isinstance(type_of(table, name), FloatType | DoubleType)
    return value.isNull() | F.isnan(value) if floating else value.isNull()


def case_folding(table: DataFrame) -> Callable[[str], str]:
    """How the session compares column names."""
    return str if table.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def matching(table: DataFrame, column: str) -> list[StructField]:
    """The fields of this name. Whether case counts is a setting of the session."""
    fields = [field for field in table.schema if field.name.lower() == column.lower()]
    if [field.name for field in fields] == [column]:
        return fields  # whether or not case counts
    folded = case_folding(table)
    return [field for field in fields if folded(field.name) == folded(column)]


def column_problem(table: DataFrame, column: str, role: str = "") -> str | None:
    """Why the table does not have just one such column, in words; ``role`` says what it is for."""
    return column_count_problem(len(matching(table, column)), column, role, table.columns)


def type_of(table: DataFrame, column: str) -> DataType:
    """The type of a column, from the schema. Without a column "user", Spark takes ``col("user")`` for a function."""
    if problem := column_problem(table, column):
        raise RequestError(problem)
    return matching(table, column)[0].dataType


def refuse_stream(table: DataFrame, what: str = "the ratings") -> None:
    """Refuse a streaming DataFrame where a whole table is needed."""
    if table.isStreaming:
        raise RequestError(
            f"{what} are a stream, which has no end: give a table, or the batches of the stream one by one, with "
            "foreachBatch (docs/streaming.md)"
        )


def checked_ids(table: DataFrame, columns: Sequence[str]) -> list[Column]:
    """The columns, checked lazily: if an id is null or NaN, the first action fails with the number of such ids.

    The counts are one subquery for all columns. There is none if the schema excludes such ids.
    """
    absent = [missing(table, column) for column in columns]
    counts = None
    if not table.isStreaming:  # a stream has no total
        counts = table.select(F.array(*map(F.count_if, absent))).scalar()
    checked = []
    for place, (column, is_absent) in enumerate(zip(columns, absent, strict=True)):
        number = F.lit("some") if counts is None else F.format_number(counts[place], 0)
        message = F.lit(f"column {column!r} holds "), number, F.lit(" null or NaN ids: drop or fill such rows")
        checked.append(F.when(is_absent, F.raise_error(F.concat(*message))).otherwise(F.col(quoted(column))))
    return checked


# ---- ratings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DerivedRatings:
    """What ratings were derived from: a table of which some are held out, or have the weight 0, by its columns."""

    table: DataFrame
    columns: Columns | None = None  # None: nothing is missing
    holdout: Holdout | None = None


_DERIVED: WeakKeyDictionary[DataFrame, DerivedRatings] = WeakKeyDictionary()


def mark_as_derived(
    ratings: DataFrame, table: DataFrame, columns: Columns, holdout: Holdout | None = None
) -> DataFrame:
    """Record that ratings are those of a table without the held-out ones and those of weight 0, and return them.

    Their plan only shows a filter.
    """
    before = derivation(table)
    if before.columns in (None, columns) and None in (before.holdout, holdout):
        _DERIVED[ratings] = DerivedRatings(before.table, columns, before.holdout or holdout)
    return ratings


def derivation(ratings: DataFrame) -> DerivedRatings:
    return _DERIVED.get(ratings, DerivedRatings(ratings))


def with_weight(df: DataFrame, columns: Columns) -> DataFrame:
    """The ratings without those of weight 0. Every public function calls it first."""
    refuse_stream(df)
    if columns.weight is None:
        return df
    check_columns(df, columns)
    is_there = F.coalesce(weight_number(columns.weight) != 0, F.lit(True))  # a bad weight is refused later
    return mark_as_derived(df.where(is_there), df, columns)


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
    value, absent = label_number(df, columns.label), missing(df, columns.label)
    usable = ~absent & value.isNotNull() & ~F.isnan(value)
    flags = {
        "bad_user": missing(df, columns.user),
        "bad_item": missing(df, columns.item),
        "bad_label": absent | (value.isNotNull() & F.isnan(value)),
        "text_label": ~absent & value.isNull(),
        "bad_weight": F.lit(False),
        "plus": usable & (value == 1),
        "minus": usable & (value == -1),
        "zero": usable & (value == 0),
        "other": usable & ~value.isin(1.0, -1.0, 0.0),
        "above": usable & (value > F.lit(float(columns.threshold or 0.0))),
    }
    if columns.weight is not None:
        weight = weight_number(columns.weight)
        flags["bad_weight"] = weight.isNull() | (weight < 0) | (weight >= F.lit(float("inf")))  # NaN is above infinity
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
    if isinstance(type_of(df, label_col), BooleanType):
        return column.cast("int").cast("double")
    number = column.try_cast("double")
    if not isinstance(type_of(df, label_col), StringType):
        return number
    word = F.lower(F.trim(column))
    return F.when(word == "true", F.lit(1.0)).when(word == "false", F.lit(0.0)).otherwise(number)


def weight_number(name: str) -> Column:
    """A weight as a 32-bit float. Text that is no number becomes null, and 1e39 infinite."""
    return F.col(quoted(name)).try_cast("double").cast("float")


# ---- what is refused -------------------------------------------------------------------------------------------------


def check_columns(df: DataFrame, columns: Columns) -> None:
    """Refuse columns that are not there, or of a type that cannot be what they are for."""
    refuse_stream(df)
    absent = (column_problem(df, name, f" for the {role}") for role, name in columns.roles.items())
    problems = [problem for problem in absent if problem]
    if not problems and len({matching(df, name)[0].name for name in (columns.user, columns.item, columns.label)}) < 3:
        problems.append("user, item and label must be three different columns")
    if not problems:
        problems = type_problems(
            columns, {role: type_of(df, name).simpleString() for role, name in columns.roles.items()}
        )
    if problems:
        raise RequestError("; ".join(problems))


def checked_counts(df: DataFrame, columns: Columns, totals: Mapping[str, int]) -> RatingCounts:
    """The counts, or a RequestError: see ``rating_checks.counts_if_sound``."""
    boolean = isinstance(type_of(df, columns.label), BooleanType)

    def examples(flag: str) -> str:
        return as_examples(df.where(_flags(df, columns)[flag]).select(*map(quoted, columns.names)).take(EXAMPLES))

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


# ---- side features ---------------------------------------------------------------------------------------------------


def collected_features(frame: DataFrame, column: str, id_type: str, whose: str) -> pa.Table:
    """The table of side features on the driver, by one Spark job; it has one line per id.

    ``column`` holds the ids. ``id_type`` is Spark's type of the ids in the ratings, such as bigint. ``whose`` is "user"
    or "item". Raises a RequestError if there is no such column, if two columns have one name, if the ids are of another
    type or missing, or if an id has two lines.
    """
    try:
        refuse_stream(frame, "they")
        kind, *_ = [type_of(frame, name) for name in (column, *frame.columns)]
    except RequestError as error:
        raise RequestError(f"{whose} features: {error}") from None
    check_id_type(column, kind.simpleString(), id_type, whose)
    (own,) = matching(frame, column)
    plain = [
        vector_to_array(F.col(quoted(field.name))).alias(field.name)
        if isinstance(field.dataType, VectorUDT)
        else F.col(quoted(field.name)).alias(column if field == own else field.name)
        for field in frame.schema
    ]
    return checked_lines(frame.select(*plain).toArrow(), column, whose)
