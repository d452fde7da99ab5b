"""Labels: the column that says whether a rating is positive, the threshold for numbers, and the column of weights."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.settings import FINITE, Problem, problems_of, setting


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Where the labels are, and what they mean.

    Parameters
    ----------
    label_col : str
        Column of the labels: −1/1, 0/1, boolean, or a number with ``threshold``.
    rating_col : str, optional
        ALS's name for ``label_col``.
    threshold : float, optional
        Labels strictly greater are positive, the others negative.
    weight_col : str, optional
        Column of the weights. A rating counts as so many ratings; 0: as if it were not there (docs/MATH.md, §16).
    """

    label_col: str = setting("label", "column of the labels: −1/1, 0/1, boolean, or a number with {threshold}")
    rating_col: str | None = setting(None, "ALS's name for {label_col}; set only one of the two", key=None)
    threshold: float | None = setting(None, "labels strictly greater are positive, the others negative", check=FINITE)
    weight_col: str | None = setting(
        None, "column of positive weights: a rating counts as so many; 0: as if absent (default: all are 1)"
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        return problems_of(self)
