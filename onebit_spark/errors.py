"""The two exceptions that people see."""

from __future__ import annotations


class RequestError(ValueError):
    """The request or the data is wrong. The message says what is wrong and what to do. A job ends with exit code 2."""


class FitFailed(RuntimeError):
    """The fit failed: the objective is no longer a number, or the source changed. A job ends with exit code 1."""
