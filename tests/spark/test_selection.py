"""Selective certificates on Spark: the same confidences, thresholds and answers as in process."""

from dataclasses import replace

import numpy as np
import pytest
from support.sparkfits import ALL_ITEMS, ALL_USERS, table_of

from onebit_spark import RequestError, Terms
from onebit_spark.certify.certificates import ungrouped_certificates
from onebit_spark.cli.requests import Target
from onebit_spark.cli.spark_runtime import SparkRuntime
from onebit_spark.spark.model import OneBitCompletionModel

REQUESTS = (0.08, 0.001)
UNKNOWN = "the model does not record which ratings it was fitted on"


@pytest.fixture(scope="module")
def held():
    """3000 fresh ratings of what ``make_fit`` fits, some of ids that it has never seen; some are
    switched.
    """
    rng = np.random.default_rng(5)
    rng.integers(0, 28, 400), rng.integers(0, 18, 400)
    left = rng.normal(size=30)
    right = rng.normal(size=20)
    rows = rng.integers(0, 30, 3000)
    cols = rng.integers(0, 20, 3000)
    labels = np.where(left[rows] * right[cols] + 0.5 > 0, 1, -1) * np.where(
        rng.random(3000) < 0.03, -1, 1
    )
    return rows, cols, labels, np.array(["old", "new", None], object)[rows % 3]


@pytest.fixture(scope="module")
def ratings(spark, held):
    lines = list(zip(*(each.tolist() for each in held), strict=True))
    df = (
        spark.createDataFrame(lines, "user long, item long, label int, age string")
        .repartition(3)
        .cache()
    )
    yield df
    df.unpersist()


@pytest.fixture(scope="module")
def make_known(make_fit, make_model):
    """A model that has kept its confidences."""

    def make(**choices):
        kept = {
            name: getattr(make_fit(**choices).info, name)
            for name in ("confidences", "n_positive", "n_ratings")
        }
        return make_model(info=kept, **choices)

    return make


def requests_of(model):
    return [item["request"] for item in ungrouped_certificates(model.certificate)]


@pytest.fixture(scope="module")
def certified(make_known, ratings):
    """Tests change copies of it."""
    return make_known().certifySelective(ratings, REQUESTS, by="age")


@pytest.mark.parametrize("loss", [pytest.param("hinge", marks=pytest.mark.slow), "logistic"])
def test_certified_as_in_process(make_fit, make_known, ratings, held, loss):
    choices = {"loss": loss, "max_iter": 60}  # after fewer the confidences of the hinge say little
    fit = make_fit(**choices)
    model = make_known(**choices)
    rows, cols, labels, age = held
    groups = np.array([str(value) for value in age])
    expected = fit.certify(rows, cols, labels, Terms(delta=0.1), REQUESTS, groups)
    certified = model.certifySelective(ratings, REQUESTS, delta=0.1, by="age")
    found = certified.certificate["certificates"]
    assert len(found) == len(expected) - 1  # the holdout of all is evaluation's
    for item in expected[1:]:
        value = (item.inputs["group"] or {}).get("value")
        matching = [
            one
            for one in found
            if one["name"] == item.name
            and one.get("request") == item.inputs.get("request")
            and bool(one["group"]) == (value is not None)
            and str((one["group"] or {}).get("value")) == str(value)
        ]
        (one,) = matching
        assert_same_figures(one, item, "group")
    # No certificate is about all pairs that are predicted
    assert certified.certificate["headline"] is None
    for one in found:  # the model kept no sketch of its ratings
        assert one["freshness"] == {"checked": False, "reason": UNKNOWN}
        assert (
            f"could not be checked: {UNKNOWN}. This holds only if it has not." in one["statement"]
        )
    assert requests_of(certified) == list(REQUESTS)
    met = expected[1]
    assert 0.5 < met.inputs["answered_share"] < 1
    lines = certified.transform(ratings).toPandas()
    assert lines["answered"].dtype == bool
    np.testing.assert_array_equal(
        lines["answered"], fit.answered(lines["user"], lines["item"], met)
    )
    assert lines["answered"].sum() == met.inputs["n_answered"]
    wrong = lines["prediction"] != lines["label"]
    assert wrong[lines["answered"]].sum() == met.inputs["errors"]
    np.testing.assert_array_equal(
        model.transform(ratings).toPandas()["prediction"], lines["prediction"]
    )
    assert "answered" not in model.transform(ratings).columns


def assert_same_figures(one, certificate, *without):
    without = ("statement", "freshness", *without)
    expected = {name: value for name, value in certificate.as_dict().items() if name not in without}
    assert {name: one[name] for name in expected} == pytest.approx(expected)


