"""What this process may use of its machine: cores and memory, also where a container limits them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_cores() -> int:
    """The cores that this process may use: its affinity, and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def available_memory() -> int:
    """Bytes that this process can still take: the machine's free memory, or what its container leaves of it."""
    free = _free_memory()
    limit = _container_memory()
    return free if limit is None else max(0, min(free, limit))


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
    for folder, limit, used, cache in (
        (CGROUP, "memory.max", "memory.current", "inactive_file"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # the word "max" is no number: no limit
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return left + sum(int(value) for name, value in lines if name == cache)
    return None


def _free_memory() -> int:
    with suppress(OSError, StopIteration):
        line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # not Linux: all of it
