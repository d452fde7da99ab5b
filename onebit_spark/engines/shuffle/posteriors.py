"""The posterior of a side in a tall table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onebit_spark.core.posterior import Form
from onebit_spark.core.row_map import Reading, RowMap
from onebit_spark.engines.shuffle.routes import Sums
from onebit_spark.engines.shuffle.steps import Mapped
from onebit_spark.engines.shuffle.tables import AnyTable


@dataclass(frozen=True)
class TablePosterior:
    """Posterior of a side in a tall table.

    Parameters
    ----------
    table : TallTable or HeldTable
        The packed rows.
    reading : Reading
        How the packed rows are read: their layout, and the map that they go through.
    gram : array
        Σ_i [1, E x_i][1, E x_i]ᵀ of the rows as they lie in the table.
    weight_gram : array
        Σ_j w_j w_jᵀ of their weights for the other side. The driver knows no more of them.
    """

    table: AnyTable
    reading: Reading
    gram: Sums
    weight_gram: Sums

    @classmethod
    def made(cls, table: AnyTable, form: Form, grams: list[Sums]) -> TablePosterior:
        """From a new table, with the parts of its Gram matrix."""
        size, rank = form.dimension + 1, form.dimension - int(form.has_intercept)
        means, weights = np.split(np.sum(grams, axis=0), [size**2])
        return cls(table, Reading(form), means.reshape(size, size), weights.reshape(rank, rank))

    @staticmethod
    def sums(form: Form) -> int:
        """How many numbers the sums of ``made`` are."""
        return (form.dimension + 1) ** 2 + (form.dimension - int(form.has_intercept)) ** 2

    def copy(self) -> TablePosterior:
        """Itself: tables never change."""
        return self

    def mapped(self, by: RowMap) -> TablePosterior:
        return replace(self, reading=self.reading.then(by))

    @property
    def form(self) -> Form:
        return self.reading.form

    @property
    def column_norms(self) -> Sums:
        by = RowMap.identity(self.form.dimension) if self.reading.by is None else self.reading.by
        squares = np.diag(by.augmented.T @ self.gram @ by.augmented)
        return np.sqrt(squares[1 + int(self.form.has_intercept) :])

    @property
    def sending(self) -> Mapped | None:
        """What its lines go through before they are sent to the blocks of the other side."""
        return None if self.reading.by is None else Mapped(self.reading)
