"""ResidentSide: the ids of one side in this process with their posterior, and the scores of pairs of two such sides."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.core import prediction
from onebit_spark.core.factor_tables import read_factors
from onebit_spark.core.id_index import one_array
from onebit_spark.core.machine import available_cores
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.serving.id_types import comparable

FEW = 8  # below 1/FEW of the known ids, looking up ids one by one is faster than Arrow's table of all of them

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ResidentSide:
    """The ids of a side, and their posterior with the prior as one more, last row: that of an unknown id."""

    ids: pa.Array
    posterior: RowPosterior

    @classmethod
    def of(cls, table: pa.Table, prior: RowPosterior, columns: dict[str, str]) -> ResidentSide:
        """From a factor table. ``columns`` are those of ``factor_columns``."""
        lines = one_array(table.select(list(columns)).to_struct_array())
        return cls(one_array(table["id"]), read_factors(pa.concat_arrays([lines, pa.nulls(1, lines.type)]), prior))

    @property
    def known(self) -> RowPosterior:
        """The posterior without the prior's row."""
        return self.posterior.take(slice(len(self.ids)))

    def positions(self, ids: pa.ChunkedArray | pa.Array) -> Numbers:
        """The row of every id, −1 for one that is not known."""
        if FEW * len(ids) < len(self.ids):
            return self._lookup(one_array(comparable(ids)))
        found = pc.index_in(comparable(ids), value_set=comparable(self.ids))
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    def with_rows(self, ids: pa.Array, rows: RowPosterior) -> ResidentSide:
        """This side with more rows. An id that is known is replaced."""
        kept = np.flatnonzero(pc.invert(pc.is_in(self.ids, value_set=ids)).to_numpy(False))
        old, prior = self.posterior.take(kept), self.posterior.take(slice(-1, None))
        return ResidentSide(pa.concat_arrays([self.ids.take(pa.array(kept)), ids]), _stacked(old, rows, prior))

    def only(self, ids: pa.Array, rows: RowPosterior) -> ResidentSide:
        """A side of other rows, with the prior of this one."""
        return ResidentSide(ids, _stacked(rows, self.posterior.take(slice(-1, None))))

    @cached_property
    def _lookup(self) -> Callable[[pa.Array], Numbers]:
        """A function from ids to positions that does not look at all known ids."""
        if pa.types.is_integer(self.ids.type):
            known = self.ids.to_numpy().astype(np.int64)
            order = np.argsort(known, kind="stable")
            ascending = known[order]

            def search(ids: pa.Array) -> Numbers:
                asked = ids.to_numpy()
                place = np.minimum(np.searchsorted(ascending, asked), len(ascending) - 1)
                return np.where(ascending[place] == asked, order[place], -1)

            return search
        table = {value: place for place, value in enumerate(self.ids.to_pylist())}
        return lambda ids: np.fromiter((table.get(value, -1) for value in ids.to_pylist()), np.int64, len(ids))


def scored_pairs(
    users: ResidentSide, items: ResidentSide, rows: Numbers, cols: Numbers
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score and variance of every pair of positions, in slices side by side. Position −1 is an unknown id."""
    score, variance = np.empty(len(rows)), np.empty(len(rows))
    left, right = (replace(side.posterior, implicit=None) for side in (users, items))

    def fill(part: slice) -> None:
        pair = left.take(rows[part]), right.take(cols[part])
        score[part], variance[part] = prediction.score(*pair), prediction.variance(*pair)

    length = max(1, prediction.SLICE // left.dimension**2)
    if len(rows) <= length:
        fill(slice(None))
        return score, variance
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(fill, (slice(lo, lo + length) for lo in range(0, len(rows), length))))
    return score, variance


def _stacked(*parts: RowPosterior) -> RowPosterior:
    """Posteriors of the same form, one after the other."""
    tables = [(part.location, part.scale, part.implicit) for part in parts]
    location, scale, implicit = (
        None if arrays[0] is None else np.concatenate(arrays) for arrays in zip(*tables, strict=True)
    )
    assert location is not None
    assert scale is not None
    return RowPosterior(location, scale, parts[0].kind, parts[0].has_intercept, implicit)
