"""Ids of every type: what can be fitted can be predicted, and what cannot is refused in words."""

from decimal import Decimal

import pyarrow as pa
import pytest

from onebit_spark import FitConfig, RequestError, fit_table
from onebit_spark.input.tables import ArrowTable

QUICK = FitConfig(rank=2, max_iter=3, tol=0.0, likelihood_weight=1.0)


def polars_categories(values):
    """As polars hands its Categorical and Enum columns to Arrow."""
    return pa.DictionaryArray.from_arrays(pa.array(values, pa.uint32()), pa.array(list("abcdefgh"), pa.string_view()))


SMALL = [k % 8 for k in range(40)]
ID_COLUMNS = {
    "uint64": pa.array([2**64 - 1 - k for k in SMALL], pa.uint64()),
    "fixed-size binary": pa.array([bytes([k, 1]) for k in SMALL], pa.binary(2)),
    "date64": pa.array([k * 86_400_000 for k in SMALL], pa.date64()),
    "categories": polars_categories(SMALL),
    "string views": pa.array([str(k) for k in SMALL], pa.string_view()),
    "decimals of 38 digits": pa.array([Decimal(10**37 + k) for k in SMALL], pa.decimal128(38, 0)),
    "small decimals": pa.array([Decimal(k) for k in SMALL], pa.decimal256(10, 0)),
}


@pytest.mark.parametrize("name", ID_COLUMNS)
def test_a_table_that_was_fitted_can_be_predicted(name):
    items = [k % 7 for k in range(40)]
    table = pa.table({"user": ID_COLUMNS[name], "item": items, "label": [k % 2 for k in range(40)]})
    model = fit_table(table, QUICK)
    assert model.info.n_users == 8
    fitted = model.transform(table)
    assert fitted["score"].to_pylist() == model.score(table["user"], table["item"]).tolist()
    assert len(model.fitted.hashes) == len(set(zip(SMALL, items, strict=True)))  # one per cell
    assert model.recommend(table["user"].slice(0, 1), 2).num_rows == 2


def test_ids_that_no_column_can_hold():
    pandas = pytest.importorskip("pandas")
    labels = {"item": [1, 2], "label": [0, 1]}
    for users, words in (
        ([2**70, 1], "a column 'user' with a value of type int that Arrow cannot hold"),
        ([1, "a"], "a column 'user' with values of types int, str that Arrow cannot hold; convert it, to text"),
    ):
        with pytest.raises(RequestError, match=words):
            fit_table(pandas.DataFrame({"user": users, **labels}), QUICK)
    times = pa.array([1, 1001], pa.timestamp("ns"))
    with pytest.raises(RequestError, match="column 'user' cannot be of Spark's type timestamp_ntz: round it to micro"):
        fit_table(pa.table({"user": times, **labels}), QUICK)


def test_a_lazy_frame_is_collected():
    class LazyFrame:
        def collect(self):
            return pa.table({"user": [1], "item": [2], "label": [1]})

    assert ArrowTable.of(LazyFrame()).table().num_rows == 1
