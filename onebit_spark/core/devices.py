"""Where a fit can run: on this machine's cores, or on its GPU. What a GPU cannot fit is refused before any work."""

from __future__ import annotations

from functools import cache

from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution
from onebit_spark.core.settings import Problem

MOST_RANK = 64  # factors that the kernels of a GPU are made for
WITH_KERNELS = ("logistic", "hinge")  # losses


def device_problems(config: FitConfig, execution: Execution) -> list[Problem]:
    """All that keeps this fit from the device that it asks for."""
    if execution.device != "cuda":
        return []
    told = []
    if execution.exchange not in ("auto", "driver"):
        told.append(Problem("device", f"'cuda' needs {{other}}=driver, not {execution.exchange}", other="exchange"))
    largest = config.max_rank if isinstance(config.rank, str) else config.rank
    if largest > MOST_RANK:
        told.append(Problem("device", f"'cuda' fits up to {MOST_RANK} factors, not {largest}: choose 'cpu'"))
    if config.loss not in WITH_KERNELS:
        told.append(Problem("device", f"'cuda' has no kernels for the {config.loss} loss: choose 'cpu'"))
    if config.precision != "float32":
        told.append(Problem("device", f"'cuda' keeps factors as float32, not {config.precision}: choose 'cpu'"))
    lacking = missing()
    return told if lacking is None else [*told, Problem("device", f"'cuda' {lacking}")]


@cache
def missing() -> str | None:
    """What this machine lacks for a fit on a GPU, in words; None if it lacks nothing."""
    try:
        import cupy
    except ImportError:
        return "needs CuPy, which is not installed: pip install 'onebit_spark[gpu]', or choose 'cpu'"
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # the driver is missing, or too old
        return f"finds no GPU ({error}): choose 'cpu'"
    return None if found else "finds no GPU: choose 'cpu'"
