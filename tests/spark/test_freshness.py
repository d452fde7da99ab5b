"""Ratings that a model has learnt from, in whichever way, do not certify it; fresh ones do."""

import json

import numpy as np
import pytest
from pyspark.sql import functions as F

from onebit_spark import RequestError
from onebit_spark.certify.freshness import fresh_to
from onebit_spark.data.ratings import Columns
from onebit_spark.engines.spark.columns import split_off
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel
from onebit_spark.spark.scoring import sketch_of

FAST = {"rank": 1, "maxIter": 1, "tol": 0.0, "exchange": "driver"}
SEEN = "are of cells that the model was fitted on"


@pytest.fixture(scope="module")
def parts(once_rated):
    """Ratings to fit, and fresh ones."""
    return [part.cache() for part in split_off(once_rated, Columns(), 0.3, 5)]


@pytest.fixture(scope="module")
def model(parts):
    return OneBitCompletion(**FAST).fit(parts[0])


def fresh(model, ratings):
    known = model.fitted
    return fresh_to(known, model.judge(ratings).sketch(known.limit))


@pytest.mark.parametrize(
    "exchange",
    [
        "driver",
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in ("broadcast", "mixed", "shuffle")
        ),
    ],
)
def test_fresh_ratings_certify_and_fitted_ones_do_not(parts, once_rated, tmp_path, exchange):
    """Neither all of them, nor a part, nor together with fresh ones; also after the model was
    saved.
    """
    fitted, held_out = parts
    OneBitCompletion(**{**FAST, "exchange": exchange}).fit(fitted).save(str(tmp_path / "model"))
    model = OneBitCompletionModel.load(str(tmp_path / "model"))
    found = fresh(model, held_out)
    assert found == {"checked": True, "share": 0.0, "expected": 0.0, "looked_at": held_out.count()}
    certified = model.certify(held_out, delta=0.1)
    (item,) = [one for one in certified.certificate["certificates"] if one["name"] == "holdout"]
    assert item["errors"] / item["n"] < item["bound"]
    assert item["freshness"] == found
    assert certified.headline == item["statement"]
    for seen, share in (
        (fitted, "100.0%"),
        (fitted.where("user < 9"), "100.0%"),
        (once_rated, r"\d\d\.\d%"),
    ):
        with pytest.raises(
            RequestError,
            match=rf"{share} of them {SEEN}, and of fresh ratings about 0\.0% would be",
        ):
            fresh(model, seen)


def test_other_integral_widths_are_the_same_ids(parts, model):
    with pytest.raises(RequestError, match=SEEN):
        fresh(model, parts[0].selectExpr("cast(user as int)", "cast(item as smallint)", "label"))


@pytest.mark.slow
def test_ratings_that_were_folded_in_are_not_fresh(parts, model):
    newcomers, others = (
        parts[1].withColumn("user", F.col("user") + shift) for shift in (1000, 2000)
    )
    folded = model.foldIn(newcomers)
    for seen in (newcomers, parts[0]):
        with pytest.raises(RequestError, match=SEEN):
            fresh(folded, seen)
    assert fresh(folded, others)["checked"]
    assert fresh(model, newcomers)["checked"]


@pytest.mark.slow
def test_an_initial_models_ratings_are_not_fresh(parts, model):
    fitted, held_out = parts
    later = OneBitCompletion(**FAST).setInitialModel(model).fit(held_out)
    again = OneBitCompletion(**FAST).setInitialModel(model).fit(fitted)
    for fit, seen in ((later, fitted), (later, held_out), (again, fitted)):
        with pytest.raises(RequestError, match=SEEN):
            fresh(fit, seen)
    assert fresh(again, held_out)["checked"]
    # Fitted, and then folded in: that is not rated twice
    with pytest.raises(RequestError, match=SEEN):
        fresh(model.foldIn(fitted), fitted)


def test_a_sketch_is_what_a_count_gives(spark, once_rated, monkeypatch):
    twice = once_rated.unionAll(once_rated.where("user < 20"))
    whole = sketch_of(twice, Columns(), twice.count())
    assert len(whole.hashes) == once_rated.count()
    assert whole.n_ratings == twice.count()
    monkeypatch.setattr("onebit_spark.data.hashes.KEPT", 100)
    part = sketch_of(twice, Columns(), twice.count())
    np.testing.assert_array_equal(part.hashes, whole.up_to(part.limit).hashes)
    np.testing.assert_array_equal(part.ratings, whole.up_to(part.limit).ratings)
    assert 50 < part.n_ratings < 200


def test_a_damaged_sketch(model, tmp_path):
    path = tmp_path / "model"
    model.save(str(path))
    assert json.loads((path / "metadata.json").read_text())["fitted"] == {
        "limit": 2**63 - 1,
        "complete": True,
    }
    (path / "fitted" / "part-00000.parquet").write_bytes(b"not a Parquet file at all")
    with pytest.raises(RequestError, match="damaged model folder: fitted/"):
        fresh(
            OneBitCompletionModel.load(str(path)),
            model.users.selectExpr("id as user", "id as item", "1 as label"),
        )
    (path / "fitted" / "part-00000.parquet").unlink()
    (path / "fitted").rmdir()
    with pytest.raises(RequestError, match="damaged model folder: it has no fitted/"):
        OneBitCompletionModel.load(str(path))


# ---- held-out ratings and saved certificates ---------------------------------------------------


def test_the_holdout_is_the_same_however_the_input_lies(once_rated):
    """By cell, whatever the partitions; no cell is on both sides, and nothing is lost."""
    columns = Columns()
    fitted, held_out = split_off(once_rated, columns, 0.3, 5)
    again = split_off(once_rated.repartition(7).sortWithinPartitions("label"), columns, 0.3, 5)[1]
    cells = {tuple(line) for line in held_out.collect()}
    assert cells == {tuple(line) for line in again.collect()}
    assert fitted.count() + held_out.count() == once_rated.count()
    assert fitted.join(held_out, ["user", "item"]).isEmpty()
    assert held_out.count() / once_rated.count() == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / 1000))
    assert cells != {tuple(line) for line in split_off(once_rated, columns, 0.3, 6)[1].collect()}
    with pytest.raises(RequestError, match="seed must be an integer from 0"):
        split_off(once_rated, columns, 0.3, 2**63)


def test_the_certificate_is_saved_with_the_model(once_rated, tmp_path):
    model = OneBitCompletion(rank=2, maxIter=1, tol=0.0, implicitFeatures=False).fit(once_rated)
    path = tmp_path / "model"
    model.save(str(path))
    assert json.loads((path / "certificate.json").read_text()) == model.certificate
    assert OneBitCompletionModel.load(str(path)).certificate == model.certificate
    assert model.certificate["headline"] == "seeger"
    (path / "certificate.json").write_text("{}")
    with pytest.raises(RequestError, match=r"certificate\.json holds no certificates"):
        OneBitCompletionModel.load(str(path))
    (path / "certificate.json").unlink()
    with pytest.raises(RequestError, match=r"damaged model folder: it has no certificate\.json"):
        OneBitCompletionModel.load(str(path))
