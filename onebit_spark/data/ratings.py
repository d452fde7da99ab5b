"""The ratings of a user: their columns, what can be wrong with them, and how they are gathered in
this process.

    batches ─► under the names of USER, ITEM, …, labels and weights as numbers, without weight 0
            ─► what is wrong, with examples                                       (``RatingTally``)
            ─► a coin for every cell: to fit ─► 9 or 13 bytes per rating    (``RatingCollector``)
                                      kept out ─► ids, label, group                (``KeptRatings``)

The functions take Arrow batches, and their results add up. Without Spark they run over the batches
of a table or file (``ArrowRatings``), with Spark in its tasks (``engines.spark.ratings``). So
checks, messages, held-out ratings and the numbers of the ids are the same. No Python object is made
per rating. This module imports no Spark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.data.files import ArrowTable, null_or_nan, separator_in, text_to_numbers
from onebit_spark.data.hashes import (
    HASH_PARTS,
    CellSketch,
    cell_hashes,
    coin_drawn,
    hash_sums,
    limit_for,
)
from onebit_spark.data.id_index import IdColumn, is_incomplete, sum_by_id
from onebit_spark.data.limits import LARGEST_WEIGHT, ZERO_WEIGHT
from onebit_spark.data.user_tables import one_array, spark_name
from onebit_spark.engines.spark.sessions import one_ahead
from onebit_spark.errors import FitFailed, RequestError, counted, refuse
from onebit_spark.records import Fields
from onebit_spark.settings import Who

Coding = Literal["signed", "binary", "boolean", "threshold"]

INTEGRAL = ("tinyint", "smallint", "int", "bigint")  # as ids they interchange
# types as Spark names them, without their parameters
NUMBERS = (
    *INTEGRAL,
    "float",
    "double",
    "decimal",
)
OTHER_IDS = ("boolean", "string", "binary", "date", "timestamp", "timestamp_ntz", "char", "varchar")
EXAMPLES = 3


@dataclass(frozen=True)
class Columns:
    user: str = "user"
    item: str = "item"
    label: str = "label"
    threshold: float | None = None
    weight: str | None = None  # None: every rating has the weight 1

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.roles.values()))

    @property
    def ids(self) -> dict[Who, str]:
        return {"user": self.user, "item": self.item}

    @property
    def roles(self) -> dict[str, str]:
        roles = {"user": self.user, "item": self.item, "label": self.label, "weight": self.weight}
        return {role: name for role, name in roles.items() if name is not None}


@dataclass(frozen=True)
class RatingCounts:
    n: int
    positives: int
    coding: Coding
    fingerprint: str  # of the set of ratings, whatever their order

    @property
    def majority(self) -> int:
        """The more frequent label, +1 in a tie."""
        return 1 if 2 * self.positives >= self.n else -1


class NoRatings(RequestError):
    """There is no rating."""


def total_of(*parts: RatingCounts) -> tuple[int, str]:
    """The number and the fingerprint of ratings that were counted in parts."""
    words = (part.fingerprint.split("-") for part in parts)
    sums = (sum(int(word, 16) for word in same) for same in zip(*words, strict=True))
    return sum(part.n for part in parts), fingerprint_of(dict(zip(HASH_PARTS, sums, strict=True)))


def fingerprint_of(totals: Mapping[str, int]) -> str:
    return "-".join(f"{totals[name]:x}" for name in HASH_PARTS)


def not_deterministic(what: str) -> FitFailed:
    return FitFailed(
        f"{what}: the source is not deterministic (for example a random split or sample). Write "
        "the ratings to disk "
        "first, and fit from there"
    )


def column_count_problem(n: int, column: str, role: str, columns: Sequence[str]) -> str | None:
    """Why a table that has n such columns does not have just one; ``role`` names its purpose."""
    listed = f"(columns: {', '.join(columns)})"
    if n == 0:
        sign = separator_in(columns)
        hint = (
            f": its fields look separated by {sign!r}, set options={{'sep': {sign!r}}}"
            if sign
            else ""
        )
        return f"there is no column {column!r}{role} {listed}{hint}"
    return f"there are {n} columns named {column!r}{role} {listed}: keep one" if n > 1 else None


def found_columns(
    columns: Columns,
    matching: Callable[[str], Sequence[str]],
    names: Sequence[str],
    by: str | None = None,
) -> dict[str, str]:
    """The table's own names of the columns by their roles, and of the column ``by`` to group by;
    each is there once.
    """
    wanted = {role: (name, f" for the {role}") for role, name in columns.roles.items()}
    if by is not None:
        wanted["group"] = by, " to group by"
    found = {role: matching(name) for role, (name, _) in wanted.items()}
    problems = (
        column_count_problem(len(found[role]), *words, names) for role, words in wanted.items()
    )
    refuse([problem for problem in problems if problem])
    if len({found[role][0] for role in ("user", "item", "label")}) < 3:
        raise RequestError("user, item and label must be three different columns")
    return {role: own[0] for role, own in found.items()}


def type_problems(columns: Columns, types: Mapping[str, str]) -> list[str]:
    """Columns, by their roles, of a type (as Spark names it) that cannot be what they are for."""
    bare = {role: re.split("[( ]", name)[0] for role, name in types.items()}
    problems = [
        f"column {columns.roles[role]!r} is of type {types[role]}, which cannot be an id: cast it"
        for role in ("user", "item")
        if bare[role] not in NUMBERS + OTHER_IDS
    ]
    if bare["label"] not in (*NUMBERS, "boolean", "string"):
        problems.append(
            f"column {columns.label!r} is of type {types['label']}, not a number or a boolean"
        )
    if bare["label"] == "boolean" and columns.threshold is not None:
        problems.append(f"column {columns.label!r} is boolean already: drop the threshold")
    if "weight" in bare and bare["weight"] not in (*NUMBERS, "string"):
        problems.append(
            f"column {columns.weight!r} of the weights is of type {types['weight']}, not a number"
        )
    return problems


# ---- ratings -----------------------------------------------------------------------------------

REFUSED = ("bad_user", "bad_item", "bad_label", "text_label", "bad_weight")
FLAGS = (*REFUSED, "plus", "minus", "zero", "other", "above")


def may_be_refused(columns: Columns, present: Mapping[str, int]) -> bool:
    """Whether a kind of value is there that ``counts_if_sound`` refuses, so that it must be
    counted.
    """
    if any(present[name] for name in REFUSED):
        return True
    return columns.threshold is None and bool(
        present["other"] or (present["minus"] and present["zero"])
    )


def counts_if_sound(
    columns: Columns, totals: Mapping[str, int], boolean: bool, examples: Callable[[str], str]
) -> RatingCounts:
    """The counts, or a RequestError with every defect, its count and three examples; NoRatings if
    there is none.

    ``totals`` are ``n``, how many ratings have each of FLAGS, and the sums of HASH_PARTS.
    ``boolean`` is true if the labels are booleans. ``examples`` makes a text of three ratings that
    have a flag.
    """
    if totals["n"] == 0:
        kind = ""
        cause = "the input is empty"
        if columns.weight is not None:
            kind = " of positive weight"
            cause += (
                f", or all weights in column {columns.weight!r} are 0 or below {ZERO_WEIGHT:.0e}"
            )
        raise NoRatings(f"there is no rating{kind}: {cause}; check the path and any filter")
    refuse(_defects(columns, totals, boolean, examples))
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
        f"all {counts.n:,} labels in column {columns.label!r} are {which}: both classes are "
        f"needed, check the {check}"
    )


def check_division(holdout: str, whole: RatingCounts, held_out: RatingCounts) -> None:
    """Refuse a division that holds nothing out, or leaves nothing or a single class of both
    to fit.
    """
    n = whole.n - held_out.n
    positives = whole.positives - held_out.positives
    if not held_out.n:
        raise RequestError(
            f"{holdout} holds no rating out: give more ratings, or choose a larger share"
        )
    if not n:
        raise RequestError(
            f"{holdout} holds all {counted(whole.n, 'rating')} out: choose a smaller share"
        )
    if positives in (0, n) and whole.positives not in (0, whole.n):
        left = counted(n, "positive rating" if positives else "negative rating")
        raise RequestError(
            f"{holdout} leaves {left} to fit, and both classes are needed: choose a smaller share"
        )


def _defects(
    columns: Columns, totals: Mapping[str, int], boolean: bool, examples: Callable[[str], str]
) -> list[str]:
    defects = {  # flag ─► what it means, what to do
        "bad_user": (f"null or NaN in column {columns.user!r}", "drop them"),
        "bad_item": (f"null or NaN in column {columns.item!r}", "drop them"),
        "bad_label": (f"null or NaN in column {columns.label!r}", "drop them"),
        "text_label": (
            f"no number in column {columns.label!r}",
            "labels are −1/1, 0/1, true/false, or numbers with a threshold; convert other text "
            "first",
        ),
        "bad_weight": (
            f"a weight that is negative, above {LARGEST_WEIGHT:g}, null, NaN or no number in "
            f"column {columns.weight!r}",
            "give positive weights, or 0 to leave a rating out",
        ),
    }
    if columns.threshold is None and not boolean:
        outside = f"label outside {{−1, 1}} and {{0, 1}} in column {columns.label!r}"
        defects["other"] = (outside, "set a threshold")
    problems = [
        f"{counted(totals[flag], 'rating')} with {meaning}, such as {examples(flag)}: {cure}"
        for flag, (meaning, cure) in defects.items()
        if totals[flag]
    ]
    if columns.threshold is None and totals["minus"] and totals["zero"]:
        problems.append(
            f"labels mix −1 ({totals['minus']:,}) and 0 ({totals['zero']:,}) in column "
            f"{columns.label!r}: "
            "use either ±1 or 0/1, or set a threshold"
        )
    return problems


def as_examples(lines: Sequence[Sequence[object]]) -> str:
    return ", ".join("(" + ", ".join(map(str, line)) + ")" for line in lines)


def check_pairs(
    counts: Mapping[str, int], examples: Mapping[str, Sequence[Sequence[object]]]
) -> None:
    """Refuse pairs with absent ids: column ─► how many, and three of them."""
    problems = [
        f"{counted(count, 'pair')} with null or NaN in column {column!r}, such as "
        f"{as_examples(examples[column])}"
        for column, count in counts.items()
        if count
    ]
    if problems:
        raise RequestError("; ".join(problems) + ": drop or fill them")


# ---- side features -----------------------------------------------------------------------------


def check_id_type(column: str, given: str, id_type: str, whose: str) -> None:
    """Refuse ids of another type than in the ratings; both are named as Spark names them."""
    if given != id_type and not (given in INTEGRAL and id_type in INTEGRAL):
        raise RequestError(
            f"{whose} features: column {column!r} is of type {given}, but {whose} ids are of type "
            f"{id_type}: cast it"
        )


def checked_lines(table: pa.Table, column: str, whose: str) -> pa.Table:
    """The table. Refuses lines without an id, and ids with several lines."""
    ids = one_array(table[column])
    absent = pc.is_null(ids, nan_is_null=pa.types.is_floating(ids.type))
    if n_absent := pc.sum(absent).as_py():
        raise RequestError(
            f"{whose} features: {counted(n_absent, 'line')} without {column}: drop them"
        )
    different, (lines,) = sum_by_id(ids, np.ones(len(ids)))
    if len(twice := different.filter(pa.array(lines > 1))):
        examples = ", ".join(str(value) for value in twice.slice(0, EXAMPLES).to_pylist())
        raise RequestError(
            f"{whose} features: {counted(len(twice), 'id')} with several lines, such as "
            f"{examples}: keep one each"
        )
    return table


# ---- ratings in Arrow batches ------------------------------------------------------------------

USER = "__onebit_user"
ITEM = "__onebit_item"
LABEL = "__onebit_label"
WEIGHT = "__onebit_weight"
HASH = "__onebit_hash"
GROUP = "__onebit_group"
# Role of a column ─► its name inside.
INSIDE = {"user": USER, "item": ITEM, "label": LABEL, "weight": WEIGHT, "group": GROUP}

Batches = Iterator[pa.RecordBatch]
Facts = Fields


def joined(
    batches: Iterable[pa.RecordBatch], size: Callable[[pa.RecordBatch], int], enough: int
) -> Iterator[pa.Table]:
    """Tables of successive batches, each as soon as its size is enough.

    The last one may be smaller, but not empty.
    """
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        held.append(batch)
        total += size(batch)
        if total >= enough:
            yield pa.Table.from_batches(held)
            held = []
            total = 0
    if sum(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


@dataclass(frozen=True)
class RatingBatch:
    positive: NDArray[np.bool_]
    # ``data.hashes.cell_hashes`` of the cells; 0 for all if an id is null, for such ratings are
    # refused.
    hashes: NDArray[np.int64]
    weights: NDArray[np.float32] | None  # NaN for null
    # To be summed over batches: ``n``, the counts of ``FLAGS``, HASH_PARTS, ``absent`` if a label
    # is null, and with weights ``weight``, their finite sum.
    facts: Facts


def read_batch(table: pa.Table, threshold: float | None) -> RatingBatch:
    label, facts = count_labels(table[LABEL], threshold)
    if HASH in table.schema.names:
        hashes = np.asarray(table[HASH].to_numpy())
    elif table[USER].null_count or table[ITEM].null_count:
        hashes = np.zeros(len(table), np.int64)
    else:
        hashes = cell_hashes(table[USER], table[ITEM])
    weights = None
    if WEIGHT in table.schema.names:
        # A copy: a view would keep the whole table
        weights = np.array(table[WEIGHT].to_numpy(), np.float32)
        facts["bad_weight"] = int(np.count_nonzero(~((weights > 0) & (weights <= LARGEST_WEIGHT))))
        facts["weight"] = float(np.sum(weights, dtype=np.float64, where=np.isfinite(weights)))
    if table[LABEL].null_count:
        facts["absent"] = 1
    return RatingBatch(label, hashes, weights, facts | hash_sums(hashes, label, weights))


def count_labels(
    labels: pa.ChunkedArray, threshold: float | None
) -> tuple[NDArray[np.bool_], Facts]:
    """Which labels are positive, and how often each flag of ``FLAGS`` holds, on labels as Spark
    holds them.

    A null is counted as ``bad_label``, like NaN.
    """
    values = (
        labels.cast(pa.int8()) if pa.types.is_boolean(labels.type) else labels
    ).to_numpy()  # null is NaN
    # So that numpy compares doubles, as Spark does
    limit = np.float64(0.0 if threshold is None else threshold)
    above: NDArray[np.bool_] = values > limit
    named = {"plus": 1, "minus": -1, "zero": 0}
    kinds = {name: int(np.count_nonzero(values == value)) for name, value in named.items()}
    if values.dtype.kind == "f":
        kinds["bad_label"] = int(np.count_nonzero(np.isnan(values)))
    kinds["other"] = len(values) - sum(kinds.values())
    return above, {
        **dict.fromkeys(FLAGS, 0),
        **kinds,
        "n": len(values),
        "above": int(np.count_nonzero(above)),
    }


# ---- gathered in this process ------------------------------------------------------------------

TABLE_BYTES = 16 * 2**20  # of ratings that are processed at once

Hashes = NDArray[np.int64]


@dataclass(frozen=True)
class SizeEstimate:
    """Ratings counted before the exchange is chosen."""

    n: int
    bytes_per_rating: float  # on its way to the driver
    fingerprint: str | None = None  # that the ratings must have, if it is known
    weighted: bool = False
    id_bytes: float = 0.0  # size of the different ids that are text, estimated


@dataclass(frozen=True)
class CollectedRatings:
    counts: RatingCounts
    users: pa.Array  # the ids, ascending; so are the items
    items: pa.Array
    ratings: RatingBlock  # row and column are the positions of user and item among the ids
    cells: Hashes  # hashes of the rated cells, those up to ``limit``, for the sketch
    limit: int  # see ``data.hashes``

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    def sketch(self) -> CellSketch:
        hashes, ratings = np.unique(self.cells, return_counts=True)
        return CellSketch(self.limit, hashes, ratings).up_to(limit_for(self.counts.n))


class RatingColumns(NamedTuple):
    """Ratings under the positions of their ids."""

    users: pa.Array  # the different ids
    items: pa.Array
    rows: NDArray[np.int32]  # each rating's user
    codes: NDArray[np.int32]  # its item and label: item << 1 | positive
    weights: NDArray[np.float32] | None
    cells: Hashes  # of the rated cells, those up to the limit


class RatingCollector:
    """Collects ratings: 9 bytes per rating, 13 with weights, and their facts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.facts: Counter[str] = Counter()
        self._users = IdColumn()
        self._items = IdColumn()
        self._positive: list[NDArray[np.bool_]] = []
        self._weights: list[NDArray[np.float32]] = []  # empty if there are none
        self._cells: list[Hashes] = []

    def add(self, table: pa.Table, here: RatingBatch) -> None:
        """Add the ratings of a table, as ``read_batch`` has read them.

        Ids that are null or NaN are not kept.
        """
        self.facts.update(here.facts)
        self.facts["absent"] += not self._users.add(table[USER])
        self.facts["absent"] += not self._items.add(table[ITEM])
        self._positive.append(here.positive)
        self._cells.append(here.hashes[here.hashes <= self.limit])
        if here.weights is not None:
            self._weights.append(here.weights)

    def columns(self, ascending: bool = True) -> RatingColumns:
        """The ratings. The collector is empty afterwards."""
        rows, users = self._users.positions(ascending)
        codes, items = self._items.positions(ascending)
        codes <<= 1
        place = 0
        while self._positive:
            label = self._positive.pop(0)
            codes[place : place + len(label)] |= label
            place += len(label)
        weights = np.concatenate(self._weights) if self._weights else None
        self._weights.clear()
        return RatingColumns(users, items, rows, codes, weights, np.concatenate(self._cells))

    def ratings(self, counts: RatingCounts) -> CollectedRatings:
        """The ratings in a block. The collector is empty afterwards."""
        users, items, rows, codes, weights, cells = self.columns()
        ratings = RatingBlock.from_codes(rows, codes, (len(users), len(items)), weights)
        return CollectedRatings(counts, users, items, ratings, cells, self.limit)


