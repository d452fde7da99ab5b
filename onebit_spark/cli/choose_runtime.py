"""Where a job runs: in this process, unless something needs Spark. The choice is printed with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from onebit_spark.cli.flags import as_flag
from onebit_spark.cli.requests import (
    TABLE_FORMATS,
    FitRequest,
    JobRequest,
    PredictRequest,
    RatingsRequest,
    SessionRequest,
    is_table_name,
    under_spark_submit,
)
from onebit_spark.core.config import FitConfig
from onebit_spark.core.execution import Execution, available_memory
from onebit_spark.engines.decide import Refusal, on_driver
from onebit_spark.errors import RequestError
from onebit_spark.input.batches import SizeEstimate
from onebit_spark.input.tables import count_rows, format_of, id_text_bytes, open_table, option_problems
from onebit_spark.platform.sessions import NO_LIMIT, DriverLimits
from onebit_spark.predictor.model_folder import REMOTE

LOCAL, SPARK = "local", "spark"
BYTES_IN_TRANSFER = 24.0  # of a rating on its way: two ids and a label
PATHS = ("ratings", "predict", "pairs", "exclude_seen", "user_features", "item_features")
HERE_ONLY = ("model", "output", "predictions", "checkpoint_dir")  # paths that must be on this machine without Spark


class Chosen(NamedTuple):
    """The runtime, and why."""

    name: str
    reason: str


def choose(request: SessionRequest, otherwise: str) -> Chosen:
    """The runtime of a request; ``otherwise``: if it does not say. Refuses ``local`` where it cannot work."""
    wanted = getattr(request, "runtime", None) or otherwise
    if wanted == SPARK or not isinstance(request, JobRequest):
        return Chosen(SPARK, "as asked")
    if wanted == LOCAL:
        if obstacles := [*needs_spark(request), *too_large(request, "driver")]:
            raise RequestError(f"--runtime local cannot work: {'; '.join(obstacles)}")
        return Chosen(LOCAL, "as asked")
    obstacle = next(chain(cluster_named(), needs_spark(request), too_large(request, "auto")), None)
    if obstacle is None:
        return Chosen(LOCAL, "the input is read by Arrow and fits this machine, and no cluster is named")
    if find_spec("pyspark") is None:
        raise RequestError(f"{obstacle}: that needs Spark, which is not installed: pip install '.[spark]' in a clone")
    return Chosen(SPARK, obstacle)


def cluster_named() -> Iterator[str]:
    """Where the surroundings name a cluster."""
    if under_spark_submit():
        yield "spark-submit started this process"
    for name in ("SPARK_REMOTE", "HADOOP_CONF_DIR"):
        if os.environ.get(name):
            yield f"{name} is set"
    if os.environ.get("SPARK_API_MODE") == "connect":
        yield "SPARK_API_MODE is connect"
    master = re.search(r"--master[ =](\S+)", os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    if master and not master[1].startswith("local"):
        yield f"PYSPARK_SUBMIT_ARGS names the master {master[1]}"


def needs_spark(request: JobRequest) -> Iterator[str]:
    """What only Spark can do of a request, in words."""
    if request.remote:
        yield f"--remote {request.remote} names a Spark Connect server"
    for name, path in request.paths(name for name in PATHS if hasattr(request, name)).items():
        yield from _unread(request, name, path)
    for name, path in request.paths(name for name in HERE_ONLY if hasattr(request, name)).items():
        if REMOTE.match(path):
            yield f"{name} {path} is not on this machine"
    if isinstance(request, FitRequest | PredictRequest) and request.output_table:
        yield f"--output-table {request.output_table} is a table of a catalog"
    if isinstance(request, FitRequest):
        yield from _of_executors(request.execution())


def _unread(request: JobRequest, name: str, path: str) -> Iterator[str]:
    """Why Arrow cannot read an input."""
    if is_table_name(path) and not Path(path).exists():
        yield f"{name} {path} is a table of a catalog"
        return
    if re.search(r"\{.*\}", path) or (REMOTE.match(path) and re.search(r"[*?\[]", path)):
        yield f"{name} {path} is a pattern that Spark expands"
    format = request.format or format_of(path).name
    if format in TABLE_FORMATS:
        yield f"--format {format} is read by Spark"
    elif request.format is not None or request.option:
        yield from option_problems(format, request.option)


def _of_executors(execution: Execution) -> Iterator[str]:
    if execution.exchange not in ("auto", "driver"):
        yield f"--exchange {execution.exchange} fits on executors"
    for name in ("row_blocks", "col_blocks"):
        if getattr(execution, name) is not None:
            yield f"{as_flag(name)} divides the ratings for executors"
    if execution.driver_ratings == 0:
        yield "--driver-ratings 0 fits on executors"


def too_large(request: JobRequest, wanted: str) -> Iterator[str]:
    """Whether the ratings do not fit the memory. What is wrong with the input is left to the job."""
    if not isinstance(request, RatingsRequest):
        return
    rows, ids = None, 0.0
    with suppress(Exception):
        rows = count_rows(request.ratings, request.format, request.option)
        ids = _id_bytes(request, rows or 0)
    if rows is None:
        return
    most = request.execution().driver_ratings if isinstance(request, FitRequest) else None
    form = request.fit_config().form if isinstance(request, FitRequest) else FitConfig().form
    size = SizeEstimate(rows, BYTES_IN_TRANSFER, weighted=request.weight_col is not None, id_bytes=ids)
    limits = DriverLimits(NO_LIMIT, NO_LIMIT, available_memory(), local=True)
    try:
        answer = on_driver(wanted, size, 0, form, limits, most)
    except RequestError as error:
        yield str(error)
        return
    if isinstance(answer, Refusal):
        yield answer.reason


def _id_bytes(request: RatingsRequest, rows: int) -> float:
    """Of ids that are text. JSON lines would have to be read to the end for their types; that is left to the job."""
    if (request.format or format_of(request.ratings).name) == "json":
        return 0.0
    options = {key: value for key, value in request.option.items() if key.lower() != "inferschema"}  # reads all
    table = open_table(request.ratings, request.format, options)
    return id_text_bytes(table, (request.user_col, request.item_col), rows)
