"""Messages about what is wrong with ratings and side features, from the counts of Spark or of this process.

This module imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onebit_spark.core.hashes import HASH_PARTS
from onebit_spark.core.id_index import one_array, sum_by_id
from onebit_spark.core.model_info import Who
from onebit_spark.errors import FitFailed, RequestError

Coding = Literal["signed", "binary", "boolean", "threshold"]

INTEGRAL = ("tinyint", "smallint", "int", "bigint")  # as ids they interchange
NUMBERS = (*INTEGRAL, "float", "double", "decimal")  # types as Spark names them, without their parameters
OTHER_IDS = ("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "time", "interval", "char", "varchar")
EXAMPLES = 3


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
        return list(dict.fromkeys(self.roles.values()))

    @property
    def ids(self) -> dict[Who, str]:
        return {"user": self.user, "item": self.item}

    @property
    def roles(self) -> dict[str, str]:
        """What for ─► the name of the column."""
        roles = {"user": self.user, "item": self.item, "label": self.label, "weight": self.weight}
        return {role: name for role, name in roles.items() if name is not None}


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


def total_of(*parts: RatingCounts) -> tuple[int, str]:
    """The number and the fingerprint of ratings that were counted in parts."""
    words = (part.fingerprint.split("-") for part in parts)
    sums = (sum(int(word, 16) for word in same) for same in zip(*words, strict=True))
    return sum(part.n for part in parts), fingerprint_of(dict(zip(HASH_PARTS, sums, strict=True)))


def fingerprint_of(totals: Mapping[str, int]) -> str:
    """The sums of a set's ``HASH_PARTS`` as one word."""
    return "-".join(f"{totals[name]:x}" for name in HASH_PARTS)


def not_deterministic(what: str) -> FitFailed:
    """The ratings were read twice, and differ."""
    return FitFailed(
        f"{what}: the source is not deterministic (for example a random split or sample). Write the ratings to disk "
        "first, and fit from there"
    )


def column_count_problem(n: int, column: str, role: str, columns: Sequence[str]) -> str | None:
    """Why a table that has n such columns does not have just one; ``role`` says what it is for."""
    listed = f"(columns: {', '.join(columns)})"
    if n == 0:
        return f"there is no column {column!r}{role} {listed}"
    return f"there are {n} columns named {column!r}{role} {listed}: keep one" if n > 1 else None


def type_problems(columns: Columns, types: Mapping[str, str]) -> list[str]:
    """Columns, by their roles, of a type (as Spark names it) that cannot be what they are for."""
    bare = {role: re.split("[( ]", name)[0] for role, name in types.items()}
    problems = [
        f"column {columns.roles[role]!r} is of type {types[role]}, which cannot be an id: cast it"
        for role in ("user", "item")
        if bare[role] not in NUMBERS + OTHER_IDS
    ]
    if bare["label"] not in (*NUMBERS, "boolean", "string"):
        problems.append(f"column {columns.label!r} is of type {types['label']}, not a number or a boolean")
    if bare["label"] == "boolean" and columns.threshold is not None:
        problems.append(f"column {columns.label!r} is boolean already: drop the threshold")
    if "weight" in bare and bare["weight"] not in (*NUMBERS, "string"):
        problems.append(f"column {columns.weight!r} of the weights is of type {types['weight']}, not a number")
    return problems


# ---- ratings ---------------------------------------------------------------------------------------------------------

REFUSED = ("bad_user", "bad_item", "bad_label", "text_label", "bad_weight")
BIT = {name: 1 << place for place, name in enumerate((*REFUSED, "plus", "minus", "zero", "other", "above"))}


def may_be_refused(columns: Columns, present: Mapping[str, int]) -> bool:
    """Whether a kind of value is there that ``counts_if_sound`` refuses, so that it must be counted."""
    if any(present[name] for name in REFUSED):
        return True
    return columns.threshold is None and bool(present["other"] or (present["minus"] and present["zero"]))


