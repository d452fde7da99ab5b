"""How a fit is run: the cores and the memory of this process, the settings of ``Execution``, and what a GPU can fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from onebit_spark.core.config import FitConfig
from onebit_spark.core.settings import YES_OR_NO, Problem, at_least, documented, problems_of, setting

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")

T = TypeVar("T")


def available_cores() -> int:
    """The cores that this process may use: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def available_memory() -> int:
    """Bytes that this process can still take: the machine's free memory, or what its container leaves of it."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # not Linux: all of it
    with suppress(OSError, StopIteration):
        line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    limit = _container_memory()
    return free if limit is None else max(0, min(free, limit))


def one_ahead(items: Iterable[T], step: Callable[..., Any] = next) -> Iterator[T]:
    """The items. Another thread makes the next one, by ``step``, while the last is used."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(step, source, end)
        while (item := ahead.result()) is not end:
            ahead = pool.submit(step, source, end)
            yield item


def _cpu_quota() -> float | None:
    """Cores of the container (cgroup version 2, then 1), or None without a quota."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        limit, span = (int((CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return limit / span if limit > 0 else None
    return None


def _container_memory() -> int | None:
    """Bytes that the container leaves (cgroup version 2, then 1), or None without a limit. Its file cache is free."""
    for folder, limit, used, cached in (
        (CGROUP, "memory.max", "memory.current", "inactive_file"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # the word "max" is no number: no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return left + sum(int(value) for name, value in lines if name == cached)
    return None


# ---- settings --------------------------------------------------------------------------------------------------------

DEVICES = ("cpu", "cuda")
RARE, RESUMING = "rare", "resuming"  # groups of --help
EXCHANGES = ("auto", "driver", "broadcast", "mixed", "shuffle")


@documented
@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a fit is run. The fit itself depends on none of these."""

    row_blocks: int | None = setting(
        None, "blocks of users (default: by size and cores)", check=at_least(1), param="numUserBlocks", group=RARE
    )
    col_blocks: int | None = setting(
        None, "blocks of items (default: by size and cores)", check=at_least(1), param="numItemBlocks", group=RARE
    )
    exchange: str = setting(
        "auto",
        "where the ratings are fitted: on the driver, or in blocks on the executors, which receive the factors by "
        "broadcast, by shuffle, or one side in each way (mixed); auto: by the numbers of ratings and ids",
        choices=EXCHANGES,
    )
    device: str = setting(
        "cpu",
        "the driver fits on its cores (cpu) or on its GPU (cuda), which needs {exchange}=driver and CuPy",
        choices=DEVICES,
    )
    driver_ratings: int | None = setting(
        None,
        "most ratings that {exchange}=auto fits on the driver (default: by its memory, and at most 20 million on a "
        "cluster); 0: none",
        check=at_least(0),
        group=RARE,
    )
    work_dir: str | None = setting(
        None,
        "folder that all executors can reach, for the files of {exchange}=shuffle and mixed; the jobs set it",
        key=None,
        param=None,
    )
    checkpoint_dir: str | None = setting(
        None, "folder for checkpoints, from which a killed fit can go on", group=RESUMING
    )
    checkpoint_interval: int = setting(10, "iterations between two checkpoints", check=at_least(1), group=RARE)
    resume: bool = setting(
        False, "go on from a checkpoint in {checkpoint_dir}, if there is one", check=YES_OR_NO, group=RESUMING
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        problems = problems_of(self)
        if self.resume and not self.checkpoint_dir:
            problems.append(
                Problem("resume", "needs {other}: where is the checkpoint to resume from?", other="checkpoint_dir")
            )
        return problems


# ---- GPUs ------------------------------------------------------------------------------------------------------------

CUDA_MOST_RANK = 64  # factors that the kernels of a GPU are made for
CUDA_LOSS = "logistic"  # the loss that they are made for


def device_problems(config: FitConfig, execution: Execution) -> list[Problem]:
    """All that keeps this fit from the device that it asks for."""
    if execution.device != "cuda":
        return []
    problems = []
    if execution.exchange not in ("auto", "driver"):
        problems.append(Problem("device", f"'cuda' needs {{other}}=driver, not {execution.exchange}", other="exchange"))
    largest = config.max_rank if isinstance(config.rank, str) else config.rank
    if largest > CUDA_MOST_RANK:
        problems.append(Problem("device", f"'cuda' fits up to {CUDA_MOST_RANK} factors, not {largest}: choose 'cpu'"))
    if config.loss != CUDA_LOSS:
        problems.append(Problem("device", f"'cuda' fits the {CUDA_LOSS} loss, not {config.loss}: choose 'cpu'"))
    if config.precision != "float32":
        problems.append(Problem("device", f"'cuda' keeps factors as float32, not {config.precision}: choose 'cpu'"))
    lacking = no_device()
    return problems if lacking is None else [*problems, Problem("device", f"'cuda' {lacking}")]


@cache
def no_device() -> str | None:
    """What this machine lacks for a fit on a GPU, in words; None if it lacks nothing."""
    try:
        import cupy
    except ImportError:
        return "needs CuPy, which is not installed: pip install '.[gpu]' in a clone of onebit_spark, or choose 'cpu'"
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # the driver is missing, or too old
        return f"finds no GPU ({error}): choose 'cpu'"
    return None if gpus else "finds no GPU: choose 'cpu'"
