"""CSV means the same on both runtimes: the same users, or the same refusal."""

import re

import pytest
from support.csvdialect import DIALECT, written

from onebit_spark import RequestError
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import FitRequest
from onebit_spark.cli.running import explained_failures
from onebit_spark.cli.spark_runtime import SparkRuntime
from onebit_spark.data.files import open_table
from onebit_spark.data.ratings import ArrowRatings, Columns
from onebit_spark.engines.spark.ratings import check_ratings

NAMES = ("user", "item", "label")
BY_DEFAULT = ("quotes", "a fourth field", "another header")
SLOW = pytest.mark.slow


def by_spark(spark, path, options):
    flags = [flag for key, value in options.items() for flag in ("--option", f"{key}={value}")]
    request = parse(FitRequest, "fit", ["--ratings", path, "--output", "model", *flags])
    with explained_failures():
        table = SparkRuntime(spark).table(request, "ratings", NAMES)
        return table, table.toArrow()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DEFAULT else SLOW) for name in DIALECT]
)
def test_the_same_users_or_the_same_refusal(spark, tmp_path, name):
    path, options = written(tmp_path, name)
    expected = DIALECT[name][2]
    if isinstance(expected, list):
        assert by_spark(spark, path, options)[1]["user"].to_pylist() == expected
        return
    with pytest.raises(RequestError, match=re.escape(expected)):
        by_spark(spark, path, options)


@pytest.mark.parametrize(
    ("infer", "coding"), [("false", "binary"), pytest.param("true", "boolean", marks=SLOW)]
)
def test_labels_that_are_true_or_false(spark, tmp_path, infer, coding):
    (tmp_path / "a.csv").write_text("user,item,label\nann,tea,True\nbob,tea,false\neve,tea,TRUE\n")
    path = str(tmp_path / "a.csv")
    options = {"inferSchema": infer}
    there = check_ratings(by_spark(spark, path, options)[0], Columns())
    here = ArrowRatings(open_table(path, options=options), Columns()).kept().counts
    assert here == there
    assert (here.coding, here.positives, here.n) == (coding, 2, 3)
