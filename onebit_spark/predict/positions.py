"""Positions of users, intercepts and slopes of items, and the map that they draw (docs/MATH.md,
§17).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from onebit_spark.core.positions import Axes
from onebit_spark.errors import RequestError, refuse
from onebit_spark.model_info import SIDE_OF
from onebit_spark.predict.factors import Factors
from onebit_spark.predict.figures import Figures
from onebit_spark.predict.sides import Anchors, ModelSide, asked_ids
from onebit_spark.report.map import drawing
from onebit_spark.settings import Who, is_integer

log = logging.getLogger("onebit_spark")

NOT_MEASURED = (
    "the standard deviations of these positions are those of the fit, which are too small: the "
    "model is a checkpoint, "
    "or was updated after its fit. Fit it again"
)


def locate(
    factors: Factors,
    who: Who,
    dimensions: int | None = None,
    anchors: Anchors | None = None,
) -> pa.Table:
    """The table of ``FittedModel.positions``."""
    axes = factors.axes
    side = factors.side(who)
    refuse(who_problems(who) + position_problems(axes, who, dimensions, anchors))
    if side.measured is None:
        log.warning(NOT_MEASURED)
    sign = anchored_sign(axes, factors.users, anchors or {})
    shown = axes.shown(dimensions)
    table = position_table(axes, side, who, shown, sign)
    return table.replace_schema_metadata({"shares": json.dumps(axes.shares[:shown].tolist())})


def draw(factors: Factors, anchors: Anchors | None, most: int) -> Figures:
    """What a map of so many users shows: see ``report.map``."""
    refuse(map_problems(factors.axes))
    users = locate(factors, "user", 2, anchors)
    items = locate(factors, "item", 2, anchors)
    return drawing(users, items, factors.axes.shares, most)


def position_problems(
    axes: Axes,
    who: Who,
    dimensions: int | None,
    anchors: Anchors | None,
) -> list[str]:
    problems = []
    if not axes.dimensions and (who == "user" or dimensions is not None):
        problems.append("this model has no dimensions: its scores do not depend on the user")
    elif dimensions is not None and not (
        is_integer(dimensions) and 1 <= dimensions <= axes.dimensions
    ):
        problems.append(
            f"dimensions must be an integer from 1 to {axes.dimensions}, not {dimensions!r}"
        )
    if not isinstance(anchors, Mapping | None):
        problems.append(
            f"anchors must map ids to 1 or -1, such as {{'ann': 1}}, not be {anchors!r}"
        )
    elif wrong := [repr(sign) for sign in (anchors or {}).values() if sign not in (-1, 1)]:
        problems.append(f"anchors must map ids to 1 or -1, not to {', '.join(wrong)}")
    return problems


def map_problems(axes: Axes) -> list[str]:
    has = ("none", "one")
    return (
        [f"a map needs two dimensions, and this model has {has[axes.dimensions]}"]
        if axes.dimensions < 2
        else []
    )


def anchored_sign(axes: Axes, users: ModelSide, anchors: Anchors) -> float:
    """Whether the first axis is turned, −1, so that the anchors are on their sides."""
    if not anchors:
        return 1.0
    places = users.positions(asked_ids(list(anchors), users.ids.type, "the anchors"))
    if missing := [repr(each) for each, place in zip(anchors, places, strict=True) if place < 0]:
        raise RequestError(f"anchors: the model does not know {', '.join(missing)}")
    along = axes.values("rows", users.known.location[places])[:, 0] @ np.array(
        list(anchors.values())
    )
    return -1.0 if along < 0 else 1.0


def position_table(axes: Axes, side: ModelSide, who: Who, dimensions: int, sign: float) -> pa.Table:
    """The positions of a side.

    Rows that were not measured have the standard deviations of the fit.
    """
    measured = side.measured
    if measured is None:
        unknown = np.full((len(side.ids), 1), np.nan)
        measured = np.hstack([unknown, axes.spreads(SIDE_OF[who], side.known)])
    columns = axes.columns(SIDE_OF[who], side.known.location, measured, dimensions, sign)
    return pa.table({who: side.ids, **columns})


def who_problems(who: str) -> list[str]:
    return [] if who in ("user", "item") else [f"who must be 'user' or 'item', not {who!r}"]
