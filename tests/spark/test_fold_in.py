"""foldIn: rows of a converged fit come out as the fit had them, and new ones can be served."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from modelinfo import info_of

from onebit_spark import FitConfig, RequestError, fit_arrays
from onebit_spark.core.factor_tables import factor_table
from onebit_spark.model import OneBitCompletionModel


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(8)
    user, item = rng.integers(0, 25, 500), rng.integers(0, 15, 500)
    taste = rng.normal(size=25)[user] * rng.normal(size=15)[item] + 0.5 * rng.normal(size=500)
    return pa.table({"user": user, "item": item, "label": np.where(taste > -0.2, 1, -1)})


@pytest.fixture(scope="module")
def fitted(spark, table):
    """A converged fit, made in this process."""
    config = FitConfig(rank=2, alpha=5.0, beta=1.0, tol=1e-11, max_iter=1000)
    fit = fit_arrays(*(table[name].to_numpy() for name in ("user", "item", "label")), config)
    info = dataclasses.replace(info_of(fit, {"user": "bigint", "item": "bigint"}), n_users=25, n_items=15)
    tables = (factor_table(pa.array(np.arange(side.n_rows)), side) for side in (fit.rows, fit.cols))
    return OneBitCompletionModel.from_tables(spark, info, *tables)


def factors(side):
    lines = {line["id"]: line for line in side.toArrow().to_pylist()}
    return {key: np.array([line["intercept"], *line["mean"]]) for key, line in lines.items()}


@pytest.mark.usefixtures("both_ways")
def test_new_users_are_served(spark, table, fitted, tmp_path):
    """A newcomer with the ratings of user 3, and one rating of an item that the model does not know."""
    mine = table.filter(pc.equal(table["user"], 3))
    newcomer = pa.table(
        {
            "user": np.full(len(mine) + 1, 1000),
            "item": np.append(mine["item"].to_numpy(), 777),
            "label": np.append(mine["label"].to_numpy(), 1),
        }
    )
    folded = fitted.foldIn(spark.createDataFrame(newcomer))
    assert (folded.info.n_users, folded.users.count()) == (fitted.info.n_users + 1, fitted.info.n_users + 1)
    pairs = spark.createDataFrame([(who, item) for who in (3, 1000) for item in range(15)], "user bigint, item bigint")
    lines = folded.transform(pairs).orderBy("user", "item").toPandas()
    for name in ("score", "std", "probability"):
        np.testing.assert_allclose(lines[name][:15], lines[name][15:], atol=3e-3)
    asked = spark.createDataFrame([(1000,)], "user bigint")
    (best,) = folded.recommendForUserSubset(asked, 3, excludeSeen=spark.createDataFrame(newcomer)).collect()
    assert not {one["item"] for one in best["recommendations"]} & set(newcomer["item"].to_pylist())
    folded.save(str(tmp_path / "folded"))
    assert type(folded).load(str(tmp_path / "folded")).users.count() == folded.info.n_users
    assert fitted.users.count() == fitted.info.n_users  # the old model is as it was


def test_many_newcomers_on_executors_are_those_of_the_driver(spark, table, fitted, monkeypatch):
    """As many lines per task as the ids: none is lost, and none stands there twice."""
    newcomers = spark.createDataFrame(table.set_column(0, "user", pc.add(table["user"], 100)))
    here = fitted.foldIn(newcomers)
    monkeypatch.setattr("onebit_spark.ml.spark_factors.MOST_BYTES", -1)
    there = fitted.foldIn(newcomers)
    assert there.users.count() == here.users.count() == 50
    expected, found = factors(here.users), factors(there.users)
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], atol=1e-5)


@pytest.mark.usefixtures("both_ways")
def test_who_rated_only_the_unknown_is_left_out_with_a_warning(spark, fitted, caplog):
    lines = [(100, 0, 1), (101, 999, 1), (101, 998, 0), (102, 0, 1), (102, 999, 1)]
    grown = fitted.foldIn(spark.createDataFrame(lines, "user bigint, item bigint, label int"))
    assert sorted(line.id for line in grown.users.where("id >= 100").collect()) == [100, 102]
    warning = "1 of 3 users are not folded in: all their ratings are with items that the model does not know"
    assert [record.getMessage() for record in caplog.records] == [warning]


def test_what_cannot_be_folded_in(spark, fitted):
    with pytest.raises(RequestError, match="must be 'user' or 'item'"):
        fitted.foldIn(spark.createDataFrame([(1, 2, 1)], "user bigint, item bigint, label int"), "film")
    with pytest.raises(RequestError, match="label outside"):
        fitted.foldIn(spark.createDataFrame([(1, 2, 5)], "user bigint, item bigint, label int"))