# ---- ratings of an ArrowTable ------------------------------------------------------------------

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Holdout:
    """Which ratings are kept out of a fit: a share of the cells, by a hash of user and item."""

    share: float
    seed: int
    name: str = "holdout"  # in messages

    def drawn(self, table: pa.Table) -> Mask:
        return coin_drawn(table[USER], table[ITEM], self.seed) < np.uint64(
            round(self.share * 2**32)
        )


@dataclass(frozen=True)
class KeptRatings:
    users: pa.ChunkedArray
    items: pa.ChunkedArray
    positive: Mask
    cells: Hashes  # hashes of the cells
    groups: pa.ChunkedArray | None  # as text
    counts: RatingCounts
    threshold: float | None  # labels strictly greater are positive

    def sample(self, most: int) -> KeptRatings:
        """A random sample of at most ``most`` of these ratings, without their groups."""
        if self.counts.n <= most:
            return self
        return self.at(np.sort(np.random.default_rng(0).choice(self.counts.n, most, replace=False)))

    def at(self, places: Hashes) -> KeptRatings:
        """The ratings at some places, without their groups. ``counts`` are still those of all."""
        users, items = (ids.take(pa.array(places)) for ids in (self.users, self.items))
        return replace(
            self,
            users=users,
            items=items,
            positive=self.positive[places],
            cells=self.cells[places],
            groups=None,
        )


