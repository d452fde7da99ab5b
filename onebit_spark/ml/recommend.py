"""The best items of every user, or users of every item. Blocks are compared with blocks; nothing is collected.

factors of the asking side ─pack─► one row per block ┐
                                                   ├─► every block with every block ─► n best of each row ─► merge
factors of the other side  ─pack─► one row per block ┘
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.factor_tables import factor_columns, prior_row, read_factors
from onebit_spark.core.id_index import IdIndex
from onebit_spark.core.model_info import PARTNER, SIDE_OF, Who
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.engines.block_frames import Batches
from onebit_spark.errors import refuse
from onebit_spark.input.ratings import checked_ids, refuse_stream
from onebit_spark.ml.spark_factors import SparkFactors
from onebit_spark.platform.binary_cells import binary_line
from onebit_spark.platform.plans import in_partitions
from onebit_spark.platform.sessions import parallelism
from onebit_spark.predictor.predictor import Predictor
from onebit_spark.predictor.top_n import Best, Ranking, Seen, best_of, best_partners, ranking_problems

BLOCK_BYTES = 16 * 2**20  # of factors in a block


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    n: int  # recommendations per id
    z: float | None = None  # Rank by the lower limit score − z·std. Default: by probability.
    exclude_seen: DataFrame | None = None  # pairs that are not recommended
    floor: float | None = None  # least confidence of a pair


def recommend(factors: SparkFactors, who: Who, request: Request, subset: DataFrame | None = None) -> DataFrame:
    """Recommendations for every user (``who`` = "user") or every item that the model knows, or for those of ``subset``.

    Returns
    -------
    DataFrame
        The id and ``recommendations``, an array of structs with the best first, as in ALSModel: the id of the other
        side, ``rating`` (the score), ``std`` and ``probability``.
    """
    refuse(ranking_problems(request.n, request.z))
    predictor, partner = Predictor.of(factors.info), PARTNER[who]
    rank = _Rank(request.n, predictor, predictor.ranking(request.z, request.floor))
    entry = f"key: double, partner: {factors.info.id_types[partner]}, rating: float, std: float, probability: float"
    schema = f"id {factors.info.id_types[who]}, recommendations array<struct<{entry}>>"
    if factors.fit_driver(factors.info.count(who) * request.n) and subset is None and request.exclude_seen is None:
        ranked = _ranked_here(factors, who, rank, schema)
    else:
        ranked = _ranked(factors, who, request, subset, rank, schema)
    names = {"partner": factors.columns[partner], "rating": "rating", "std": "std", "probability": "probability"}
    shown = F.transform("recommendations", lambda one: F.struct(*(one[k].alias(v) for k, v in names.items())))
    return ranked.select(F.col("id").alias(factors.columns[who]), shown.alias("recommendations"))


def _ranked_here(factors: SparkFactors, who: Who, rank: _Rank, schema: str) -> DataFrame:
    """All ids of a small model, ranked on the driver: no Python worker has to start."""
    served = factors.on_driver()
    asking, others = served.side(who), served.side(PARTNER[who])
    best = best_of(asking.known, np.arange(len(asking.ids)), others.known, rank.n, rank.ranking)
    lists = rank.lists(asking.ids, others.ids, best)
    return factors.spark.createDataFrame(pa.Table.from_batches([lists]), schema)


def _ranked(
    factors: SparkFactors, who: Who, request: Request, subset: DataFrame | None, rank: _Rank, schema: str
) -> DataFrame:
    """Blocks compared with blocks on the executors."""
    asking, seen = factors.of(who), request.exclude_seen
    if subset is not None:
        asking = asking.join(_ids(factors, who, subset).distinct(), "id", "left_semi")
    if seen is not None:
        asking = asking.join(_seen(factors, who, seen), "id", "left")
    cores = parallelism(asking.sparkSession)
    asking_blocks = max(_n_blocks(factors, who), min(cores, factors.info.count(who)))
    partner_blocks = _n_blocks(factors, PARTNER[who])
    left = _packed(factors, who, asking, asking_blocks, "left")
    right = _packed(factors, PARTNER[who], factors.of(PARTNER[who]), partner_blocks, "right")
    # Without the hint Spark would collect the smaller side on the driver, to broadcast it.
    pairs = left.crossJoin(right.hint("shuffle_replicate_nl"))
    ranked = pairs.mapInArrow(rank, schema)
    if partner_blocks > 1:
        lists = F.flatten(F.collect_list("recommendations"))
        best = F.slice(F.sort_array(lists, asc=False), 1, request.n)
        ranked = ranked.groupBy("id").agg(best.alias("recommendations"))
    return ranked


# ---- the two sides ---------------------------------------------------------------------------------------------------


def _n_blocks(factors: SparkFactors, who: Who) -> int:
    return max(1, -(-factors.info.count(who) * factors.bytes_per_row // BLOCK_BYTES))


def _ids(factors: SparkFactors, who: Who, dataset: DataFrame) -> DataFrame:
    """The ids of one side in the user's DataFrame, as ``id``."""
    refuse_stream(dataset, f"the {who}s to recommend for")
    factors.check_id_type(dataset, who)
    (checked,) = checked_ids(dataset, [factors.columns[who]])
    return dataset.select(checked.alias("id"))


