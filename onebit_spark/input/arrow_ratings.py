"""Ratings of an ArrowTable, without Spark: one pass reads, checks, holds out, numbers and packs them as they arrive.

    batches ─► under the names of ``batches``, labels and weights as numbers, without ratings of weight 0
            ─► what is wrong, with examples                                       (``Defects``)
            ─► a coin for every cell: to fit ─► 9 bytes per rating                 (``RatingCollector``)
                                      kept out ─► ids, label, group                (``KeptRatings``)

Checks, messages, held-out ratings and the numbers of the ids are the same as on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core.arrow import spark_name
from onebit_spark.core.hashes import cell_hashes, coin_drawn, limit_for
from onebit_spark.errors import RequestError
from onebit_spark.input.batches import (
    HASH,
    ITEM,
    LABEL,
    TABLE_BYTES,
    USER,
    WEIGHT,
    CollectedRatings,
    Hashes,
    RatingBatch,
    RatingCollector,
    joined,
    read_batch,
)
from onebit_spark.input.rating_checks import (
    BIT,
    EXAMPLES,
    Columns,
    RatingCounts,
    as_examples,
    column_count_problem,
    counts_if_sound,
    fingerprint_of,
    of_both_classes,
    type_problems,
)
from onebit_spark.input.tables import ArrowTable, null_or_nan, separator_in, text_to_numbers
from onebit_spark.platform.binary_cells import one_ahead

GROUP = "__onebit_group"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Holdout:
    """Which ratings are kept out of a fit: about a share of the cells, by a hash of user and item."""

    share: float
    seed: int

    def drawn(self, table: pa.Table) -> Mask:
        return coin_drawn(table[USER], table[ITEM], self.seed) < np.uint64(round(self.share * 2**32))


@dataclass(frozen=True)
class KeptRatings:
    """Ratings that a model is judged by."""

    users: pa.ChunkedArray
    items: pa.ChunkedArray
    positive: Mask
    cells: Hashes  # hashes of the cells
    groups: pa.ChunkedArray | None  # as text
    counts: RatingCounts
    threshold: float | None  # labels strictly greater are positive

    def sample(self, most: int) -> KeptRatings:
        """These ratings, or about so many of them, without their groups."""
        if self.counts.n <= most:
            return self
        places = np.sort(np.random.default_rng(0).choice(self.counts.n, most, replace=False))
        users, items = (ids.take(pa.array(places)) for ids in (self.users, self.items))
        return replace(
            self, users=users, items=items, positive=self.positive[places], cells=self.cells[places], groups=None
        )


@dataclass(frozen=True)
class DividedRatings:
    """Ratings that were read: those to fit, and those kept out of the fit."""

    to_fit: CollectedRatings
    kept: KeptRatings | None


class ArrowRatings:
    """The ratings of a table. ``by`` is a column to group them by."""

    def __init__(self, table: ArrowTable, columns: Columns, by: str | None = None) -> None:
        self.columns = columns
        roles = {"user": USER, "item": ITEM, "label": LABEL, "weight": WEIGHT}
        names = {roles[role]: self._column(table, name, f" for the {role}") for role, name in columns.roles.items()}
        if len({names[role] for role in (USER, ITEM, LABEL)}) < 3:
            raise RequestError("user, item and label must be three different columns")
        if by is not None:
            names[GROUP] = self._column(table, by, " to group by")
        self.table = table.named(names)
        types = {role: spark_name(self.table.schema.field(roles[role]).type) for role in columns.roles}
        if problems := type_problems(columns, types):
            raise RequestError("; ".join(problems))
        self.id_types = {who: types[who] for who in ("user", "item")}
        self._boolean = types["label"] == "boolean"

    @staticmethod
    def _column(table: ArrowTable, name: str, role: str) -> str:
        columns = table.matching(name)
        if problem := column_count_problem(len(columns), name, role, table.schema.names):
            if (sign := separator_in(table.schema.names)) is not None:
                problem += f": its fields look separated by {sign!r}, set options={{'sep': {sign!r}}}"
            raise RequestError(problem)
        return columns[0]

    def divided(self, holdout: Holdout | None = None, nothing: str = "no rating is held out") -> DividedRatings:
        """Read all ratings: those to fit, and held-out ones. ``nothing`` is the error if no rating is held out."""
        fit, kept, defects = RatingCollector(limit_for(0)), _Keeping(), Defects(self.columns)
        for given, plain, absent in self._tables():
            out = None if holdout is None or absent else holdout.drawn(plain)
            fit.limit = limit_for(fit.facts["n"] + len(plain))  # their number is not known before
            parts: list[tuple[pa.Table, RatingCollector | _Keeping]] = [(plain, fit)]
            if out is not None:
                parts = [(plain.filter(~out), fit), (plain.filter(out), kept)]
            defects.see(given, plain, [self._taken(part, taker) for part, taker in parts], absent)
        whole, held_out = self._counts(defects.facts, defects), None
        if holdout is not None:
            if not kept.facts["n"]:
                raise RequestError(nothing)
            counts = RatingCounts(kept.facts["n"], kept.facts["above"], whole.coding, fingerprint_of(kept.facts))
            held_out = kept.ratings(counts, self.columns.threshold)
        to_fit = fit.ratings(of_both_classes(self._counts(fit.facts, defects), self.columns))
        return DividedRatings(to_fit, held_out)

    def kept(self) -> KeptRatings:
        """All ratings, to judge a model by. A single class is allowed."""
        kept, defects = _Keeping(), Defects(self.columns)
        for given, plain, absent in self._tables():
            defects.see(given, plain, [self._taken(plain, kept)], absent)
        return kept.ratings(self._counts(defects.facts, defects), self.columns.threshold)

    def _taken(self, table: pa.Table, taker: RatingCollector | _Keeping) -> dict[str, int]:
        batch = read_batch(table, self.columns.threshold)
        taker.add(table, batch)
        return batch.facts

    def _counts(self, facts: Counter[str], defects: Defects) -> RatingCounts:
        return counts_if_sound(self.columns, facts, self._boolean, defects.examples)

    def _tables(self) -> Iterator[tuple[pa.Table, pa.Table, bool]]:
        """Some ratings as they are, and with numbers and the hashes of their cells; and whether an id is absent.

        Another thread reads the next batches at the same time.
        """
        batches = self.table.batches(self.table.schema.names)
        for read in one_ahead(joined(batches, lambda batch: int(batch.nbytes), TABLE_BYTES)):
            if len(given := without_zeros(read)):
                plain = plain_numbers(given)
                absent = any(map(is_incomplete, (plain[USER], plain[ITEM])))
                cells = np.zeros(len(plain), np.int64) if absent else cell_hashes(plain[USER], plain[ITEM])
                yield given, plain.append_column(HASH, pa.array(cells)), absent


class _Keeping:
    """Collects ratings that a model is judged by."""

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()
        self._tables: list[pa.Table] = []
        self._positive: list[Mask] = []
        self._cells: list[Hashes] = []

    def add(self, table: pa.Table, batch: RatingBatch) -> None:
        self.facts.update(batch.facts)
        self._tables.append(table.select([name for name in (USER, ITEM, GROUP) if name in table.schema.names]))
        self._positive.append(batch.positive)
        self._cells.append(batch.hashes)

    def ratings(self, counts: RatingCounts, threshold: float | None) -> KeptRatings:
        table = pa.concat_tables(self._tables)
        groups = table[GROUP] if GROUP in table.schema.names else None
        positive, cells = np.concatenate(self._positive), np.concatenate(self._cells)
        return KeptRatings(table[USER], table[ITEM], positive, cells, groups, counts, threshold)


# ---- one table of ratings --------------------------------------------------------------------------------------------


def is_incomplete(ids: pa.ChunkedArray) -> bool:
    """Whether some are null or NaN."""
    return bool(ids.null_count or (pa.types.is_floating(ids.type) and pc.any(pc.is_nan(ids)).as_py()))


def without_zeros(given: pa.Table) -> pa.Table:
    """Without the ratings of weight 0, which are as if they were not there."""
    if WEIGHT not in given.schema.names:
        return given
    return given.filter(pc.fill_null(pc.not_equal(_weights(given[WEIGHT]), pa.scalar(0, pa.float32())), True))


def plain_numbers(given: pa.Table) -> pa.Table:
    """Labels and weights as numbers, groups as text; −0.0 is 0.0 among ids, as in Spark's grouping and joins."""
    columns = {name: given[name] for name in given.schema.names}
    for name in (USER, ITEM):
        if pa.types.is_floating(given[name].type):
            columns[name] = pc.add(given[name], pa.scalar(0.0, given[name].type))
    label = given[LABEL]
    if pa.types.is_string(label.type):
        columns[LABEL] = text_to_numbers(label, booleans=True)
    elif pa.types.is_decimal(label.type):
        columns[LABEL] = label.cast(pa.float64())
    if WEIGHT in columns:
        columns[WEIGHT] = _weights(given[WEIGHT])
    if GROUP in columns and pa.types.is_floating(given[GROUP].type):
        words = [None if value is None else str(value) for value in given[GROUP].to_pylist()]
        columns[GROUP] = pa.chunked_array([pa.array(words, pa.string())])
    elif GROUP in columns:
        columns[GROUP] = given[GROUP].cast(pa.string())
    return pa.table(columns)


