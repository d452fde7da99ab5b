"""XᵀX by the compiled kernel, against numpy's product."""

from __future__ import annotations

import numpy as np
import pytest

from onebit_spark.core.implicit_features import gram_matrix


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 5, 130])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_it_is_the_product_whatever_the_number_of_lines(lines: int, precision: str) -> None:
    table = np.random.default_rng(lines).normal(size=(lines, 14)).astype(precision)
    part = table[:, 3:10]  # not contiguous
    np.testing.assert_allclose(gram_matrix(part), part.astype(np.float64).T @ part.astype(np.float64), atol=1e-12)