class DividedRatings(NamedTuple):
    to_fit: CollectedRatings
    kept: KeptRatings | None


class ArrowRatings:
    """The ratings of a table. ``by`` is a column to group them by."""

    def __init__(self, table: ArrowTable, columns: Columns, by: str | None = None) -> None:
        self.columns = columns
        found = found_columns(columns, table.matching, table.schema.names, by)
        self.table = table.named({INSIDE[role]: name for role, name in found.items()})
        types = {
            role: spark_name(self.table.schema.field(INSIDE[role]).type) for role in columns.roles
        }
        refuse(type_problems(columns, types))
        self.id_types: dict[Who, str] = {"user": types["user"], "item": types["item"]}
        self._boolean = types["label"] == "boolean"

    def divided(self, holdout: Holdout | None = None) -> DividedRatings:
        """Read all ratings: those to fit, and held-out ones."""
        fit = RatingCollector(limit_for(0))
        kept = _Keeping()
        tally = self._tally()
        for table in self._tables():
            # Their number is not known before
            fit.limit = limit_for(fit.facts["n"] + len(table.plain))
            takers: tuple[RatingCollector | _Keeping, ...] = fit, kept
            parts = zip(table.parts(holdout), takers, strict=False)
            tally.add(table, [self._take(part, taker) for part, taker in parts])
        whole = tally.counts()
        held_out = None
        if holdout is not None:
            counts = tally.held_out(whole.coding)
            check_division(holdout.name, whole, counts)
            held_out = kept.ratings(counts, self.columns.threshold)
        to_fit = fit.ratings(of_both_classes(tally.counts_of(fit.facts), self.columns))
        return DividedRatings(to_fit, held_out)

    def kept(self) -> KeptRatings:
        kept = _Keeping()
        tally = self._tally()
        for table in self._tables():
            tally.add(table, [self._take(table.plain, kept)])
        return kept.ratings(tally.counts(), self.columns.threshold)

    def _take(self, table: pa.Table, taker: RatingCollector | _Keeping) -> Facts:
        batch = read_batch(table, self.columns.threshold)
        taker.add(table, batch)
        return batch.facts

    def _tally(self) -> RatingTally:
        return RatingTally(self.columns, self._boolean)

    def _tables(self) -> Iterator[RatingTable]:
        """Another thread reads the next batches at the same time."""
        return rating_tables(self.table.batches(self.table.schema.names), ahead=True)


