"""The ids and the sketch of a census: on the driver if they are few, by jobs if they are many."""

from contextlib import ExitStack
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from onebit_spark.input import survey as counting
from onebit_spark.input.ratings import Columns
from onebit_spark.input.survey import PackedRatings, survey_ratings

IDS = {
    "int": lambda k: 3 * k,
    "bigint": lambda k: k * 2**40 - 7,
    "string": lambda k: f"ü{k}",
    "double": lambda k: k / 2,
    "decimal(12,3)": lambda k: Decimal(k) / 8,
    "date": lambda k: date(2020, 1, 1) + timedelta(days=k),
    "timestamp": lambda k: datetime(2020, 1, 1) + timedelta(hours=k),
}


@pytest.fixture
def counted(spark, monkeypatch):
    """The survey and the sketch of ratings, and whether the driver counted them."""

    def count(ratings, most_bytes):
        monkeypatch.setattr(counting, "SUMMARY_BYTES", most_bytes)
        with survey_ratings(ratings, Columns()) as found:
            return found.ids(), found.sketch(), (found.n_users, found.n_items), found.summary is not None

    return count


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("bigint", "string") else [pytest.mark.slow]) for kind in IDS]
)
def test_few_ids_and_many_ids_are_counted_alike(spark, counted, kind):
    rng = np.random.default_rng(4)
    users, items = rng.integers(0, 40, 300).tolist(), rng.integers(0, 9, 300).tolist()
    lines = [(IDS[kind](u), f"i{i}", int(l)) for u, i, l in zip(users, items, rng.integers(0, 2, 300), strict=True)]
    ratings = spark.createDataFrame(lines, f"user {kind}, item string, label int").repartition(5)
    few, many = counted(ratings, 10**6), counted(ratings, 0)
    assert (few[3], many[3]) == (True, False)
    assert few[2] == many[2] == (len(set(users)), len(set(items)))
    for mine, other in zip(few[0].values(), many[0].values(), strict=True):
        assert mine.values.equals(other.values)
        np.testing.assert_array_equal(mine.counts, other.counts)
        np.testing.assert_array_equal(mine.positives, other.positives)
    assert few[1].limit == many[1].limit
    np.testing.assert_array_equal(few[1].hashes, many[1].hashes)
    np.testing.assert_array_equal(few[1].ratings, many[1].ratings)


def test_the_size_of_the_summary_is_known_before_it_is_collected(spark):
    ratings = spark.createDataFrame([(u % 11, u % 7, u % 2) for u in range(90)], "user int, item long, label int")
    with ExitStack() as release:
        packed = PackedRatings.of(ratings, Columns(), release)
        lines = packed.bundles.select(*counting.SUMMARY).toArrow().to_pylist()
    size = sum(len(cell) for line in lines if not line["user_counts"] for cell in line.values())
    counts = sum(len(line["user_counts"]) + len(line["item_counts"]) for line in lines)
    assert packed.facts["summary_bytes"] == size + counts > 0
