"""Lanes: eight float64 side by side, one of each of eight rows, for compiled kernels.

A small system is too short to fill vector instructions with one row. Eight rows fill them: entry q of all eight systems
is line q of an array with ``LANES`` columns, and every operation below acts on eight rows at once. LLVM maps a line
to the registers of the machine (four of two numbers, two of four, one of eight). No lane sees another one, so a row's
result does not depend on the rows that it shares a line with.
"""
# mypy: disallow-untyped-defs=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model
from numba.np.arrayobj import make_array

from onebit_spark.core.compiled import intrinsic

LANES = 8

_LINE = ir.VectorType(ir.DoubleType(), LANES)


class Lanes(types.Type):
    """The type of a line in a compiled function."""

    def __init__(self) -> None:
        super().__init__("Lanes")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _LINE)


def _address(context, builder, kind, array, line):
    data = make_array(kind)(context, builder, array).data
    first = builder.mul(line, ir.Constant(line.type, LANES))
    return builder.bitcast(builder.gep(data, [first]), _LINE.as_pointer())


def _of_llvm(builder, name, *arguments):
    """A function of lines that LLVM brings along."""
    kind = ir.FunctionType(_LINE, [_LINE] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f64")
    return builder.call(function, arguments)


@intrinsic
def load(typing, array, line):
    """Line ``line`` of a contiguous float64 array with LANES columns."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, array, *arguments), align=8)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing, array, line, value):
    """array[line] = value."""

    def generate(context, builder, signature, arguments):
        *place, line_value = arguments
        builder.store(line_value, _address(context, builder, array, *place), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def zeros(typing):
    """0 in every lane."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(_LINE, [0.0] * LANES)

    return lanes(), generate


@intrinsic
def times(typing, x, y):
    """x·y."""

    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def plus_product(typing, s, x, y):
    """s + x·y, rounded once where the machine can."""

    def generate(context, builder, signature, arguments):
        s, x, y = arguments
        return _of_llvm(builder, "fmuladd", x, y, s)

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def minus_product(typing, s, x, y):
    """s − x·y, rounded once where the machine can."""

    def generate(context, builder, signature, arguments):
        s, x, y = arguments
        return _of_llvm(builder, "fmuladd", builder.fneg(x), y, s)

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def reciprocal_root(typing, x):
    """1/√x."""

    def generate(context, builder, signature, arguments):
        return builder.fdiv(ir.Constant(_LINE, [1.0] * LANES), _of_llvm(builder, "sqrt", *arguments))

    return lanes(lanes), generate