class _Keeping:
    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()
        self._tables: list[pa.Table] = []
        self._positive: list[Mask] = []
        self._cells: list[Hashes] = []

    def add(self, table: pa.Table, batch: RatingBatch) -> None:
        self.facts.update(batch.facts)
        self._tables.append(
            table.select([name for name in (USER, ITEM, GROUP) if name in table.schema.names])
        )
        self._positive.append(batch.positive)
        self._cells.append(batch.hashes)

    def ratings(self, counts: RatingCounts, threshold: float | None) -> KeptRatings:
        table = pa.concat_tables(self._tables)
        groups = table[GROUP] if GROUP in table.schema.names else None
        positive = np.concatenate(self._positive)
        cells = np.concatenate(self._cells)
        return KeptRatings(table[USER], table[ITEM], positive, cells, groups, counts, threshold)


# ---- one table of ratings ----------------------------------------------------------------------


@dataclass(frozen=True)
class RatingTable:
    """Some ratings as they were given, and with numbers and the hashes of their cells."""

    given: pa.Table
    plain: pa.Table
    absent: bool  # whether an id is null or NaN

    def parts(self, holdout: Holdout | None) -> list[pa.Table]:
        """The ratings to fit, and those that are held out, unless they are refused anyway."""
        if holdout is None or self.absent:
            return [self.plain]
        out = holdout.drawn(self.plain)
        return [self.plain.filter(~out), self.plain.filter(out)]


