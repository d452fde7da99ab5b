"""Labels: the column that says whether a rating is positive, the threshold for numbers, and the column of weights."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.settings import FINITE, Problem, documented, problems_of, setting


@documented
@dataclass(frozen=True, kw_only=True)
class Labels:
    """Where the labels are, and what they mean."""

    label_col: str = setting("label", "column of the labels: −1/1, 0/1, boolean, or a number with {threshold}")
    rating_col: str | None = setting(None, "ALS's name for {label_col}; set only one of the two", key=None)
    threshold: float | None = setting(None, "labels strictly greater are positive, the others negative", check=FINITE)
    weight_col: str | None = setting(
        None, "column of positive weights: a rating counts as so many; 0: as if absent (default: all are 1)", see="§16"
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        return problems_of(self)
