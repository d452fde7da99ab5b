"""Two methods on the same random splits: is one of them better?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student


class PairedComparison(NamedTuple):
    """The ``mean`` difference, its 95% interval ``low`` to ``high``, and the two-sided ``p_value``
    of no difference.
    """

    mean: float
    low: float
    high: float
    p_value: float


def paired_comparison(differences: ArrayLike, ratio: float) -> PairedComparison:
    """The corrected resampled t-test (Nadeau and Bengio, 2003) of J ≥ 2 differences, one per split.

    ``ratio`` is the size of a test part divided by that of a training part. The variance of the
    mean is (1/J + ratio)·s². The plain s²/J would be right only for independent splits, but these
    share most of their ratings.
    """
    values = np.asarray(differences, dtype=np.float64)
    j = len(values)
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1) * np.sqrt(1 / j + ratio))
    half = float(student.ppf(0.975, j - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, j - 1)) if error > 0 else float(mean == 0)
    return PairedComparison(mean, mean - half, mean + half, p)
