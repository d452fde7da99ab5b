"""DevicePrior: the prior of the rows of a half step, on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onebit_spark.core.losses import HalfStep, PriorLines
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.cuda.device import NULL, cupy


@dataclass(frozen=True)
class DevicePrior:
    """One line for all rows, or a line per row; and what side features add to the means."""

    mean: Any  # (D,) float64
    precision: Any  # (D, D) float64
    own: RowPosterior | None = None  # means and standard deviations, one line per row, in the place of these
    explained: Any = None  # (rows, D) float32, added to the means

    @classmethod
    def of(cls, step: HalfStep[Any], size: int, own: RowPosterior | None, features: Any) -> DevicePrior:
        """The prior of a step. ``own`` are the lines of its PriorLines, ``features`` the side features of all rows."""
        lines = np.zeros((1 + size, size))
        if not isinstance(step.prior, PriorLines):
            lines[0], lines[1:] = step.prior.mean[0], np.diag(step.prior.precision[0])
            lines[1:] += 0.0 if step.prior.coupling is None else step.prior.coupling
        lines = cupy().asarray(lines)
        mean, precision = lines[0], lines[1:]
        explained = None
        if features is not None:
            weights = cupy().asarray(step.feature_weights)
            explained = (features.astype(np.float64) @ weights).astype(np.float32)
        return cls(mean, precision, own, explained)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the kernels read it."""
        own = (NULL, NULL) if self.own is None else (self.own.location, self.own.deviation)
        return self.mean, self.precision, *own, NULL if self.explained is None else self.explained

    def known(self, told: Any, fixed: int) -> Any:
        """What features explain of the means, (rows, D); None without any. ``told``: the implicit ones', (rows, K)."""
        if told is None:
            return self.explained
        if self.explained is None:
            known = cupy().zeros((len(told), len(self.mean)), np.float32)
        else:
            known = self.explained.copy()
        known[:, fixed:] += told
        return known

    def means(self, known: Any) -> Any:
        """The prior means of all rows."""
        means = self.mean if self.own is None else self.own.location.astype(np.float64)
        return means if known is None else means + known