def counts_if_sound(
    columns: Columns, totals: Mapping[str, int], boolean: bool, examples: Callable[[str], str]
) -> RatingCounts:
    """The counts, or a RequestError with every defect, its count and three examples.

    ``totals`` are ``n``, how many ratings have each flag of ``BIT``, and the sums of HASH_PARTS. ``boolean`` is true if
    the labels are booleans. ``examples`` makes a text of three ratings that have a flag.
    """
    if totals["n"] == 0:
        kind = "" if columns.weight is None else " of positive weight"
        raise RequestError(
            f"there is no rating{kind}: the input is empty; check the path and any filter before the fit"
        )
    if problems := _defects(columns, totals, boolean, examples):
        raise RequestError("; ".join(problems))
    coding: Coding = "signed" if totals["minus"] else "binary"
    if boolean or columns.threshold is not None:
        coding = "boolean" if boolean else "threshold"
    return RatingCounts(totals["n"], totals["above"], coding, fingerprint_of(totals))


def of_both_classes(counts: RatingCounts, columns: Columns) -> RatingCounts:
    """The counts of ratings to fit, among which both labels must occur."""
    if counts.positives not in (0, counts.n):
        return counts
    which = "positive" if counts.positives else "negative"
    check = "data" if columns.threshold is None else f"threshold {columns.threshold:g}"
    raise RequestError(
        f"all {counts.n:,} labels in column {columns.label!r} are {which}: both classes are needed, check the {check}"
    )


def _defects(columns: Columns, totals: Mapping[str, int], boolean: bool, examples: Callable[[str], str]) -> list[str]:
    """What is wrong with single ratings, with counts and examples, and with their labels together."""
    defects = {  # flag ─► what it means, what to do
        "bad_user": (f"null or NaN in column {columns.user!r}", "drop them"),
        "bad_item": (f"null or NaN in column {columns.item!r}", "drop them"),
        "bad_label": (f"null or NaN in column {columns.label!r}", "drop them"),
        "text_label": (
            f"no number in column {columns.label!r}",
            "labels are −1/1, 0/1, true/false, or numbers with a threshold; convert other text first",
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
        f"{totals[flag]:,} ratings with {meaning}, such as {examples(flag)}: {cure}"
        for flag, (meaning, cure) in defects.items()
        if totals[flag]
    ]
    if columns.threshold is None and totals["minus"] and totals["zero"]:
        problems.append(
            f"labels mix −1 ({totals['minus']:,}) and 0 ({totals['zero']:,}) in column {columns.label!r}: "
            "use either ±1 or 0/1, or set a threshold"
        )
    return problems


def as_examples(lines: Sequence[Sequence[object]]) -> str:
    """Lines of a table as examples: (a, x, 1), (b, y, 0)."""
    return ", ".join("(" + ", ".join(map(str, line)) + ")" for line in lines)


# ---- side features ---------------------------------------------------------------------------------------------------


def check_pairs(counts: Mapping[str, int], examples: Mapping[str, Sequence[Sequence[object]]]) -> None:
    """Refuse pairs with absent ids: column ─► how many, and three of them."""
    problems = [
        f"{count:,} pairs with null or NaN in column {column!r}, such as {as_examples(examples[column])}"
        for column, count in counts.items()
        if count
    ]
    if problems:
        raise RequestError("; ".join(problems) + ": drop or fill them")


def check_id_type(column: str, given: str, id_type: str, whose: str) -> None:
    """Refuse ids of another type than in the ratings; both are named as Spark names them."""
    if given != id_type and not (given in INTEGRAL and id_type in INTEGRAL):
        raise RequestError(
            f"{whose} features: column {column!r} is of type {given}, but {whose} ids are of type {id_type}: cast it"
        )


def checked_lines(table: pa.Table, column: str, whose: str) -> pa.Table:
    """The table. Refuses lines without an id, and ids with several lines."""
    ids = one_array(table[column])
    absent = pc.is_null(ids, nan_is_null=pa.types.is_floating(ids.type))
    if n_absent := pc.sum(absent).as_py():
        raise RequestError(f"{whose} features: {n_absent:,} lines have no {column}: drop them")
    different, (lines,) = sum_by_id(ids, np.ones(len(ids)))
    if len(twice := different.filter(pa.array(lines > 1))):
        examples = ", ".join(str(value) for value in twice.slice(0, EXAMPLES).to_pylist())
        raise RequestError(
            f"{whose} features: {len(twice):,} ids have several lines, such as {examples}: keep one each"
        )
    return table
