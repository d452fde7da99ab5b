"""Which .cu files a fit needs, and for which macros. They are compiled side by side, before the first of them runs."""

from __future__ import annotations

from onebit_spark.core.posterior import Form
from onebit_spark.engines.cuda.device import cache_bytes, compile_soon
from onebit_spark.engines.cuda.ratings import DeviceRatings
from onebit_spark.engines.cuda.shapes import MODE_HINGE, MODE_LOGISTIC, MODE_SEARCH, RATING_MACROS, LineShape, Shape


def sum_macros(line: LineShape, ratings: DeviceRatings, mode: int) -> dict[str, int]:
    """Of ``sums.cu`` for these ratings."""
    lines = 4 * line.width * (ratings.n_columns + 1)
    return line.sum_macros(ratings.weights is not None, mode, lines <= cache_bytes())


def prepare_half_step(ratings: DeviceRatings, form: Form, hinge: bool) -> None:
    """Begin to compile what a half step needs, and what follows a fit."""
    shape = Shape.of(form, hinge)
    compile_soon("solve", shape.row_macros)
    if hinge:
        compile_soon("sums", sum_macros(shape.line, ratings, MODE_HINGE))
        compile_soon("sums", sum_macros(shape.search_line, ratings, MODE_SEARCH))
        compile_soon("hinge", shape.row_macros)
    else:
        compile_soon("sums", sum_macros(shape.line, ratings, MODE_LOGISTIC))
    compile_soon("lines", shape.row_macros)
    compile_soon("maps", shape.map_macros)
    compile_soon("totals", shape.total_macros)
    compile_soon("pairs", shape.pair_macros)


def prepare_ratings() -> None:
    """Begin to compile what every fit needs."""
    compile_soon("ratings", RATING_MACROS)
    compile_soon("fold", {})
