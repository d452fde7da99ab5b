"""Ids that a fitted model knows by their side features alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from onebit_spark.core.factor_tables import factor_columns, factor_table, newcomer_rows, plain_lists, prior_row
from onebit_spark.core.fitted_features import SIDE_OF, Who, coding_of, explained
from onebit_spark.core.id_index import one_array
from onebit_spark.core.id_lines import IdLines
from onebit_spark.engines.factor_frames import collected_factors, factor_frame, factor_schema
from onebit_spark.errors import RequestError
from onebit_spark.input.columns import matching
from onebit_spark.input.features import collected_features
from onebit_spark.ml.driver_scoring import fits_here
from onebit_spark.ml.fitted_model import FittedModel

M = TypeVar("M", bound=FittedModel)


def check_who(who: str) -> None:
    if who not in ("user", "item"):
        raise RequestError(f"who must be 'user' or 'item', not {who!r}")


class Explained(IdLines):
    """The means that side features explain, Wᵀf (ids × D)."""

    @classmethod
    def of(cls, model: FittedModel, features: DataFrame, who: Who) -> Explained:
        info, coding = model.info, coding_of(model.info, who)
        column = model.getUserCol() if who == "user" else model.getItemCol()
        lacking = [name for name in coding.columns if not matching(features, name)]
        if lacking:
            raise RequestError(f"{who} features: the model was fitted with {', '.join(lacking)}, which is not there")
        named = features.withColumnsRenamed({matching(features, name)[0].name: name for name in coding.columns})
        table = collected_features(named, column, info.id_types[who], who)
        return cls(one_array(table[column]), explained(info, who, coding.coded(table)))


def fold_in_features(model: M, features: DataFrame, who: Who) -> M:
    """The model with the ids that it does not know, predicted from their side features alone."""
    check_who(who)
    known, info = Explained.of(model, features, who), model.info
    form = info.kind, info.config.intercepts, info.config.implicit_features
    rows = newcomer_rows(prior_row(info.scales, SIDE_OF[who], *form), known.lines)
    schema = factor_schema(replace(info, draw_narrowing=None), who)
    frame = model.users if who == "user" else model.items
    spark, plain = features.sparkSession, ["id", *factor_columns(*form)]
    if fits_here(model, 0):
        old = plain_lists(collected_factors(frame)).select(plain)
        fresh = pc.invert(pc.is_in(known.ids.cast(old["id"].type), value_set=one_array(old["id"])))
        lines = factor_table(known.ids, rows).filter(fresh)
        table = pa.concat_tables([old, plain_lists(lines).cast(old.schema)])
        united, n = factor_frame(spark, table, schema), table.num_rows
    else:
        lines = factor_frame(spark, factor_table(known.ids, rows), schema)
        united = frame.select(*plain).unionByName(lines.join(frame.select("id"), "id", "left_anti").select(*plain))
        n = united.count()
    told = (info.side_features or {})[who]
    before = info.n_users if who == "user" else info.n_items
    more = {**(info.side_features or {}), who: {**told, "newcomers": told["newcomers"] + n - before}}
    if who == "user":
        return model.changed(users=united, n_users=n, side_features=more)
    return model.changed(items=united, n_items=n, side_features=more)
