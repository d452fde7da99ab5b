"""Software prefetch: a table line is requested some ratings before it is read.

In a table larger than the cache every rating is a cache miss, and the processor looks only a few ratings ahead. A
prefetch changes no result.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.np.arrayobj import make_array

from onebit_spark.core.compiled import inner, intrinsic

AHEAD = 8  # ratings
CACHE_LINE = 64  # bytes
SMALL_TABLE = 1 << 20  # bytes


@intrinsic
def prefetch(typing, table, row, byte):
    """Prefetch the cache line that holds byte ``byte`` of a row of a contiguous table."""

    def generate(context, builder, signature, arguments):
        array = make_array(table)(context, builder, arguments[0])
        width = builder.extract_value(array.strides, 0)
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.bitcast(array.data, pointer)
        place = builder.gep(start, [builder.add(builder.mul(arguments[1], width), arguments[2])])
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, number(0), number(3), number(1)])  # to read, keep, data
        return context.get_dummy_value()

    return types.void(table, types.intp, types.intp), generate


@inner
def prefetch_rows(table, codes, l, n):
    """Prefetch the table lines of ratings l … l+n−1, as far as there are any. Small tables are in the cache anyway."""
    bytes_per_row = table.shape[1] * table.itemsize
    if len(table) * bytes_per_row < SMALL_TABLE:
        return
    for m in range(l, min(l + n, len(codes))):
        row = codes[m] >> 1
        for byte in range(0, bytes_per_row, CACHE_LINE):
            prefetch(table, row, byte)
