"""Vectors whose inner product is the score, for any nearest-neighbour index (docs/serving.md).

    user   [L, 1, b]
    item   [R, d, 1]        [L, 1, b]·[R, d, 1] = L·R + d + b

Without intercepts they are L and R. ``OneBitCompletionModel.exportVectors`` writes the same two tables with Spark.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.core.losses import SIDES, Side
from onebit_spark.core.output_kinds import VECTORS
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.serving.local_folder import replaced_folder
from onebit_spark.serving.side import ResidentSide

SEAL = "_SUCCESS"  # an empty file, written last


def vector_table(ids: pa.Array, posterior: RowPosterior, side: Side) -> pa.Table:
    """id, vector list<float>: one line per id."""
    vectors = posterior.mean
    if posterior.intercept is not None:
        ends = [np.ones_like(posterior.intercept), posterior.intercept]
        vectors = np.column_stack([vectors, *(ends if side == "rows" else reversed(ends))])
    numbers = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
    starts = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * vectors.shape[1])
    return pa.table({"id": ids, "vector": pa.ListArray.from_arrays(starts, numbers)})


def write_vectors(
    path: str | os.PathLike[str], users: ResidentSide, items: ResidentSide, overwrite: bool = False
) -> None:
    """Write the folders ``users`` and ``items`` into a new folder ``path``."""
    with replaced_folder(path, VECTORS, overwrite) as folder:
        for name, side, resident in zip(("users", "items"), SIDES, (users, items), strict=True):
            (folder / name).mkdir()
            table = vector_table(resident.ids, resident.known, side)
            pq.write_table(table, folder / name / "part-00000.parquet")
        (folder / SEAL).touch()
