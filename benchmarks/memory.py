"""Peak memory of a Spark session, process by process, from /proc (Linux)."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path

MB = 2**20


class MemoryWatch:
    """Peak resident megabytes of this process and its descendants, by role, sampled twice a second.

    Pages that forked workers share are counted once for each of them.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def told(self) -> str:
        return ", ".join(f"{role} {megabytes:,.0f}" for role, megabytes in self.peaks.items())

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            now: dict[str, float] = defaultdict(float)
            for pid, command, megabytes in descendants(os.getpid()):
                now[_role(pid, command)] += megabytes
            now["all"] = sum(now.values())
            for role, megabytes in now.items():
                self.peaks[role] = max(self.peaks[role], megabytes)


def _role(pid: int, command: str) -> str:
    if pid == os.getpid():
        return "driver's Python"
    if "CoarseGrainedExecutorBackend" in command:
        return "executors' JVMs"
    if "java" in command:
        return "JVM"
    return "Python workers"


def descendants(root: int) -> list[tuple[int, str, float]]:
    """(pid, command line, resident megabytes) of a process and all below it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found = []
    for pid in parents:
        above = pid
        while above not in (root, 0):
            above = parents.get(above, 0)
        if above == root:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
            found.append((pid, command, pages * os.sysconf("SC_PAGE_SIZE") / MB))
    return found
