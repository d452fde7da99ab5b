"""The two exceptions that people see, and words for problems."""

from __future__ import annotations

from collections.abc import Sequence


class RequestError(ValueError):
    """The request or the data is wrong.

    The message says what is wrong and what to do. A job ends with exit code 2.
    """


class FitFailed(RuntimeError):
    """The fit failed: the objective is no longer a number, or the source changed. A job ends with
    exit code 1.
    """


def refuse(problems: Sequence[str]) -> None:
    """Raise a RequestError with all problems, if there are any."""
    if problems:
        raise RequestError("; ".join(problems))


def counted(n: int, noun: str) -> str:
    """1 rating, 2 ratings"""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
