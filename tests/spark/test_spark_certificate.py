"""Certificates on Spark: the same draws and coins as in process, whatever the blocks; saved with the model."""

import json

import numpy as np
import pytest

from onebit_spark import FitConfig, RequestError, Terms, fit_arrays
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.draws import Draws
from onebit_spark.core.randomness import Split
from onebit_spark.engines.spark_engine import on_executors
from onebit_spark.engines.tables import OnExecutors
from onebit_spark.engines.threads import LocalEngine
from onebit_spark.estimator import OneBitCompletion
from onebit_spark.input.holdout import split_off
from onebit_spark.input.ratings import Columns
from onebit_spark.input.survey import survey_ratings
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.simulate import simulate


@pytest.fixture(scope="module")
def data():
    return simulate("B2", rank=2, shape=(50, 40), fraction=0.5, seed=2)


@pytest.fixture(scope="module")
def ratings(spark, data):
    lines = list(zip(data.rows.tolist(), data.cols.tolist(), data.labels.tolist(), strict=True))
    df = spark.createDataFrame(lines, "user long, item long, label int").repartition(3).cache()
    yield df
    df.unpersist()


@pytest.mark.classic
@pytest.mark.parametrize("blocks", [(1, 1), (3, 2)])
def test_the_same_draws_and_coins_as_in_process(spark, ratings, data, blocks):
    """With the same posteriors every draw and every coin agrees exactly, so the counts do."""
    split = Split(3, 0.4)
    draws = Draws(4, 20), Draws(4, 20, unseen_by=split)
    block = RatingBlock.from_coordinates(data.rows, data.cols, data.labels > 0, (50, 40))
    with LocalEngine(block, 1).running() as local:
        config = FitConfig(rank=2)
        local.start(config, config.make_loss())
        expected = [local.gibbs_errors(each) for each in draws]
        with local.restricted(split) as part:
            chosen = {side: (part.counts(side), *part.runner.held_rows(side)) for side in ("rows", "cols")}
    held = frozenset(["rows", "cols"])
    with (
        survey_ratings(ratings, Columns()) as counted,
        on_executors(spark, counted, blocks, config.form, OnExecutors(), held) as engine,
    ):
        engine.start_from({side: engine.runner.table(side, rows) for side, rows in local.posteriors.items()})
        assert [engine.gibbs_errors(each) for each in draws] == expected
        with engine.restricted(split) as part:
            for side, rows in chosen.items():  # all ratings of each row, and the positive ones
                found = part.counts(side), *part.runner.held_rows(side)
                for counts, expected_counts in zip(found, rows, strict=True):
                    np.testing.assert_array_equal(counts, expected_counts)
            assert part.n_ratings == engine.n_ratings - expected[1].ratings


@pytest.mark.parametrize(
    ("loss", "exchange"),
    [("logistic", "broadcast"), ("hinge", "driver"), pytest.param("hinge", "broadcast", marks=pytest.mark.slow)],
)
def test_a_fit_is_certified_as_in_process(ratings, data, loss, exchange):
    params = {"loss": loss, "rank": 2, "tol": 0.0, "seed": 1}
    for share in (None, 0.5):
        implicit = share is not None  # a learnt prior may depend on who rated what, the others may not
        config = FitConfig(max_iter=4, implicit_features=implicit, **params)
        terms = Terms(delta=0.1, prior_split=share)
        local = fit_arrays(data.rows, data.cols, data.labels, config, certify=terms)
        estimator = OneBitCompletion(
            maxIter=4, delta=0.1, certificatePriorSplit=share, exchange=exchange, implicitFeatures=implicit, **params
        )
        found = estimator.fit(ratings).certificate["certificates"]
        assert [item["name"] for item in found] == [item.name for item in local.certificates] != []
        for item, expected in zip(found, local.certificates, strict=True):
            assert item["bound"] == pytest.approx(expected.bound, rel=1e-3)
            assert item["kl"] == pytest.approx(expected.inputs["kl"], rel=1e-4, abs=1e-4)
            assert item["n"] == expected.n


@pytest.mark.classic
def test_nothing_stays_behind_a_prior_split(spark, ratings):
    before = spark.sparkContext._jsc.sc().getPersistentRDDs().size()
    OneBitCompletion(rank=2, maxIter=1, tol=0.0, certificatePriorSplit=0.5, exchange="broadcast").fit(ratings)
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() == before


def test_the_holdout_is_the_same_however_the_input_lies(ratings):
    """By cell, whatever the partitions; no cell is on both sides, and nothing is lost."""
    columns = Columns()
    fitted, held_out = split_off(ratings, columns, 0.3, 5)
    again = split_off(ratings.repartition(7).sortWithinPartitions("label"), columns, 0.3, 5)[1]
    cells = {tuple(line) for line in held_out.collect()}
    assert cells == {tuple(line) for line in again.collect()}
    assert fitted.count() + held_out.count() == ratings.count()
    assert fitted.join(held_out, ["user", "item"]).isEmpty()
    assert held_out.count() / ratings.count() == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / 1000))
    assert cells != {tuple(line) for line in split_off(ratings, columns, 0.3, 6)[1].collect()}
    with pytest.raises(RequestError, match="seed must be an integer from 0"):
        split_off(ratings, columns, 0.3, 2**63)


def test_the_certificate_is_saved_with_the_model(ratings, tmp_path):
    model = OneBitCompletion(rank=2, maxIter=1, tol=0.0, implicitFeatures=False).fit(ratings)
    path = tmp_path / "model"
    model.save(str(path))
    assert json.loads((path / "certificate.json").read_text()) == model.certificate
    assert OneBitCompletionModel.load(str(path)).certificate == model.certificate
    assert model.certificate["headline"] == "seeger"
    (path / "certificate.json").write_text("{}")
    with pytest.raises(RequestError, match=r"certificate\.json holds no certificates"):
        OneBitCompletionModel.load(str(path))
    (path / "certificate.json").unlink()
    assert OneBitCompletionModel.load(str(path)).certificate["certificates"] == []
