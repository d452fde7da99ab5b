"""What the jobs share: seconds per phase, and messages about the outputs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onebit_spark.certificate.selective import SELECTIVE
from onebit_spark.cli.requests import JobRequest
from onebit_spark.cli.running import reason_of
from onebit_spark.errors import FitFailed, RequestError
from onebit_spark.model import OneBitCompletionModel

MOST_STATEMENTS = 40


class Clock:
    """Seconds per phase: ``with clock("reading"): …``. ``str(clock)`` lists all phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - began

    def split(self, phase: str, rest: str, part: str, seconds: float) -> None:
        """Divide a phase into a part of known length and the rest before it."""
        total = self.seconds.pop(phase)
        self.seconds |= {rest: max(0.0, total - seconds), part: seconds}

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())


def id_types(model: OneBitCompletionModel) -> dict[str, str]:
    """The model's id columns with their types. The column of the users is first."""
    return {model.info.columns[side]: model.info.id_types[side] for side in ("user", "item")}


def tell_locations(request: JobRequest, outputs: dict[str, str | None]) -> None:
    """Print where the outputs are. A quiet job prints only the paths."""
    for name, path in outputs.items():
        if path:
            print(path if request.quiet else f"{name}: {path}", flush=True)


def further_statements(certificates: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The sentences of selective certificates and of certificates for groups, at most ``MOST_STATEMENTS``."""
    found = [item for item in certificates if item["name"] == SELECTIVE or item.get("group")]
    for item in found[:MOST_STATEMENTS]:
        yield f"Certificate ({item['name']}): {item['statement']}"
    if len(found) > MOST_STATEMENTS:
        yield f"… and {len(found) - MOST_STATEMENTS} more certificates of groups, in the output."


@contextmanager
def after(success: str) -> Iterator[None]:
    """If the body fails, say in the message what was already done."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{success}: {error}") from error
    except Exception as error:
        raise FitFailed(f"{success}: {reason_of(error)}") from error