def test_the_headline_as_in_process(make_fit, make_known, ratings, held):
    rows, cols, labels, _ = held
    expected = make_fit().certify(rows, cols, labels, Terms(delta=0.1), REQUESTS)
    certified = make_known().certify(ratings, REQUESTS, delta=0.1)
    assert certified.certificate["headline"] == "holdout"
    for one, item in zip(certified.certificate["certificates"], expected, strict=True):
        assert_same_figures(one, item)
        assert (one["statement"], one["freshness"]) == (item.statement, item.inputs["freshness"])
    assert certified.headline == certified.certificate["certificates"][0]["statement"]
    assert make_known().headline is None


@pytest.mark.parametrize("rule", ["drop", pytest.param("nan", marks=pytest.mark.slow)])
def test_what_is_not_predicted_is_not_certified(
    make_fit, make_known, ratings, held, spark, tmp_path, rule
):
    """Unknown pairs count as not answered, as in process, and are not answered where they are
    predicted later.
    """
    rows, cols, labels, _ = held
    unknown = int(np.sum((rows >= 28) | (cols >= 18)))
    expected = replace(make_fit(), cold_start=rule).certify(
        rows, cols, labels, Terms(delta=0.1), REQUESTS
    )
    certified = make_known().setColdStartStrategy(rule).certify(ratings, REQUESTS, delta=0.1)
    for one, item in zip(certified.certificate["certificates"], expected, strict=True):
        assert_same_figures(one, item)
        assert one["statement"] == item.statement
        assert one["unknown_left_out"] == unknown > 0
    assert certified.certificate["certificates"][0]["n"] == len(rows) - unknown
    strangers = spark.createDataFrame([(1, 1), (1, 99)], "user long, item long")
    answers = certified.certifySelective(ratings, 0.49)
    lines = answers.setColdStartStrategy("prior").transform(strangers).sort("item").collect()
    assert [line["answered"] for line in lines] == [True, False]
    SparkRuntime(spark).predict(
        answers, strangers, 2, Target(str(tmp_path / "predicted"), None, False)
    )
    lines = spark.read.parquet(str(tmp_path / "predicted")).sort("item").collect()
    assert [line["answered"] for line in lines] == [True, False]
    with pytest.raises(RequestError, match="coldStartStrategy must be one of"):
        make_known().setColdStartStrategy("guess").certify(ratings)


@pytest.mark.slow
def test_the_headline_stays_until_it_is_certified_again(make_known, ratings):
    certified = make_known().certify(ratings, delta=0.1)
    selective = certified.certifySelective(ratings, 0.3)
    assert (selective.headline, requests_of(selective)) == (certified.headline, [0.3])
    again = selective.certify(ratings)
    assert [one["name"] for one in again.certificate["certificates"]] == ["holdout"]
    assert requests_of(again) == []


def test_beyond_what_can_be_collected(make_known, ratings, certified, monkeypatch):
    monkeypatch.setattr("onebit_spark.spark.scoring.COLLECT_LIMIT", 0)
    assert (
        make_known().certifySelective(ratings, REQUESTS, by="age").certificate
        == certified.certificate
    )


@pytest.mark.slow
def test_which_error_rate_and_under_which_name(spark, ratings, certified, tmp_path):
    model = certified.copy()
    strangers = spark.createDataFrame([(1, 1), (1, 99)], "user long, item long")
    # Could not be met
    assert not model.copy().setMaxError(0.001).transform(ratings).where("answered").head(1)
    renamed = model.copy().setAnsweredCol("sure")
    assert renamed.transform(strangers).columns[-1] == "sure"
    assert "answered" not in model.copy().setAnsweredCol("").transform(strangers).columns
    everything = model.certifySelective(ratings, 0.49)
    assert requests_of(everything) == [0.49]
    lines = everything.setColdStartStrategy("nan").transform(strangers).sort("item").collect()
    assert [line["answered"] for line in lines] == [True, False]
    with pytest.raises(
        RequestError,
        match=r"maxError 0.2 was not certified for this model: choose one of 0.08, 0.001",
    ):
        model.copy().setMaxError(0.2).transform(strangers)
    with pytest.raises(RequestError, match="'answered' is already there"):
        model.transform(strangers.selectExpr("*", "true as answered"))
    model.setMaxError(0.001).save(str(tmp_path / "model"))
    again = OneBitCompletionModel.load(str(tmp_path / "model"))
    assert again.certificate == model.certificate
    assert again.info.thresholds == model.info.thresholds
    assert again.getMaxError() == 0.001
    assert not again.transform(ratings).where("answered").head(1)
    new = spark.createDataFrame([(77, 1, 1), (77, 2, -1)], "user long, item long, label int")
    assert requests_of(again.foldIn(new)) == []  # other factors, no certificate


PRECISIONS = "0.9,0.999,negative:0.85"


@pytest.fixture(scope="module")
def precise(make_known, ratings):
    """Tests change copies of it."""
    return make_known().certify(ratings, delta=0.1, by="age", minPrecision=PRECISIONS)


