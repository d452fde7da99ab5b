"""A machine with a GPU may have neither numba nor pyarrow: the package can be imported there, and fits, slowly."""

import json
import subprocess
import sys

import numpy as np
import pytest

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.core.arrow import Absent

SETTINGS = {"rank": 2, "tol": 0, "max_iter": 3}
PROGRAM = f"""
import json, sys
for name in ("numba", "llvmlite", "pyarrow", "pyspark", "pandas"):
    sys.modules[name] = None
import onebit_spark.engines.cuda.runner
from onebit_spark import FitConfig, fit_arrays
rows, cols, labels = json.load(sys.stdin)
fits = [fit_arrays(rows, cols, labels, FitConfig(covariance=kind, **{SETTINGS})) for kind in ("full", "diagonal")]
print(json.dumps([fit.objective_history for fit in fits]))
"""


def test_plain_kernels_give_the_same_fit():
    rng = np.random.default_rng(0)
    ratings = [rng.integers(0, size, 120).tolist() for size in (12, 9, 2)]
    given, command = json.dumps(ratings), [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=600)
    for kind, found in zip(("full", "diagonal"), json.loads(done.stdout), strict=True):
        compiled = fit_arrays(*ratings, FitConfig(covariance=kind, **SETTINGS))
        np.testing.assert_allclose(found, compiled.objective_history, rtol=1e-6)


def test_what_is_absent_can_be_named_but_not_called():
    absent = Absent("pyarrow")
    assert isinstance(absent.types.is_list, Absent)
    with pytest.raises(ModuleNotFoundError, match=r"pyarrow\.array is needed, but pyarrow is not installed"):
        absent.array([1])
