"""The paper's figure as PNG: error against switch noise."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure


def noise(records: pd.DataFrame) -> bytes:
    """The paper's figure: mean error against switch noise, with two standard errors."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(10, color="0.8", linewidth=1, zorder=0)
    axes.axvline(25, color="0.8", linewidth=1, zorder=0)
    for (method, group), marker in zip(
        records.groupby("method", sort=False), "osD^v", strict=False
    ):
        errors = 100 * group.groupby("switch")["error"].agg(["mean", "sem"]).fillna(0.0)
        axes.errorbar(
            100 * errors.index.to_numpy(),
            errors["mean"],
            2 * errors["sem"],
            marker=marker,
            markersize=5,
            capsize=3,
            label=method,
        )
    axes.set_xlabel("labels switched (%)")
    axes.set_ylabel("error of the sign, all cells (%)")
    axes.set_title(
        "Type A2, rank 3: error against switch noise (mean ± 2 standard errors)", fontsize=10
    )
    axes.set_ylim(bottom=-1)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()
