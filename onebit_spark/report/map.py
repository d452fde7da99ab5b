"""map.html: the positions of users on one page, in a file that needs no other.

``map.js`` draws on a canvas: a point per user; error bars of the extremes, of the users with the
fewest and the most ratings and of the one that is found; and for an item the line where its answer
is open, c + a·t = 0, with a shade on the side where it is positive. Both axes have a scale, and the
share of the scores' variance that they explain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebit_spark.data.locations import MAP_MARK
from onebit_spark.records import Fields, Record

MOST_POINTS = 100_000
REPORTED = 1000  # on a map of its own, and on that of a report
NAMED = 4  # ids at each end of a dimension, and with the fewest and the most ratings
COLOURS = 9  # of groups; one more for all other groups, and grey for users without a group
Numbers = NDArray[np.int64]
Shares = NDArray[np.float64]


def shown(users: pa.Table, most: int) -> tuple[Numbers, Numbers]:
    """The lines of the users that are named, and of all on the map: these and an even sample of
    about ``most``.
    """
    columns = (users[name].to_numpy(zero_copy_only=False) for name in ("dim1", "dim2", "n_ratings"))
    ends = [
        order[part]
        for order in map(np.argsort, columns)
        for part in (slice(NAMED), slice(-NAMED, None))
    ]
    n = users.num_rows
    named = np.unique(np.concatenate(ends))
    if n <= most:
        return named, np.arange(n)
    return named, np.union1d(
        named, np.linspace(0, n - 1, max(0, most - len(named))).astype(np.int64)
    )


def drawing(
    users: pa.Table,
    items: pa.Table,
    shares: Shares,
    most: int = MOST_POINTS,
    count: int | None = None,
) -> Fields:
    """What a map shows of two tables of ``FittedModel.positions`` with two dimensions, and their
    ``shares``.

    Of more than ``most`` users it shows those that are named and an even sample of the others; the
    items are those with the most ratings. ``count`` is the number of users where the table has only
    some of them.
    """
    (named, kept) = shown(users, most)
    n = users.num_rows if count is None else count
    order = np.argsort(-items["n_ratings"].to_numpy(zero_copy_only=False), kind="stable")
    users = users.take(pa.array(kept))
    items = items.take(pa.array(np.sort(order[:most])))
    names = ["n_ratings", "dim1", "dim1_std", "dim2", "dim2_std"]
    return {
        "count": n,
        "shares": shares[:2].tolist(),
        "named": np.searchsorted(kept, named).tolist(),
        "groups": [],
        "group": [],
        "ids": [str(each) for each in users.column(0).to_pylist()],
        **{name: _numbers(users[name]) for name in names},
        "items": [str(each) for each in items.column(0).to_pylist()],
        **{name: _numbers(items[name]) for name in ("intercept", "slope1", "slope2")},
    }


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return [None if not np.isfinite(value) else float(f"{value:.4g}") for value in values]


def coloured(drawn: Fields, groups: Mapping[Any, Any]) -> Fields:
    """The drawing with a colour for each of the most frequent groups; ``groups`` are words by the
    id of the user.

    ``group`` has the place of each user's word in ``groups``, COLOURS for other words, COLOURS + 1
    without a word.
    """
    named = {str(each): "" if word is None else str(word) for each, word in groups.items()}
    words = [named.get(each, "") for each in drawn["ids"]]
    counts = Counter(filter(None, words))
    common = sorted(counts, key=lambda word: (-counts[word], word))[:COLOURS]
    place = {word: at for at, word in enumerate(common)} | {"": COLOURS + 1}
    return drawn | {
        "groups": common,
        "group": [place.get(word, COLOURS) for word in words] if groups else [],
    }


def groups_of(features: pa.Table, column: str) -> dict[Any, Any]:
    """The words of the ids in ``column``: those of the first other column with at most ``COLOURS``
    different ones.
    """
    plain = [
        name
        for name in features.column_names
        if name != column and not pa.types.is_nested(features[name].type)
    ]
    few = [name for name in plain if 2 <= pc.count_distinct(features[name]).as_py() <= COLOURS]
    return (
        dict(zip(features[column].to_pylist(), features[few[0]].to_pylist(), strict=True))
        if few
        else {}
    )


def page(drawn: Record) -> str:
    """The page of a drawing: map.html with the script map.js."""
    folder = files("onebit_spark.report")
    html = (folder / "map.html").read_text("utf-8")
    script = (folder / "map.js").read_text("utf-8")
    data = json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    whole = html.replace("__MARK__", MAP_MARK).replace("__SCRIPT__", script)
    return whole.replace("__DATA__", data.replace("<", "\\u003c"))