def rating_tables(batches: Batches, ahead: bool = False) -> Iterator[RatingTable]:
    """Batches of ratings under the names of INSIDE, with their labels and weights in any form, as
    tables.

    Ratings of weight 0 are left out. If ``ahead`` is true, another thread reads the next batches at
    the same time.
    """
    tables = joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES)
    for read in one_ahead(tables) if ahead else tables:
        given = without_zeros(read)
        if not len(given):
            continue
        plain = plain_numbers(given)
        absent = any(map(is_incomplete, (plain[USER], plain[ITEM])))
        if HASH not in plain.schema.names:
            cells = (
                np.zeros(len(plain), np.int64) if absent else cell_hashes(plain[USER], plain[ITEM])
            )
            plain = plain.append_column(HASH, pa.array(cells))
        yield RatingTable(given, plain, absent)


def without_zeros(given: pa.Table) -> pa.Table:
    """The ratings without those of weight 0, which count as absent."""
    if WEIGHT not in given.schema.names:
        return given
    return given.filter(
        pc.fill_null(pc.not_equal(_weights(given[WEIGHT]), pa.scalar(0, pa.float32())), True)
    )


def plain_numbers(given: pa.Table) -> pa.Table:
    """Labels and weights as numbers, groups as text; −0.0 is 0.0 among ids, as in Spark's grouping
    and joins.
    """
    columns = {name: given[name] for name in given.schema.names}
    for name in (USER, ITEM):
        if pa.types.is_floating(given[name].type):
            columns[name] = pc.add(given[name], pa.scalar(0.0, given[name].type))
    label = given[LABEL]
    if is_text(label.type):
        columns[LABEL] = text_to_numbers(label, booleans=True)
    elif pa.types.is_decimal(label.type):
        columns[LABEL] = as_doubles(label)
    if WEIGHT in columns:
        columns[WEIGHT] = _weights(given[WEIGHT])
    if GROUP in columns and pa.types.is_floating(given[GROUP].type):
        words = [None if value is None else str(value) for value in given[GROUP].to_pylist()]
        columns[GROUP] = pa.chunked_array([pa.array(words, pa.string())])
    elif GROUP in columns:
        columns[GROUP] = given[GROUP].cast(pa.string())
    return pa.table(columns)