def _seen(factors: SparkFactors, who: Who, ratings: DataFrame) -> DataFrame:
    """For every id of one side, the ids of the other side that are excluded."""
    both = who, PARTNER[who]
    refuse_stream(ratings, "the pairs to exclude")
    for one in both:
        factors.check_id_type(ratings, one)
    own, theirs = checked_ids(ratings, [factors.columns[one] for one in both])
    theirs = theirs.cast(factors.info.id_types[PARTNER[who]])
    return ratings.groupBy(own.alias("id")).agg(F.collect_set(theirs).alias("seen"))


def _packed(factors: SparkFactors, who: Who, table: DataFrame, n_blocks: int, prefix: str) -> DataFrame:
    """One row per block, one block per partition. After the shuffle, a block is packed once and used many times."""
    info, form = factors.info, (factors.info.kind, factors.info.config.intercepts)
    seen = [name for name in table.columns if name == "seen"]
    lines = F.struct(*factor_columns(*form)).alias("lines")
    placed = table.repartition(n_blocks).select("id", lines, F.spark_partition_id().alias("block"), *seen)
    types = f"block int, location binary, scale binary, ids array<{info.id_types[who]}>"
    types += f", seen array<array<{info.id_types[PARTNER[who]]}>>" if seen else ""
    blocks = placed.mapInArrow(_PackBlock(prior_row(info.scales, SIDE_OF[who], *form)), types)
    apart = in_partitions(blocks, n_blocks, blocks["block"])
    return apart.select(*(F.col(name).alias(f"{prefix}_{name}") for name in blocks.columns if name != "block"))


# ---- on the executors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PackBlock:
    """All factor lines of a task as one row of arrays."""

    prior: RowPosterior

    def __call__(self, batches: Batches) -> Batches:
        table = [batch for batch in batches if batch.num_rows]
        if not table:
            return
        joined = pa.Table.from_batches(table).combine_chunks().to_batches()[0]
        posterior = read_factors(joined.column("lines"), self.prior)
        line = binary_line(block=joined.column("block")[0].as_py(), location=posterior.location, scale=posterior.scale)
        columns = dict(zip(line.schema.names, line.columns, strict=True))
        columns["ids"] = _one_list(joined.column("id"))
        if "seen" in joined.schema.names:
            columns["seen"] = _one_list(joined.column("seen"))
        yield pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True)
class _Rank:
    """The n best of the right block for every row of the left one."""

    n: int
    predictor: Predictor
    ranking: Ranking

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for i in range(batch.num_rows):
                cell = {name: batch.column(name)[i] for name in batch.schema.names}
                left, right = self._posterior(cell, "left"), self._posterior(cell, "right")
                ids, partners = cell["left_ids"].values, cell["right_ids"].values
                seen = _positions(cell["left_seen"].values, partners) if "left_seen" in cell else None
                yield self.lists(ids, partners, best_partners(left, right, self.n, self.ranking, seen))

    def lists(self, ids: pa.Array, partners: pa.Array, best: Best) -> pa.RecordBatch:
        """The best ``partners`` of every id as a list of structs."""
        score, variance = best.score[best.present], best.variance[best.present]
        outputs = self.predictor.outputs(score, variance)
        structs = pa.StructArray.from_arrays(
            [
                pa.array(best.key[best.present]),
                partners.take(pa.array(best.partner[best.present])),
                *(pa.array(outputs[name].astype(np.float32)) for name in ("score", "std", "probability")),
            ],
            names=["key", "partner", "rating", "std", "probability"],
        )
        offsets = np.concatenate([[0], np.cumsum(best.present.sum(axis=1))]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), structs)
        return pa.RecordBatch.from_arrays([ids, lists], names=["id", "recommendations"])

    def _posterior(self, cell: dict[str, pa.Scalar], side: str) -> RowPosterior:
        n = len(cell[f"{side}_ids"].values)
        location, scale = (
            np.frombuffer(cell[f"{side}_{name}"].as_buffer(), np.float32).reshape(n, -1)
            for name in ("location", "scale")
        )
        return RowPosterior(location, scale, self.predictor.kind, self.predictor.intercepts)


def _one_list(values: pa.Array) -> pa.ListArray:
    """An array as the only element of a list array."""
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _positions(seen: pa.ListArray, ids: pa.Array) -> Seen:
    """Which of ``ids`` every row has seen: pointers into positions, row after row."""
    positions = IdIndex(ids).find(seen.flatten())
    rows = np.repeat(np.arange(len(seen)), pc.fill_null(pc.list_value_length(seen), 0).to_numpy())
    known = positions >= 0
    pointers = np.concatenate([[0], np.cumsum(np.bincount(rows[known], minlength=len(seen)))]).astype(np.int64)
    return pointers, positions[known]
