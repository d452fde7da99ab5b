"""A fit from a previous model: its posterior, put into the order of the new ratings' ids."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from onebit_spark.config import FitConfig
from onebit_spark.errors import RequestError
from onebit_spark.losses import Side
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.posterior import RowPosterior
from onebit_spark.ratings import Ids, Survey
from onebit_spark.scoring import prior_row, read_factors
from onebit_spark.solver import Start

SHAPE = ("loss", "rank", "intercepts", "covariance")  # what gives the posterior its form


def warm_start(model: OneBitCompletionModel, config: FitConfig, survey: Survey) -> Start:
    """The model's posterior for the ids of ``survey``, and its prior for those that it does not know."""
    _check(model, config)
    info = model.info
    sides: list[tuple[Side, Ids, DataFrame]] = [
        ("rows", survey.users, model.users),
        ("cols", survey.items, model.items),
    ]
    posteriors = {}
    for side, ids, factors in sides:
        prior = prior_row(info.scales, side, info.kind, config.intercepts)
        posteriors[side] = _ordered(factors.toArrow(), ids.values, prior, config.precision)
    return Start(posteriors, info.scales)


def _check(model: OneBitCompletionModel, config: FitConfig) -> None:
    wanted = {field.name: getattr(config, field.name) for field in fields(config)}
    differing = [
        f"{name} is {model.info.parameters[name]} there and {wanted[name]} here"
        for name in SHAPE
        if model.info.parameters[name] != wanted[name]
    ]
    if differing:
        raise RequestError(f"the initial model does not fit this estimator: {'; '.join(differing)}")


def _ordered(factors: pa.Table, ids: pa.Array, prior: RowPosterior, precision: str) -> RowPosterior:
    known = factors["id"].combine_chunks()
    if known.type != ids.type:
        if not (pa.types.is_integer(known.type) and pa.types.is_integer(ids.type)):
            raise RequestError(f"the initial model's ids are of type {known.type}, those of the ratings {ids.type}")
        known, ids = known.cast(pa.int64()), ids.cast(pa.int64())
    lines = factors.drop_columns("id").to_struct_array()
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.combine_chunks()
    found = read_factors(lines.take(pc.index_in(ids, value_set=known)), prior)
    return RowPosterior(
        found.location.astype(precision), found.scale.astype(precision), found.kind, found.has_intercept
    )
