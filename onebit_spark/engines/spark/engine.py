"""From a DataFrame of ratings to the engine of its exchange, on the driver or on the executors;
factors of models.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from onebit_spark.core.fit_state import FitState
from onebit_spark.core.losses import OTHER, SIDES, Side
from onebit_spark.core.posterior import FloatArray, Form, RowPosterior
from onebit_spark.core.setup import form_of
from onebit_spark.core.spectral import CountedRows
from onebit_spark.core.work import Own, numbers_of, posterior_of
from onebit_spark.data.id_index import Ids
from onebit_spark.data.locations import Location
from onebit_spark.data.ratings import CollectedRatings, Columns, SizeEstimate, not_deterministic
from onebit_spark.engines.decide import ClusterLimits, Exchange, decide, takes_slice
from onebit_spark.engines.layout import RowLayout
from onebit_spark.engines.spark.blocking import (
    CHUNKS,
    RATINGS_PER_BLOCK,
    WIDE,
    Blocking,
    NumberedIds,
    SidePlan,
    SideTable,
    Storage,
    default_blocks,
    default_tasks,
    encoded,
    multiple_of,
    number_bundles,
    number_ids,
    placement_by_counts,
    placement_of,
)
from onebit_spark.engines.spark.frames import (
    TemporaryFolders,
    expect_long_lines,
    sql_type,
    truncate_plan,
    working_session,
)
from onebit_spark.engines.spark.packing import BUNDLES
from onebit_spark.engines.spark.ratings import collect_ratings, estimate_size
from onebit_spark.engines.spark.runner import BATCH_BYTES, Broadcasts, SparkEngine, Table, Takes
from onebit_spark.engines.spark.sessions import (
    checkpoint_folder,
    described,
    driver_limits,
    is_connect,
    is_local,
    parallelism,
)
from onebit_spark.engines.spark.survey import RatingSurvey, survey_ratings
from onebit_spark.model_info import (
    DIRECTIONS,
    MEASURED,
    ModelInfo,
    align_factors,
    factor_columns,
    factor_table,
    plain_lists,
    read_factors,
    side_table,
)
from onebit_spark.records import Record
from onebit_spark.settings import Execution, FitConfig

log = logging.getLogger("onebit_spark")

PARTNER_BYTES = 256 * 2**20  # of the factor rows that one block may refer to
OWN_BYTES = 128 * 2**20  # of the factor rows that one block updates


# What an engine starts from: ratings on the driver, or on the executors
Loaded = CollectedRatings | RatingSurvey


@contextmanager
def load_ratings(
    wanted: str,
    ratings: DataFrame,
    columns: Columns,
    form: Form,
    most_ratings: int | None = None,
    counted: SizeEstimate | None = None,
) -> Iterator[tuple[Exchange, Loaded]]:
    """The exchange of the ratings, and the ratings checked, counted and loaded for it.

    Their number decides whether they are collected on the driver. If they are not, or if the
    factors of their ids turn out to be too large, an aggregation counts them by their ids.
    ``counted`` is their size, if it is known already.
    """
    spark = ratings.sparkSession
    limits = ClusterLimits(
        driver_limits(spark), parallelism(spark), not is_connect(spark), most_ratings
    )
    if counted is None and (wanted == "driver" or (wanted == "auto" and most_ratings != 0)):
        with described(spark, "survey"):
            counted = estimate_size(ratings, columns)
    exchange = decide(wanted, counted, None, form, limits)
    if exchange.exchange == "driver":
        assert counted is not None
        with described(spark, "gathering"):
            most_bytes = min(limits.driver.result * 4 // 5, limits.driver.heap // 4)
            collected = collect_ratings(ratings, columns, counted, most_bytes)
        exchange = decide(wanted, counted, (collected.n_users, collected.n_items), form, limits)
        if exchange.exchange == "driver":
            yield exchange, collected
            return
        del collected  # or it would stay here until the fit ends
    with survey_ratings(
        ratings, columns, collect_ids=exchange.exchange not in ("shuffle", "mixed")
    ) as survey:
        yield decide(wanted, counted, (survey.n_users, survey.n_items), form, limits), survey


def open_state(
    spark: SparkSession,
    exchange: str,
    loaded: RatingSurvey,
    config: FitConfig,
    execution: Execution,
) -> AbstractContextManager[FitState[Table]]:
    """The state of a fit by an exchange on the executors."""
    folder = None
    if exchange != "broadcast":  # which stores nothing
        TemporaryFolders.of(spark).delete_unread()  # the files of models that are gone
        folder = work_folder(spark, execution.work_dir or execution.checkpoint_dir)
        if folder is None:
            log.warning(
                "the factors are stored on the executors, and a lost executor ends the fit: set "
                "checkpointDir, or "
                "sparkContext.setCheckpointDir, to a folder that all executors can reach"
            )
    fewer: Side = "rows" if loaded.n_users < loaded.n_items else "cols"
    held: dict[str, frozenset[Side]] = {
        "broadcast": frozenset(SIDES),
        "mixed": frozenset([fewer]),
        "shuffle": frozenset(),
    }
    blocks = execution.row_blocks, execution.col_blocks
    takes = partial(
        takes_slice,
        loaded.weight is not None,
        form_of(config),
        driver_limits(spark),
        execution.driver_ratings,
    )
    return executor_state(
        spark, loaded, blocks, form_of(config), Storage(folder), held[exchange], takes
    )


def work_folder(spark: SparkSession, given: str | None) -> Location | None:
    """A new folder for files that all executors can reach, or None if no such folder is known.

    It is in ``given``, else in the application's checkpoint folder, else, on a single machine, in a
    temporary one.
    """
    name = f"onebit-{uuid.uuid4().hex[:12]}"
    base = given or checkpoint_folder(spark)
    if base:
        return Location(spark, base) / name
    if not is_local(spark):
        return None
    temporary = tempfile.mkdtemp(prefix="onebit-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Location(spark, temporary) / name


@contextmanager
def executor_state(
    spark: SparkSession,
    survey: RatingSurvey,
    blocks: tuple[int | None, int | None],
    form: Form,
    storage: Storage,
    held: frozenset[Side],
    takes: Takes | None = None,
) -> Iterator[FitState[Table]]:
    """The state of a fit over packed ratings.

    All caches, broadcasts and files are released at the end, also after an error.

    ``held`` are the sides whose tables the driver holds. If it holds both, it also knows all ids.
    ``takes`` decides which slices of the ratings the driver searches.
    """
    with ExitStack() as release:
        release.callback(storage.clear)
        broadcasts = Broadcasts(spark)
        release.callback(broadcasts.close)
        session = working_session(spark)
        cores = parallelism(spark)
        with described(spark, "blocking"):
            if held == frozenset(SIDES):
                ids, plans, chunks, wide = _with_collected_ids(survey, blocks, cores, broadcasts)
                expect_long_lines(session, 1)
            else:
                ids, plans, chunks, wide = _with_sorted_ids(
                    survey, blocks, cores, form, held, release
                )
                expect_long_lines(session)
            blocking = Blocking(session, storage, release, plans, wide)
            sides = blocking.blocked(truncate_plan(chunks, session))
            for blocked in sides.values():
                if blocked.n_ratings != survey.counts.n:
                    raise not_deterministic(
                        f"{survey.counts.n:,} ratings were counted but {blocked.n_ratings:,} "
                        "blocked"
                    )
        engine = SparkEngine(blocking, sides, broadcasts, survey.weight is not None, takes)
        counted = survey.weight
        blocked_sum = engine.total_weight
        if counted is not None and not abs(blocked_sum - counted) <= 1e-6 * counted:
            raise not_deterministic(
                f"the weights summed to {counted:.9g} when they were counted, and to "
                f"{blocked_sum:.9g} later"
            )
        yield FitState(engine, ids=ids)


# The ids with their numbers, the division into blocks, the ratings in chunks for the blocks of
# rows, ``Blocking.wide``
_NumberedRatings = tuple[Mapping[Side, Ids], dict[Side, SidePlan], DataFrame, bool]


def _with_collected_ids(
    survey: RatingSurvey, blocks: tuple[int | None, int | None], cores: int, broadcasts: Broadcasts
) -> _NumberedRatings:
    """The driver numbers all ids, and broadcasts them."""
    all_ids = survey.ids()
    plans = dict[Side, SidePlan]()
    sent = list[Broadcast[SideTable]]()
    for (side, ids), given in zip(all_ids.items(), blocks, strict=True):
        n = len(ids)
        n_blocks = given or min(n, multiple_of(cores, default_blocks(survey.counts.n, n, cores)))
        rows = np.arange(n)
        placement = placement_by_counts(rows, ids.counts, survey.counts.n, n_blocks)
        table = SideTable(ids.values, placement.of(rows), ids.counts, ids.positives)
        counted = CountedRows(rows, ids.counts, ids.positives) if survey.weight is None else None
        sent.append(broadcasts.send(table))
        plans[side] = SidePlan(
            placement, n, default_tasks(n_blocks, cores), True, sent[-1], counted
        )
    users, items = sent
    number = partial(number_bundles, users, items)
    return all_ids, plans, survey.packed.bundles.select(*BUNDLES).mapInArrow(number, CHUNKS), False


def _with_sorted_ids(
    survey: RatingSurvey,
    blocks: tuple[int | None, int | None],
    cores: int,
    form: Form,
    held: frozenset[Side],
    release: ExitStack,
) -> _NumberedRatings:
    """A distributed sort numbers the ids. Nothing on the driver grows with them."""
    n = survey.counts.n
    ids = number_ids(survey, release)
    n_blocks: dict[Side, int] = {}
    for side, given in zip(SIDES, blocks, strict=True):
        sent = 0 if OTHER[side] in held else ids[OTHER[side]].n_rows
        n_blocks[side] = given or blocks_by_size(n, ids[side].n_rows, sent, form, cores)
    placed = {side: placement_of(ids[side], n, count) for side, count in n_blocks.items()}
    wide = max(side.n_rows for side in ids.values()) >= WIDE
    plans: dict[Side, SidePlan] = {}
    for side, count in n_blocks.items():
        # A few blocks per task, as many as have the ratings of one large block: lines travel
        # between fewer tasks.
        n_tasks = max(default_tasks(count, cores), min(count, -(-n // RATINGS_PER_BLOCK)))
        plans[side] = SidePlan(placed[side], ids[side].n_rows, n_tasks, side in held)
    return ids, plans, encoded(survey.packed, ids, placed["rows"], wide), wide


def blocks_by_size(n_ratings: int, n_rows: int, n_sent: int, form: Form, cores: int) -> int:
    """So many blocks that neither the rows of a block nor those of the other side that it needs
    take much memory.

    ``n_sent`` is the number of rows of the other side that may be sent to a block.
    """
    few = n_sent * form.sent.row_bytes <= PARTNER_BYTES
    ratings = (
        RATINGS_PER_BLOCK if few else min(RATINGS_PER_BLOCK, PARTNER_BYTES // form.sent.row_bytes)
    )
    return default_blocks(
        n_ratings, n_rows, max(cores, -(-n_rows * form.row_bytes // OWN_BYTES)), ratings
    )


# ---- factors of models -------------------------------------------------------------------------

MOST_KEPT = 64 * 2**20  # bytes of a table that is also kept here
PLAIN_IDS = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
}

TABLE = "_onebit_table"  # the attribute of a DataFrame that keeps the table it was made of


def factor_frame(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """A factor table of this process as a DataFrame.

    Spark sends it to the executors with every job that needs it.

    The batches have a bounded size in bytes: Spark bounds only the number of rows, and rows can be
    large.
    """
    rows = max(1, BATCH_BYTES * max(1, table.num_rows) // max(1, table.nbytes))
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=rows), table.schema)
    frame = spark.createDataFrame(batches, schema=schema)
    if table.nbytes <= MOST_KEPT and table["id"].type == PLAIN_IDS.get(
        schema["id"].dataType.simpleString()
    ):
        vars(frame)[TABLE] = plain_lists(table)
    return frame


def collected_factors(frame: DataFrame) -> pa.Table:
    """A factor table in this process: that which the DataFrame was made of, if it is in memory,
    else by a job.
    """
    table = vars(frame).get(TABLE)
    return frame.toArrow() if table is None else table


def factor_schema(info: ModelInfo, side: str, present: Collection[str] = ()) -> StructType:
    """The schema of ``users`` or ``items``, for side "user" or "item", with the optional columns
    that are ``present``: those of a checkpoint, and those of positions.
    """
    columns = factor_columns(*info.table_form)
    if DIRECTIONS in present:
        columns[DIRECTIONS] = "array<float>"
    if set(MEASURED) <= set(present):
        columns |= MEASURED
    schema = StructType().add("id", sql_type(info.id_types[side]))
    for name, kind in columns.items():
        schema = schema.add(name, sql_type(kind))
    return schema


def factor_lines(numbers: NDArray[np.int64], own: Own) -> pa.Table:
    measured = numbers_of(own["measured"]) if "measured" in own else None
    table = factor_table(pa.array(numbers), posterior_of(own["rows"]), measured)
    return plain_lists(table.rename_columns({"id": "number"}))


def pack_rows(
    prior: RowPosterior, precision: str, batch: pa.RecordBatch
) -> tuple[NDArray[np.int64], FloatArray]:
    rows = read_factors(batch.drop_columns(["id", "number"]).to_struct_array(), prior)
    return batch.column("number").to_numpy(), rows.packed().astype(precision)


def factors_of(
    spark: SparkSession,
    state: FitState[Any],
    side: Side,
    tables: Record,
    schema: StructType,
    newcomers: pa.Table | None = None,
    persist: bool = False,
) -> DataFrame:
    """The factor table of a side (see ``model_info``).

    ``tables`` are those of the fit: "rows", the posterior, and "measured" unless this is a
    checkpoint. ``newcomers`` are the factors of ids with side features and without ratings. With
    ``persist``, the table outlives the engine.
    """
    engine = state.engine
    if not isinstance(engine, SparkEngine) or engine.is_held(side):
        ids = state.ids[side].values
        rows = engine.rows_here(tables["rows"])
        measured: Any = tables.get("measured")
        if isinstance(measured, Table):
            measured = measured.lines
        return factor_frame(spark, side_table(ids, rows, measured, newcomers), schema)
    numbered_ids = state.ids[side]
    assert isinstance(numbered_ids, NumberedIds)
    ids = numbered_ids.frame
    numbered = StructType([StructField("number", LongType()), *schema.fields[1:]])
    lines = truncate_plan(engine.frame(side, tables, factor_lines, numbered), ids.sparkSession)
    frame = ids.select("id", "number").join(lines, "number").select(*schema.names)
    if newcomers is not None:
        frame = frame.unionAll(factor_frame(ids.sparkSession, newcomers, schema))
    return engine.persist(frame, schema) if persist else frame


def adopt_factors(
    state: FitState[Any],
    factors: DataFrame,
    side: Side,
    prior: RowPosterior,
    precision: str,
) -> Any:
    """The posterior of the state's ids from a factor table.

    Ids that it lacks get the one row of ``prior``.
    """
    engine = state.engine
    ids = state.ids[side]
    if not isinstance(engine, SparkEngine) or engine.is_held(side):
        rows = align_factors(collected_factors(factors), ids.values, prior, precision)
        return engine.table(side, rows)
    assert isinstance(ids, NumberedIds)
    lines = ids.frame.select("id", "number").join(factors, "id")
    layout = RowLayout.of(prior.astype(precision).form)
    pack = partial(pack_rows, prior, precision)
    return engine.adopted(side, lines, pack, prior.packed().astype(precision), layout)
