"""The plot of a cross-validation, as a PNG."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onebit_spark.core.config import FitConfig
from onebit_spark.tuning.folds import Score, limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("onebit_spark")


def tuning(scores: Sequence[Score], chosen: Score, name_of: Callable[[FitConfig], str], most: int = 30) -> bytes | None:
    """The most accurate settings, the best on top, with standard errors and the limit that ``choose`` uses.

    None, with a warning, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        log.warning("no tuning.png: it needs matplotlib (pip install 'onebit_spark[plots]')")
        return None
    shown = sorted(scores, key=lambda score: score.error)[:most]
    figure = Figure(figsize=(9, 1.2 + 0.25 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(limit(scores), color="0.7", linestyle="--", linewidth=1, zorder=0)
    for place, score in enumerate(shown):
        colour = "C3" if score is chosen else "C0"
        axes.errorbar(score.error, place, xerr=score.standard_error, marker="o", markersize=4, capsize=2, color=colour)
    axes.set_yticks(range(len(shown)), [name_of(score.config) for score in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("error, mean over folds ± standard error; red: chosen; dashed: lowest plus its standard error")
    axes.spines[["top", "right"]].set_visible(False)
    return as_png(figure)


def as_png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()
