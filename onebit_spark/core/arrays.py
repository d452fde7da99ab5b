"""The types of arrays that the package names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]  # float32 or float64, as factors are stored
DoubleArray = NDArray[np.float64]  # sums, and all that the driver computes
IntArray = NDArray[np.integer]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
