"""Labels: the column that says whether a rating is positive, and from which number on it is."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.settings import FINITE, Problem, problems_of, setting


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Where the labels are, and what they mean."""

    label_col: str = setting("label", "column of the labels: −1/1, 0/1, boolean, or a number with {threshold}")
    rating_col: str | None = setting(None, "ALS's name for {label_col}; not together with it", key=None)
    threshold: float | None = setting(None, "labels strictly greater are positive, the others negative", check=FINITE)

    def problems(self) -> list[Problem]:
        """Everything that is wrong with these choices; empty if nothing is."""
        return problems_of(self)
