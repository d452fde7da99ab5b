"""The best items of every user, or users of every item.

Blocks are compared with blocks; nothing is collected.

asking side ─pack─► one row per block ┐
                                      ├─► all pairs of blocks ─► n best of each row ─► merge
other side  ─pack─► one row per block ┘
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.posterior import RowPosterior
from onebit_spark.data.id_index import IdIndex
from onebit_spark.engines.spark.columns import checked_ids, positive, quoted, refuse_stream
from onebit_spark.engines.spark.frames import Batches, binary_line, in_partitions
from onebit_spark.engines.spark.sessions import parallelism
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_info import PARTNER, SIDE_OF, factor_columns, prior_row, read_factors
from onebit_spark.predict.figures import Figures
from onebit_spark.predict.metrics import ranking_figures
from onebit_spark.predict.predictor import Predictor
from onebit_spark.predict.top_n import Best, Ranking, Seen, best_of, best_partners, ranking_problems
from onebit_spark.settings import Who
from onebit_spark.spark.scoring import SparkFactors, SparkRatings

BLOCK_BYTES = 16 * 2**20  # of factors in a block


def recommend(
    factors: SparkFactors,
    who: Who,
    n: int,
    z: float | None = None,
    seen: DataFrame | None = None,
    floor: float | None = None,
    subset: DataFrame | None = None,
) -> DataFrame:
    """The n best of every user (``who`` = "user") or every item that the model knows, or of those
    of ``subset``.

    They are ranked by probability, or by score − z·std. Pairs of ``seen``, and those of less
    confidence than ``floor``, are left out. The columns are those of
    ``OneBitCompletionModel.recommendForAllUsers``.
    """
    refuse(ranking_problems(n, z))
    n = int(n)  # of numpy, which neither Spark nor JSON takes
    predictor = Predictor.of(factors.info)
    partner = PARTNER[who]
    rank = _Rank(n, predictor, predictor.ranking(z, floor))
    entry = (
        f"key: double, partner: {factors.info.id_types[partner]}, rating: float, std: "
        "float, probability: float"
    )
    schema = f"id {factors.info.id_types[who]}, recommendations array<struct<{entry}>>"
    if factors.fit_driver(factors.info.count(who) * n) and subset is None and seen is None:
        # All ids of a small model are ranked on the driver: no Python worker has to start.
        model = factors.on_driver()
        asking = model.side(who)
        others = model.side(partner)
        best = best_of(asking.known, np.arange(len(asking.ids)), others.known, n, rank.ranking)
        lists = rank.lists(asking.ids, others.ids, best)
        ranked = factors.spark.createDataFrame(pa.Table.from_batches([lists]), schema)
    else:
        ranked = _ranked(factors, who, rank, seen, subset, schema)
    names = {
        "partner": factors.columns[partner],
        "rating": "rating",
        "std": "std",
        "probability": "probability",
    }
    shown = F.transform(
        "recommendations", lambda one: F.struct(*(one[k].alias(v) for k, v in names.items()))
    )
    return ranked.select(F.col("id").alias(factors.columns[who]), shown.alias("recommendations"))


def _ranked(
    factors: SparkFactors,
    who: Who,
    rank: _Rank,
    seen: DataFrame | None,
    subset: DataFrame | None,
    schema: str,
) -> DataFrame:
    asking = factors.of(who)
    partner = PARTNER[who]
    if subset is not None:
        refuse_stream(subset, f"the {who}s to recommend for")
        factors.check_id_type(subset, who)
        (ids,) = checked_ids(subset, [factors.columns[who]])
        asking = asking.join(subset.select(ids.alias("id")).distinct(), "id", "left_semi")
    if seen is not None:
        refuse_stream(seen, "the pairs to exclude")
        for one in (who, partner):
            factors.check_id_type(seen, one)
        own, theirs = checked_ids(seen, [factors.columns[one] for one in (who, partner)])
        excluded = F.collect_set(theirs.cast(factors.info.id_types[partner])).alias("seen")
        asking = asking.join(seen.groupBy(own.alias("id")).agg(excluded), "id", "left")
    cores = parallelism(asking.sparkSession)
    asking_blocks = max(_n_blocks(factors, who), min(cores, factors.info.count(who)))
    partner_blocks = _n_blocks(factors, partner)
    left = _packed(factors, who, asking, asking_blocks, "left")
    right = _packed(factors, partner, factors.of(partner), partner_blocks, "right")
    # Without the hint Spark would collect the smaller side on the driver, to broadcast it.
    ranked = left.crossJoin(right.hint("shuffle_replicate_nl")).mapInArrow(rank, schema)
    if partner_blocks > 1:
        lists = F.flatten(F.collect_list("recommendations"))
        best = F.slice(F.sort_array(lists, asc=False), 1, rank.n)
        ranked = ranked.groupBy("id").agg(best.alias("recommendations"))
    return ranked


def ranking(factors: SparkFactors, on: SparkRatings, n: int, seen: SparkRatings | None) -> Figures:
    """How many positive ratings the lists of ``recommend`` find: see ``FittedModel.ranking``."""
    refuse(ranking_problems(n, None))
    n = int(n)
    columns = factors.columns
    cells = partial(_cells, factors)
    wanted = cells(on, positives=True)
    if seen is not None:
        wanted = wanted.join(cells(seen), ["user", "item"], "left_anti")
    relevant = wanted.groupBy("user").agg(F.collect_set("item").alias("relevant"))
    asked = relevant.select(F.col("user").alias(columns["user"]))
    best = recommend(factors, "user", n, None, None if seen is None else seen.frame, None, asked)
    listed = F.transform("recommendations", lambda one: one[columns["item"]])
    lists = {
        "model": best.select(F.col(quoted(columns["user"])).alias("user"), listed.alias("listed"))
    }
    if seen is not None:
        lists["popularity"] = _popular(
            factors, relevant.select("user"), cells(seen), cells(seen, positives=True), n
        )
    unknown = cells(on, positives=True).join(
        factors.users, F.col("user") == F.col("id"), "left_anti"
    )
    figures: Figures = {
        "n": n,
        "n_users": 0,
        "n_unknown_user": unknown.select("user").distinct().count(),
    }
    found = F.transform("listed", lambda item: F.array_contains("relevant", item))
    for name, each in lists.items():
        known = relevant.join(each, "user").join(
            factors.users, F.col("user") == F.col("id"), "left_semi"
        )
        lines = known.select(F.size("relevant").alias("n_relevant"), found.alias("hits")).toArrow()
        if not len(lines):
            raise RequestError(
                "cannot rank: no user that the model knows has a positive rating that was not seen"
            )
        hits = np.zeros((len(lines), n), bool)
        for row, values in zip(hits, lines["hits"].to_pylist(), strict=True):
            row[: len(values)] = values
        figures |= {
            "n_users": len(lines),
            name: ranking_figures(hits, lines["n_relevant"].to_numpy()),
        }
    return figures


def _cells(factors: SparkFactors, on: SparkRatings, positives: bool = False) -> DataFrame:
    chosen = on.frame
    if positives:
        chosen = chosen.where(positive(chosen, on.columns.label, on.columns.threshold))
    ids = (
        F.col(quoted(factors.columns[who])).cast(factors.info.id_types[who]).alias(who)
        for who in SIDE_OF
    )
    return chosen.select(*ids).groupBy(*SIDE_OF).agg(F.count(F.lit(1)).alias("n"))


def _popular(
    factors: SparkFactors, users: DataFrame, seen: DataFrame, positives: DataFrame, n: int
) -> DataFrame:
    counts = positives.groupBy("item").agg(F.sum("n").alias("n"))
    items = factors.items.select(F.col("id").alias("item")).join(counts, "item", "left")
    order = F.sort_array(F.collect_list(F.struct(-F.coalesce("n", F.lit(0)), "item")))
    known = seen.groupBy("user").agg(F.collect_set("item").alias("seen"))
    own = users.join(known, "user", "left")
    most = own.agg(F.max(F.size("seen"))).first()
    length = n + max(0, (most and most[0]) or 0)
    best = items.agg(F.transform(F.slice(order, 1, length), lambda one: one["item"]).alias("best"))
    unseen = F.array_except("best", F.coalesce("seen", F.slice("best", 1, 0)))
    return own.crossJoin(F.broadcast(best)).select("user", F.slice(unseen, 1, n).alias("listed"))


def _n_blocks(factors: SparkFactors, who: Who) -> int:
    return max(1, -(-factors.info.count(who) * factors.bytes_per_row // BLOCK_BYTES))


def _packed(
    factors: SparkFactors, who: Who, table: DataFrame, n_blocks: int, prefix: str
) -> DataFrame:
    """One row per block, one block per partition.

    After the shuffle, a block is packed once and used many times.
    """
    info = factors.info
    form = (factors.info.kind, factors.info.config.intercepts)
    seen = [name for name in table.columns if name == "seen"]
    lines = F.struct(*factor_columns(*form)).alias("lines")
    placed = table.repartition(n_blocks).select(
        F.col("id").alias("ids"), lines, F.spark_partition_id().alias("block"), *seen
    )
    types = f"block int, location binary, scale binary, ids array<{info.id_types[who]}>"
    types += f", seen array<array<{info.id_types[PARTNER[who]]}>>" if seen else ""
    prior = prior_row(info.scales, SIDE_OF[who], *form)

    def pack(batches: Batches) -> Batches:
        if filled := [batch for batch in batches if batch.num_rows]:
            joined = pa.Table.from_batches(filled).combine_chunks().to_batches()[0]
            rows = read_factors(joined.column("lines"), prior)
            block = joined.column("block")[0].as_py()
            line = binary_line(block=block, location=rows.location, scale=rows.scale)
            columns = dict(zip(line.schema.names, line.columns, strict=True))
            for name in ("ids", *seen):
                values = joined.column(name)
                columns[name] = pa.ListArray.from_arrays(
                    pa.array([0, len(values)], pa.int32()), values
                )
            yield pa.RecordBatch.from_pydict(columns)

    blocks = placed.mapInArrow(pack, types)
    apart = in_partitions(blocks, n_blocks, blocks["block"])
    return apart.select(
        *(F.col(name).alias(f"{prefix}_{name}") for name in blocks.columns if name != "block")
    )


@dataclass(frozen=True)
class _Rank:
    n: int
    predictor: Predictor
    ranking: Ranking

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            for i in range(batch.num_rows):
                cell = {name: batch.column(name)[i] for name in batch.schema.names}
                left = self._posterior(cell, "left")
                right = self._posterior(cell, "right")
                ids = cell["left_ids"].values
                partners = cell["right_ids"].values
                seen = (
                    _positions(cell["left_seen"].values, partners) if "left_seen" in cell else None
                )
                yield self.lists(
                    ids, partners, best_partners(left, right, self.n, self.ranking, seen)
                )

    def lists(self, ids: pa.Array, partners: pa.Array, best: Best) -> pa.RecordBatch:
        score = best.score[best.present]
        variance = best.variance[best.present]
        outputs = self.predictor.outputs(score, variance)
        structs = pa.StructArray.from_arrays(
            [
                pa.array(best.key[best.present]),
                partners.take(pa.array(best.partner[best.present])),
                *(
                    pa.array(outputs[name].astype(np.float32))
                    for name in ("score", "std", "probability")
                ),
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


def _positions(seen: pa.ListArray, ids: pa.Array) -> Seen:
    """Which of ``ids`` every row has seen: pointers into positions, row after row."""
    positions = IdIndex(ids).find(seen.flatten())
    rows = np.repeat(np.arange(len(seen)), pc.fill_null(pc.list_value_length(seen), 0).to_numpy())
    known = positions >= 0
    pointers = np.concatenate(
        [[0], np.cumsum(np.bincount(rows[known], minlength=len(seen)))]
    ).astype(np.int64)
    return pointers, positions[known]