def _weights(given: pa.ChunkedArray) -> pa.ChunkedArray:
    """The weights as 32-bit floats. Text that is no number becomes null, and 1e39 infinite."""
    numbers = text_to_numbers(given) if is_text(given.type) else as_doubles(given)
    return numbers.cast(pa.float32(), safe=False)


def as_doubles(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """The nearest doubles. Arrow's own cast of a decimal rounds twice: 3.30 would be above 3.3."""
    exact = numbers.cast(pa.string()) if pa.types.is_decimal(numbers.type) else numbers
    return exact.cast(pa.float64(), safe=False)


def is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())


class RatingTally:
    """How many ratings there are and what is wrong with them, with three examples of each defect.

    Tallies add up.
    """

    def __init__(self, columns: Columns, boolean: bool) -> None:
        self.columns = columns
        self.facts: Counter[str] = Counter()  # of all ratings: see ``RatingBatch.facts``
        self.held_facts: Counter[str] = Counter()  # of those that are held out
        self._boolean = boolean  # whether the labels are booleans
        self._examples: dict[str, list[str]] = {flag: [] for flag in FLAGS}

    def add(self, table: RatingTable, facts: Sequence[Facts]) -> None:
        """Count more ratings by the facts of their parts.

        They are examined only if the facts show a defect.
        """
        for part in facts:
            self.facts.update(part)
        for part in facts[1:]:
            self.held_facts.update(part)
        outside = "other" if self.columns.threshold is None else "bad_label"
        if table.absent or any(
            part.get(flag) for part in facts for flag in ("bad_label", "bad_weight", outside)
        ):
            self._examine(table)

    def _examine(self, table: RatingTable) -> None:
        inside = [name for name in (USER, ITEM, LABEL, WEIGHT) if name in table.given.schema.names]
        for flag, which in _defects_of(table).items():
            places = np.flatnonzero(which)
            if flag in ("bad_user", "bad_item", "text_label"):
                self.facts[flag] += len(places)
            if flag == "text_label":  # counted as ``bad_label`` so far
                self.facts["bad_label"] -= len(places)
            shown = pa.array(places[: EXAMPLES - len(self._examples[flag])])
            lines = table.given.select(inside).take(shown).to_pylist()
            self._examples[flag] += [as_examples([list(line.values())]) for line in lines]

    def counts(self) -> RatingCounts:
        return self.counts_of(self.facts)

    def counts_of(self, facts: Mapping[str, int]) -> RatingCounts:
        return counts_if_sound(self.columns, facts, self._boolean, self._shown)

    def held_out(self, coding: Coding) -> RatingCounts:
        facts = self.held_facts
        return RatingCounts(facts["n"], facts["above"], coding, fingerprint_of(facts))

    def _shown(self, flag: str) -> str:
        return ", ".join(self._examples[flag])

    def state(self) -> TallyState:
        """What another process adds up."""
        return {"facts": self.facts, "held": self.held_facts, "examples": self._examples}

    def merge(self, other: TallyState) -> None:
        self.facts.update(other["facts"])
        self.held_facts.update(other["held"])
        for flag, lines in other["examples"].items():
            self._examples[flag] = (self._examples[flag] + lines)[:EXAMPLES]


class TallyState(TypedDict):
    facts: Mapping[str, int]
    held: Mapping[str, int]
    examples: dict[str, list[str]]


def _defects_of(table: RatingTable) -> dict[str, Mask]:
    given = table.given
    plain = table.plain
    label = plain[LABEL].cast(pa.int8()) if pa.types.is_boolean(plain[LABEL].type) else plain[LABEL]
    number = label.cast(pa.float64(), safe=False)
    text = np.asarray(pc.and_(number.is_null(), given[LABEL].is_valid()))  # there, but no number
    absent = null_or_nan(number)
    defects = {
        "bad_user": null_or_nan(plain[USER]),
        "bad_item": null_or_nan(plain[ITEM]),
        "bad_label": absent & ~text,
        "text_label": text,
        "other": ~absent & ~np.isin(number.to_numpy(), (1.0, -1.0, 0.0)),
    }
    if WEIGHT in plain.schema.names:
        weights = plain[WEIGHT].to_numpy()
        defects["bad_weight"] = ~((weights > 0) & (weights <= LARGEST_WEIGHT))
    return defects
