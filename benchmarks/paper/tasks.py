"""Tasks that are done once: results are files, and a killed run continues from those that are
there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from onebit_spark.data.locations import Location
from onebit_spark.kernels.jit import sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("onebit_spark", "paper")  # whose code determines a result

Task = dict[str, Any]  # of JSON values, which determine the result
TaskResult = dict[str, Any]  # of JSON values, with ``seconds``


def run_tasks(
    tasks: Sequence[Task],
    work: Callable[[Task], TaskResult],
    folder: Location,
    advance: Callable[[int, float], None],
    at_once: int = 1,
) -> list[TaskResult]:
    """Do ``work(task)`` for every task, ``at_once`` of them in threads.

    The results have the order of the tasks.

    Each result is a JSON file in the folder, which appears whole or not at all. A task whose file
    is there is skipped, so a killed run continues. Each version of the code has its own subfolder.

    ``advance`` counts finished tasks and their seconds on the clock, 0 for those of an earlier run.
    """
    folder = folder / f"code-{source_digest()}"
    keys = [json.dumps(task, sort_keys=True) for task in tasks]
    names = {key: f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json" for key in keys}
    there = set(folder.names())
    results = {
        key: json.loads((folder / name).read_text())["result"]
        for key, name in names.items()
        if name in there
    }
    missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in results}
    advance(len(tasks) - len(missing), 0.0)
    at_once = max(1, min(at_once, len(missing)))

    def once(key: str) -> None:
        results[key] = timed(work, missing[key])
        (folder / names[key]).write_text(
            json.dumps({"task": missing[key], "result": results[key]}) + "\n"
        )

    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(once, key): key for key in missing}
        try:
            for future in as_completed(futures):
                future.result()
                advance(1, results[futures[future]]["seconds"] / at_once)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[key] for key in keys]


def timed(work: Callable[[Task], TaskResult], task: Task) -> TaskResult:
    began = time.perf_counter()
    result = work(task)
    return {"seconds": time.perf_counter() - began, **result}


def source_digest() -> str:
    """A hash of the source of the ``PACKAGES``, also from a zip."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for name, source in sorted(sources(files(package), package), key=lambda pair: pair[0]):
            digest.update(name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def on_workers(
    spark: SparkSession, work: Callable[[Task], TaskResult]
) -> Callable[[Task], TaskResult]:
    """``work`` as a Spark job of one task, which a thread of the driver starts."""

    def in_worker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [
                json.dumps(timed(work, json.loads(text)))
                for text in batch.column("task").to_pylist()
            ]
            yield pa.RecordBatch.from_pydict({"result": texts})

    def by_spark(task: Task) -> TaskResult:
        line = spark.createDataFrame(pa.table({"task": [json.dumps(task)]})).coalesce(1)
        return json.loads(
            line.mapInArrow(in_worker, "result string").toArrow()["result"][0].as_py()
        )

    return by_spark
