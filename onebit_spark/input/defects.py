"""What can be wrong with ratings: every defect in one pass, with its count and examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.input.columns import (
    INTEGRAL,
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
from onebit_spark.input.hashes import HASH_PARTS, PART_BITS, SALT

Coding = Literal["signed", "binary", "boolean", "threshold"]

MARKS = "__onebit_marks"

_NOT_IDS = (T.ArrayType, T.MapType, T.StructType, T.VariantType, T.NullType, T.UserDefinedType)


@dataclass(frozen=True)
class Columns:
    """Which columns hold what, and how a number becomes a label."""

    user: str = "user"
    item: str = "item"
    label: str = "label"
    threshold: float | None = None
    weight: str | None = None  # None: every rating has the weight 1

    @property
    def names(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(name for name in (self.user, self.item, self.label, self.weight) if name is not None))


@dataclass(frozen=True)
class RatingCounts:
    """What one pass over the ratings counted."""

    n: int
    positives: int
    coding: Coding
    fingerprint: str  # of the set of ratings, whatever their order

    @property
    def majority(self) -> int:
        """The more frequent label, +1 in a tie."""
        return 1 if 2 * self.positives >= self.n else -1


def with_weight(df: DataFrame, columns: Columns) -> DataFrame:
    """The ratings without those of weight 0, which are as if they were not there. Where ratings come in."""
    refuse_stream(df)
    if columns.weight is None:
        return df
    check_columns(df, columns)
    return df.where(not_zero(columns.weight))


def positive(df: DataFrame, label_col: str, threshold: float | None) -> Column:
    """The label as a boolean: strictly above the threshold, or above 0 without one."""
    value = label_number(df, label_col)
    return value > F.lit(0.0 if threshold is None else float(threshold))


def check_ratings(df: DataFrame, columns: Columns) -> RatingCounts:
    """Validate and count without the ids: one aggregation to a single line. A single class is allowed."""
    return verdict(df, columns, count_ratings(df, columns), both_classes=False)


def count_ratings(df: DataFrame, columns: Columns, further: Mapping[str, Column] | None = None) -> dict[str, int]:
    """What ``verdict`` looks at, and ``further`` aggregates of ``df`` by their names, in one pass.

    A flag is 1 if such ratings are there. Only if one must be refused does a second pass count them.
    """
    check_columns(df, columns)
    # A column of its own, so that Spark computes it once per rating though two aggregates use it.
    placed = df.withColumns({MARKS: marks(df, columns)})
    aggregates = {
        "n": F.count(F.lit(1)),
        "above": F.count_if(F.col(MARKS).bitwiseAND(F.lit(BIT["above"])) != 0),
        "marks": F.bit_or(MARKS),
        **{name: F.sum(part) for name, part in zip(HASH_PARTS, fingerprint(df, columns), strict=True)},
        **(further or {}),
    }
    totals = aggregated(placed, aggregates)
    present = {name: int(bool(totals["marks"] & bit)) for name, bit in BIT.items()}
    if suspect(columns, present):
        present = aggregated(df, {name: F.count_if(flag) for name, flag in _flags(df, columns).items()})
    return {**present, **totals}


def aggregated(df: DataFrame, aggregates: Mapping[str, Column]) -> dict[str, int]:
    """Aggregates of all ratings by their names, 0 where one is null."""
    line = df.agg(*(aggregate.alias(name) for name, aggregate in aggregates.items())).first()
    assert line is not None
    return {name: line[name] or 0 for name in aggregates}


# ---- what is counted -------------------------------------------------------------------------------------------------

_REFUSED = ("bad_user", "bad_item", "bad_label", "text_label", "bad_weight")
BIT = {name: 1 << place for place, name in enumerate((*_REFUSED, "plus", "minus", "zero", "other", "above"))}


def suspect(columns: Columns, present: Mapping[str, int]) -> bool:
    """Whether a kind of value is there that ``verdict`` refuses, so that a second pass must count it."""
    if any(present[name] for name in _REFUSED):
        return True
    return columns.threshold is None and bool(present["other"] or (present["minus"] and present["zero"]))


def marks(df: DataFrame, columns: Columns) -> Column:
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


def summed(*parts: RatingCounts) -> tuple[int, str]:
    """The number and the fingerprint of ratings that were counted in parts."""
    words = (part.fingerprint.split("-") for part in parts)
    sums = (sum(int(word, 16) for word in same) for same in zip(*words, strict=True))
    return sum(part.n for part in parts), fingerprint_of(dict(zip(HASH_PARTS, sums, strict=True)))


def fingerprint_of(totals: Mapping[str, int]) -> str:
    """The sums of a set's ``HASH_PARTS`` as one word."""
    return "-".join(f"{totals[name]:x}" for name in HASH_PARTS)


def label_number(df: DataFrame, label_col: str) -> Column:
    """The label as a double; text that is no number becomes null."""
    column = F.col(quoted(label_col))
    if isinstance(type_of(df, label_col), T.BooleanType):
        return column.cast("int").cast("double")
    return column.try_cast("double")


