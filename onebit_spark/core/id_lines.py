"""Numbers that belong to ids: the side features of some users, or what these explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass(frozen=True)
class IdLines:
    """One line of numbers per id.

    Parameters
    ----------
    ids : Arrow array
        Different ids.
    lines : array (ids × numbers)
        ``lines[i]`` belongs to ``ids[i]``.
    """

    ids: pa.Array
    lines: NDArray[Any]

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, ids: pa.Array) -> NDArray[Any]:
        """The lines of any ids, 0 for those that have none."""
        places = pc.fill_null(pc.index_in(ids, value_set=self.ids.cast(ids.type)), -1).to_numpy().astype(np.int64)
        found = np.zeros((len(ids), self.lines.shape[1]), self.lines.dtype)
        found[places >= 0] = self.lines[places[places >= 0]]
        return found