def _weights(given: pa.ChunkedArray) -> pa.ChunkedArray:
    """As 32-bit floats. Text that is no number becomes null, and 1e39 infinite."""
    numbers = text_to_numbers(given) if pa.types.is_string(given.type) else given.cast(pa.float64())
    return numbers.cast(pa.float32(), safe=False)


class Defects:
    """The defects of the ratings read so far: how many, and three examples of each kind."""

    def __init__(self, columns: Columns) -> None:
        self.facts: Counter[str] = Counter()  # of all ratings: see ``RatingBatch.facts``
        self._columns = columns
        self._examples: dict[str, list[Sequence[object]]] = {name: [] for name in BIT}

    def see(self, given: pa.Table, plain: pa.Table, facts: Sequence[Mapping[str, int]], absent: bool) -> None:
        """Count the defects of more ratings. These are examined only if the ``facts`` read off them show a defect."""
        for part in facts:
            self.facts.update(part)
        outside = "other" if self._columns.threshold is None else "bad_label"
        if absent or any(part.get(name) for part in facts for name in ("bad_label", "bad_weight", outside)):
            columns = [inside for inside in (USER, ITEM, LABEL, WEIGHT) if inside in given.schema.names]
            for name, which in self._defects(given, plain).items():
                places = np.flatnonzero(which)
                if name in ("bad_user", "bad_item", "text_label"):
                    self.facts[name] += len(places)
                if name == "text_label":  # counted as ``bad_label`` so far
                    self.facts["bad_label"] -= len(places)
                shown = pa.array(places[: EXAMPLES - len(self._examples[name])])
                self._examples[name] += [list(line.values()) for line in given.select(columns).take(shown).to_pylist()]

    def _defects(self, given: pa.Table, plain: pa.Table) -> dict[str, Mask]:
        """Which ratings have each of the defects."""
        label = plain[LABEL].cast(pa.int8()) if pa.types.is_boolean(plain[LABEL].type) else plain[LABEL]
        number = label.cast(pa.float64())
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
            defects["bad_weight"] = ~((weights > 0) & (weights < np.inf))
        return defects

    def examples(self, name: str) -> str:
        return as_examples(self._examples[name])