# ---- what is refused -------------------------------------------------------------------------------------------------


def check_columns(df: DataFrame, columns: Columns) -> None:
    """Refuse columns that are not there, or of a type that cannot be what they are for."""
    refuse_stream(df)
    roles = {"user": columns.user, "item": columns.item, "label": columns.label, "weight": columns.weight}
    named = {role: name for role, name in roles.items() if name is not None}
    absent = (column_problem(df, name, f" for the {role}") for role, name in named.items())
    problems = [problem for problem in absent if problem] or _type_problems(df, columns)
    if problems:
        raise RequestError("; ".join(problems))


def _type_problems(df: DataFrame, columns: Columns) -> list[str]:
    problems = []
    if len({matching(df, name)[0].name for name in (columns.user, columns.item, columns.label)}) < 3:
        problems.append("user, item and label must be three different columns")
    for name in (columns.user, columns.item):
        kind = type_of(df, name)
        if isinstance(kind, _NOT_IDS):
            problems.append(f"column {name!r} is of type {kind.simpleString()}, which cannot be an id: cast it")
    kind = type_of(df, columns.label)
    if not isinstance(kind, T.NumericType | T.BooleanType | T.StringType):
        problems.append(f"column {columns.label!r} is of type {kind.simpleString()}, not a number or a boolean")
    if isinstance(kind, T.BooleanType) and columns.threshold is not None:
        problems.append(f"column {columns.label!r} is boolean already: drop the threshold")
    kind = T.DoubleType() if columns.weight is None else type_of(df, columns.weight)
    if not isinstance(kind, T.NumericType | T.StringType):
        problems.append(f"column {columns.weight!r} of the weights is of type {kind.simpleString()}, not a number")
    return problems


def verdict(df: DataFrame, columns: Columns, totals: Mapping[str, int], both_classes: bool = True) -> RatingCounts:
    """The counts, or a RequestError with every defect, its count and three examples."""
    if totals["n"] == 0:
        kind = "" if columns.weight is None else " of positive weight"
        raise RequestError(
            f"there is no rating{kind}: the input is empty; check the path and any filter before the fit"
        )
    boolean = isinstance(type_of(df, columns.label), T.BooleanType)
    problems = _defects(df, columns, totals, boolean)
    if not problems and both_classes and totals["above"] in (0, totals["n"]):
        which = "positive" if totals["above"] else "negative"
        problems.append(
            f"all {totals['n']:,} labels in column {columns.label!r} are {which}: both classes are needed"
            + (", check the data" if columns.threshold is None else f", check the threshold {columns.threshold:g}")
        )
    if problems:
        raise RequestError("; ".join(problems))
    coding: Coding = "signed" if totals["minus"] else "binary"
    if boolean or columns.threshold is not None:
        coding = "boolean" if boolean else "threshold"
    return RatingCounts(totals["n"], totals["above"], coding, fingerprint_of(totals))


def _defects(df: DataFrame, columns: Columns, totals: Mapping[str, int], boolean: bool) -> list[str]:
    """What is wrong with single ratings, with counts and examples, and with their labels together."""
    defects = {  # flag ─► what it means, what to do
        "bad_user": (f"null or NaN in column {columns.user!r}", "drop them"),
        "bad_item": (f"null or NaN in column {columns.item!r}", "drop them"),
        "bad_label": (f"null or NaN in column {columns.label!r}", "drop them"),
        "text_label": (
            f"no number in column {columns.label!r}",
            "labels are −1/1, 0/1, booleans, or numbers with a threshold; convert text to 0 and 1 first",
        ),
        "bad_weight": (
            f"a negative or infinite weight, null, NaN or no number in column {columns.weight!r}",
            "give positive weights, or 0 to leave a rating out",
        ),
    }
    if columns.threshold is None and not boolean:
        outside = f"label outside {{−1, 1}} and {{0, 1}} in column {columns.label!r}"
        defects["other"] = (outside, "set a threshold")
    problems = [
        f"{totals[flag]:,} ratings with {meaning}, such as {_examples(df, columns, flag)}: {cure}"
        for flag, (meaning, cure) in defects.items()
        if totals[flag]
    ]
    if columns.threshold is None and totals["minus"] and totals["zero"]:
        problems.append(
            f"labels mix −1 ({totals['minus']:,}) and 0 ({totals['zero']:,}) in column {columns.label!r}: "
            "use either ±1 or 0/1, or set a threshold"
        )
    return problems


def not_deterministic(what: str) -> FitFailed:
    """The ratings were read twice, and differ."""
    return FitFailed(
        f"{what}: the source is not deterministic (for example a random split or sample). Write the ratings to disk "
        "first, and fit from there"
    )


def _examples(df: DataFrame, columns: Columns, flag: str) -> str:
    """Three ratings with the defect, as (user, item, label), and their weights if they have any."""
    lines: list[Row] = (
        df.where(_flags(df, columns)[flag]).select(*(F.col(quoted(name)) for name in columns.names)).take(3)
    )
    return ", ".join("(" + ", ".join(map(str, line)) + ")" for line in lines)
