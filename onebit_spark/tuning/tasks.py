"""Independent tasks, on Spark or in threads. Results are kept, so a killed run continues where it was.

tasks ─► batches of some seconds ─► one Spark job of one task each, as many at a time as there are cores (or threads)
                                          └─► results, as soon as their batch is done ─► Ledger, progress
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from onebit_spark.core.compiled import sources
from onebit_spark.core.execution import available_cores
from onebit_spark.platform.files import Location
from onebit_spark.platform.sessions import cancel_group, join_group, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = dict[str, Any]  # of JSON values; they determine the result
TaskResult = dict[str, Any]  # of JSON values; ``seconds`` is added

BATCH_SECONDS = 4.0  # work per Spark job: much more than the start of a job costs, but not much to lose


class Advances(Protocol):
    """A progress display."""

    def advance(self, tasks: int, seconds: float) -> None:
        """So many more tasks are done, in so many seconds on the clock. 0 seconds: they were done before."""


class Ledger:
    """The results of finished tasks, in a folder of JSON lines. A file appears whole or not at all.

    Each version of the code, that of the ``packages``, has its own folder. Results of other versions are not used.
    """

    def __init__(self, spark: SparkSession | None, folder: str, packages: Sequence[str] = ("onebit_spark",)) -> None:
        self._folder = Location(spark, folder) / f"code-{source_digest(packages)}"
        self._lock = threading.Lock()
        self._results: dict[str, TaskResult] = {}
        for file in self._folder.children():
            if file.name.startswith("."):
                continue  # what a killed run did not finish
            for line in file.read_text().splitlines():
                entry = json.loads(line)
                self._results[key_of(entry["task"])] = entry["result"]

    def __contains__(self, task: Task) -> bool:
        return key_of(task) in self._results

    def __getitem__(self, task: Task) -> TaskResult:
        return self._results[key_of(task)]

    def __len__(self) -> int:
        return len(self._results)

    @property
    def seconds(self) -> float:
        """Seconds of all tasks, on one core each."""
        return sum(result["seconds"] for result in self._results.values())

    def record(self, tasks: Sequence[Task], results: Sequence[TaskResult]) -> None:
        lines = [json.dumps({"task": task, "result": result}) for task, result in zip(tasks, results, strict=True)]
        with self._lock:
            name = f"{uuid.uuid4().hex}.jsonl"
            unfinished = self._folder / f".{name}.writing"
            unfinished.write_text("\n".join(lines) + "\n")
            unfinished.move_to(self._folder / name)
            self._results.update(zip(map(key_of, tasks), results, strict=True))


def source_digest(packages: Iterable[str]) -> str:
    """A hash of the source of some packages. It also works without git."""
    digest = hashlib.sha256()
    for package in packages:
        for name, source in sorted(sources(files(package), package), key=lambda pair: pair[0]):
            digest.update(name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def key_of(task: Task) -> str:
    return json.dumps(task, sort_keys=True)


def run_tasks(
    spark: SparkSession | None, tasks: Sequence[Task], work: Callable[[Task], TaskResult], ledger: Ledger,
    progress: Advances, here: bool = False,
) -> list[TaskResult]:  # fmt: skip
    """``work(task)`` for every task, in the order of the tasks. Tasks in the ledger are not done again.

    ``work`` runs in Spark's Python workers, each on one core. With ``here``, or without a session, it runs in threads
    of this process, which share their data. That is for work that releases the interpreter lock.
    """
    open_tasks = list({key_of(task): task for task in tasks if task not in ledger}.values())
    progress.advance(len(tasks) - len(open_tasks), seconds=0.0)
    if open_tasks:
        _Run(spark, deque(open_tasks), work, ledger, progress, here or spark is None).finish()
    return [ledger[task] for task in tasks]


def run_one_by_one(
    tasks: Sequence[Task], work: Callable[[Task], TaskResult], ledger: Ledger, progress: Advances
) -> list[TaskResult]:
    """``work(task)`` for every task, one after the other, here. Tasks in the ledger are not done again."""
    for task in tasks:
        began = time.perf_counter()
        if task in ledger:
            progress.advance(1, seconds=0.0)
            continue
        result = work(task)
        seconds = time.perf_counter() - began
        ledger.record([task], [{**result, "seconds": seconds}])
        progress.advance(1, seconds)
    return [ledger[task] for task in tasks]


@dataclass
class _Run:
    """Runs the open tasks, with one driver thread per core. Each Spark job has one task, which works on one batch."""

    spark: SparkSession | None
    waiting: deque[Task]
    work: Callable[[Task], TaskResult]
    ledger: Ledger
    progress: Advances
    here: bool
    done: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        cores = available_cores() if self.spark is None else parallelism(self.spark)
        self.slots = max(1, min(cores, len(self.waiting)))
        self.group = f"onebit_spark-{uuid.uuid4().hex}"
        self.lock, self.stopped = threading.Lock(), threading.Event()

    def finish(self) -> None:
        with ThreadPoolExecutor(self.slots) as pool:
            threads = [pool.submit(self._work_off) for _ in range(self.slots)]
            try:
                for thread in wait(threads, return_when=FIRST_EXCEPTION).done:
                    thread.result()
            except BaseException:
                self.stopped.set()
                if self.spark is not None:
                    cancel_group(self.spark, self.group)
                raise

    def _work_off(self) -> None:
        if self.spark is not None:
            join_group(self.spark, self.group)
        while not self.stopped.is_set() and (batch := self._next_batch()):
            results = [_timed(self.work, task) for task in batch] if self.here else self._by_spark(batch)
            self.ledger.record(batch, results)
            with self.lock:
                seconds = sum(result["seconds"] for result in results)
                self.done, self.seconds = self.done + len(batch), self.seconds + seconds
                self.progress.advance(len(batch), seconds / self.slots)

    def _by_spark(self, batch: Sequence[Task]) -> list[TaskResult]:
        assert self.spark is not None
        lines = self.spark.createDataFrame(pa.table({"task": [json.dumps(task) for task in batch]}))
        answer = lines.coalesce(1).mapInArrow(_in_worker(self.work), "result string").toArrow()
        return [json.loads(text) for text in answer["result"].to_pylist()]

    def _next_batch(self) -> list[Task]:
        """Some seconds of work, estimated from earlier tasks. The first batches have one task, the last ones few."""
        with self.lock:
            by_time = int(BATCH_SECONDS * self.done / self.seconds) if self.seconds else 1
            size = max(1, min(by_time, len(self.waiting) // (2 * self.slots)))
            return [self.waiting.popleft() for _ in range(min(size, len(self.waiting)))]


def _in_worker(work: Callable[[Task], TaskResult]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [json.dumps(_timed(work, json.loads(text))) for text in batch.column("task").to_pylist()]
            yield pa.RecordBatch.from_pydict({"result": texts})

    return run


def _timed(work: Callable[[Task], TaskResult], task: Task) -> TaskResult:
    """The result of a task, with its seconds."""
    began = time.perf_counter()
    result = work(task)
    return {**result, "seconds": time.perf_counter() - began}
