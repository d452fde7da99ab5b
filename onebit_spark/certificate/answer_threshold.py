"""From which confidence on a model answers, by its ``certificate.json`` (docs/MATH.md, §10)."""

from __future__ import annotations

import math
from typing import Any

from onebit_spark.certificate.selective import SELECTIVE
from onebit_spark.errors import RequestError


def applied(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    """The selective certificates that are not about a group, in the order of the requests."""
    return [item for item in certificate["certificates"] if item["name"] == SELECTIVE and not item["group"]]


def answering_threshold(certificate: dict[str, Any], max_error: float | None) -> float:
    """The confidence from which on the model answers. ∞ if the request could not be met.

    Parameters
    ----------
    certificate : dict
        The content of ``certificate.json``.
    max_error : float, optional
        Which of the certified error rates is meant. Default: the first.
    """
    found = applied(certificate)
    if not found:
        raise RequestError("no error rate was certified for this model: call certifySelective with fresh ratings first")
    if max_error is not None:
        certified = ", ".join(f"{item['request']:g}" for item in found)
        found = [item for item in found if math.isclose(item["request"], max_error, rel_tol=1e-9)]
        if not found:
            raise RequestError(f"maxError {max_error:g} was not certified for this model: choose one of {certified}")
    threshold = found[0]["threshold"]
    return math.inf if threshold is None else float(threshold)