def test_precisions_as_in_process(make_fit, precise, ratings, held):
    rows, cols, labels, age = held
    groups = np.array([str(value) for value in age])
    expected = make_fit().certify(rows, cols, labels, Terms(delta=0.1), (), groups, PRECISIONS)
    found = precise.certificate["certificates"]
    key = ("name", "class", "request")
    assert [[one.get(name) for name in key] for one in found[:4]] == [
        [item.as_dict().get(name) for name in key] for item in expected[:4]
    ]
    assert len(found) == len(expected) == 1 + 3 + 3 + 9
    for one, item in zip(found[:4], expected[:4], strict=True):
        assert_same_figures(one, item)
    lines = precise.transform(ratings).toPandas()
    for call, item in (("positive", expected[1]), ("negative", expected[3])):
        assert 0 < item.inputs["found_share"] < 1
        np.testing.assert_array_equal(
            lines[call], make_fit().called(call, lines["user"], lines["item"], item)
        )
        assert lines[call].sum() == item.inputs["n_answered"]


@pytest.mark.slow
def test_precisions_beyond_what_can_be_collected(make_known, ratings, precise, monkeypatch):
    monkeypatch.setattr("onebit_spark.spark.scoring.COLLECT_LIMIT", 0)
    again = make_known().certify(ratings, delta=0.1, by="age", minPrecision=PRECISIONS)
    assert again.certificate == precise.certificate


def test_which_precision_and_under_which_name(spark, ratings, precise, tmp_path):
    strangers = spark.createDataFrame([(1, 1), (1, 99)], "user long, item long")
    assert precise.transform(strangers).columns[-2:] == ["positive", "negative"]
    renamed = precise.copy().setPositiveCol("hit").setNegativeCol("")
    assert renamed.transform(strangers).columns[-1] == "hit"
    other = precise.copy().setMinPrecision("0.999")
    assert not other.transform(ratings).where("positive").head(1)  # could not be met
    assert other.transform(ratings).where("negative").head(1)  # as before
    lines = precise.copy().setColdStartStrategy("nan").transform(strangers).sort("item").collect()
    assert [line["negative"] for line in lines][1] is False
    with pytest.raises(
        RequestError,
        match=r"minPrecision 0.5 was not certified for this model: choose one of 0.9, 0.999",
    ):
        precise.copy().setMinPrecision("0.5").transform(strangers)
    other.save(str(tmp_path / "model"))
    again = OneBitCompletionModel.load(str(tmp_path / "model"))
    assert (again.getMinPrecision(), again.certificate) == ("0.999", precise.certificate)
    assert again.info.thresholds == precise.info.thresholds
    assert precise.certify(ratings).transform(strangers).columns[-1] == "rawPrediction"  # replaced


def test_what_is_refused(make_model, make_known, ratings, monkeypatch):
    with pytest.raises(RequestError, match="a checkpoint has no confidences"):
        make_model().certifySelective(ratings, 0.1)
    model = make_known()
    for arguments, message in (
        ({"maxError": 0.6}, "maxError must hold error rates strictly between 0 and 0.5"),
        ({"maxError": []}, "at least one error rate"),
        ({"delta": 1.5}, "delta must lie strictly between 0 and 1"),
        ({"by": "sex"}, "no column 'sex'"),
    ):
        with pytest.raises(RequestError, match=message):
            model.certifySelective(ratings, **arguments)
    with pytest.raises(RequestError, match="no error rate was certified"):
        model.recommendForAllUsers(3, answeredOnly=True)
    monkeypatch.setattr("onebit_spark.predict.figures.MOST_GROUPS", 2)
    with pytest.raises(RequestError, match="column 'age' has 3 different values"):
        model.certifySelective(ratings, 0.1, by="age")


def test_lists_of_answered_pairs_alone(make_fit, certified):
    fit = make_fit()
    model = certified.copy()
    threshold = model.certificate["certificates"][0]["threshold"]
    sure = fit.confidence(ALL_USERS, ALL_ITEMS) >= threshold
    assert 0.5 < sure.mean() < 0.95
    allowed = set(zip(ALL_USERS[sure].tolist(), ALL_ITEMS[sure].tolist(), strict=True))
    lists = table_of(model.recommendForAllUsers(18, answeredOnly=True), "user", "item")
    found = {(user, one[0]) for user, listed in lists.items() for one in listed}
    assert found == allowed
    short = table_of(model.recommendForAllItems(2, answeredOnly=True), "item", "user")
    assert all((one[0], item) in allowed for item, listed in short.items() for one in listed)
    assert {item: len(listed) for item, listed in short.items()} == {
        item: min(2, sum(pair[1] == item for pair in allowed)) for item in range(18)
    }
    nothing = model.setMaxError(0.001).recommendForAllUsers(2, answeredOnly=True)
    assert [line["recommendations"] for line in nothing.collect()] == [[]] * 28
