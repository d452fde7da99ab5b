"""Figures as PNG: error against switch noise, and what cross-validation saw."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from onebit_spark.core.config import FitConfig
from onebit_spark.tuning.folds import Score, limit


def noise(records: pd.DataFrame) -> bytes:
    """The paper's figure: mean error against switch noise, with two standard errors."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(10, color="0.8", linewidth=1, zorder=0)
    axes.axvline(25, color="0.8", linewidth=1, zorder=0)
    for (method, group), marker in zip(records.groupby("method", sort=False), "osD^v", strict=False):
        errors = 100 * group.groupby("switch")["error"].agg(["mean", "sem"]).fillna(0.0)
        axes.errorbar(
            100 * errors.index.to_numpy(), errors["mean"], 2 * errors["sem"], marker=marker, markersize=5, capsize=3,
            label=method,
        )  # fmt: skip
    axes.set_xlabel("labels switched (%)")
    axes.set_ylabel("error of the sign, all cells (%)")
    axes.set_title("Type A2, rank 3: error against switch noise (mean ± 2 standard errors)", fontsize=10)
    axes.set_ylim(bottom=-1)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def tuning(scores: Sequence[Score], chosen: Score, told: Callable[[FitConfig], str], most: int = 30) -> bytes:
    """The most accurate settings, best on top, with one standard error, and where the rule cuts."""
    shown = sorted(scores, key=lambda score: score.error)[:most]
    figure = Figure(figsize=(9, 1.2 + 0.25 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(limit(scores), color="0.7", linestyle="--", linewidth=1, zorder=0)
    for place, score in enumerate(shown):
        colour = "C3" if score is chosen else "C0"
        axes.errorbar(score.error, place, xerr=score.standard_error, marker="o", markersize=4, capsize=2, color=colour)
    axes.set_yticks(range(len(shown)), [told(score.config) for score in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("error, mean over folds ± standard error; red: chosen; dashed: lowest plus its standard error")
    axes.spines[["top", "right"]].set_visible(False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()
