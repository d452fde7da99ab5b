"""A model without Spark: it predicts as the fit does, by the ids of the ratings, and refuses what it cannot read."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest
from modelfolders import FOLDERS, VERSIONS, told_by

import onebit_spark
from onebit_spark import RequestError
from onebit_spark.core.model_info import FORMAT_VERSION
from onebit_spark.core.prediction import Calibration

USERS, ITEMS = (index.ravel() for index in np.indices((30, 20)))  # the last two of each were never rated
KINDS = [{"loss": "hinge"}, {"loss": "logistic"}, {"loss": "logistic", "covariance": "diagonal", "intercepts": False}]
ANSWERING = {"name": "selective", "group": None, "request": 0.1, "threshold": 0.4}
NAMES = ("score", "std", "probability", "prediction")


def ids_of(users=USERS, items=ITEMS):
    return [f"u{i:02}" for i in users], 10 * items


# ---- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_it_predicts_as_the_fit_does(make_fit, make_model, choices):
    """Also the ids that were never rated: from the prior."""
    fit, model = make_fit(**choices), make_model(**choices)
    for name in ("score", "std", "probability", "predict"):
        expected = getattr(fit, name)(USERS, ITEMS)
        np.testing.assert_allclose(getattr(model, name)(*ids_of()), expected, rtol=1e-6, atol=1e-6)
    table = model.predictions(*ids_of())
    assert table.column_names == ["user", "item", *NAMES]
    np.testing.assert_array_equal(table["score"].to_numpy(), model.score(*ids_of()))


@pytest.mark.parametrize("name", VERSIONS)
def test_folders_of_all_versions_predict_as_they_did(name):
    told, model = told_by(name), onebit_spark.load(FOLDERS / name)
    found = model.predictions(told["user"], told["item"])
    for column in (column for column in told.column_names if column not in ("user", "item")):
        np.testing.assert_allclose(found[column].to_numpy(), told[column].to_numpy(), rtol=1e-6, err_msg=column)
    assert json.loads((FOLDERS / name / "metadata.json").read_text())["format_version"] == int(name[-1])


def test_the_newest_version_has_a_folder():
    assert VERSIONS[-1].endswith(str(FORMAT_VERSION))


def test_what_may_be_passed_for_ids(make_model):
    model = make_model()
    users, items = ["u01", "u02", "unseen"], [10, 170, 20]
    expected = model.score(users, items)
    series = pytest.importorskip("pandas").Series
    for form in (tuple, np.array, pa.array, series, lambda ids: pa.chunked_array([ids[:1], ids[1:]])):
        np.testing.assert_array_equal(model.score(form(users), form(items)), expected)
    small = np.array(items, np.int16), pa.array(users).dictionary_encode()
    np.testing.assert_array_equal(model.score(small[1], small[0]), expected)
    np.testing.assert_array_equal(model.score("u01", items), [model.score("u01", item)[0] for item in items])
    np.testing.assert_array_equal(model.score(np.array("u01"), 10), expected[:1])
    assert len(model.score([], [])) == len(model.predictions([], 10)) == 0


MIDNIGHT = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("spark_type", "kind", "first"),
    [
        ("string", pa.string(), "0"),
        ("bigint", pa.int64(), 0),
        ("smallint", pa.int16(), 0),
        ("double", pa.float64(), 0.0),
        ("date", pa.date32(), MIDNIGHT.date()),
        ("timestamp", pa.timestamp("ns"), MIDNIGHT),  # as Spark writes them
        ("timestamp", pa.timestamp("us", "Europe/Rome"), MIDNIGHT),  # as Arrow does
        ("timestamp_ntz", pa.timestamp("us"), MIDNIGHT.replace(tzinfo=None)),
        ("decimal(12,2)", pa.decimal128(12, 2), decimal.Decimal(0)),
    ],
)
def test_ids_of_any_type(make_fit, make_model, spark_type, kind, first):
    """Row i has the id i, cast: in thousands of the smallest unit for instants, for Spark knows no nanoseconds."""
    numbers = 1000 * np.arange(28) if pa.types.is_timestamp(kind) else np.arange(28, dtype=np.int32)
    model = make_model(users=pa.array(numbers).cast(kind), types=(spark_type, "int"))
    expected = make_fit().score(np.arange(28), 1)
    np.testing.assert_allclose(model.score(model.users.ids, 10), expected, rtol=1e-6)
    np.testing.assert_allclose(model.score(first, 10), expected[:1], rtol=1e-6)


@pytest.mark.parametrize(
    ("users", "items", "reason"),
    [
        ([1], [10], "user ids are of type int64, but the model's are of type string"),
        (["u01"], ["10"], "item ids are of type string, but the model's are of type int32"),
        (["u01"], [10.0], "item ids are of type double"),
        (["u01", None], 10, "user ids hold 1 null or NaN"),
        (["u01", "u02"], [10, 20, 30], "2 user ids, but 3 item ids"),
        ([["u01"], ["u02", 3]], 10, "user ids"),
        (["u01"], np.array([2**64 - 1], np.uint64), "cannot be of type"),
    ],
)
def test_ids_that_cannot_be_asked(make_model, users, items, reason):
    with pytest.raises(RequestError, match=reason):
        make_model().score(users, items)


def test_cold_start(make_model):
    """As in Spark: from the prior, NaN, or left out. Arrays of numbers cannot leave out a pair."""
    users, items = ["u01", "unseen", "u01"], [10, 10, -5]
    models = {rule: make_model(params={"coldStartStrategy": rule}, name=rule) for rule in ("prior", "drop", "nan")}
    tables = {rule: model.predictions(users, items) for rule, model in models.items()}
    assert [len(tables[rule]) for rule in tables] == [3, 1, 3]
    assert not np.isnan(tables["prior"]["score"].to_numpy()).any()
    for name in NAMES:
        assert np.isnan(tables["nan"][name].to_numpy()).tolist() == [False, True, True]
        assert {tables[rule][name][0].as_py() for rule in tables} == {tables["prior"][name][0].as_py()}
    assert np.isnan(models["drop"].score(users, items)).tolist() == [False, True, True]
    with pytest.raises(RequestError, match="cold_start must be one of prior, drop, nan, not 'raise'"):
        dataclasses.replace(models["prior"], cold_start="raise")


def test_labels_are_those_of_the_ratings(make_fit, make_model):
    signs = make_fit().predict(USERS, ITEMS)
    for coding in ("signed", "binary"):
        expected = np.where(signs > 0, 1.0, -1.0 if coding == "signed" else 0.0)
        np.testing.assert_array_equal(
            make_model(info={"label_coding": coding}, name=coding).predict(*ids_of()), expected
        )


def test_a_calibrated_model_answers_some_pairs(make_fit, make_model):
    score, std = make_fit().score(USERS, ITEMS), make_fit().std(USERS, ITEMS)
    often = 1 / (1 + np.exp(-3 * score))
    learnt = Calibration.fit(score, std**2, often, 1 - often)
    model = make_model(info={"calibration": dataclasses.asdict(learnt)}, certificates=[ANSWERING])
    table = model.predictions(*ids_of())
    confident = make_fit().confidence(USERS, ITEMS) >= 0.4
    assert 0 < confident.sum() < len(confident)
    np.testing.assert_array_equal(table["answered"].to_numpy(False), confident)
    np.testing.assert_allclose(table["probability"].to_numpy(), learnt.probability(score, std**2), atol=1e-6)
    assert np.abs(table["probability"].to_numpy() - make_fit().probability(USERS, ITEMS)).max() > 0.01
    lists = model.recommend(n=20, answered_only=True)
    assert 0 < len(lists) < 28 * 18
    other = dataclasses.replace(model, max_error=0.2)
    with pytest.raises(RequestError, match=r"maxError 0.2 was not certified .*: choose one of 0.1"):
        other.predictions("u01", 10)


# ---- recommendations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["user", "item"])
@pytest.mark.parametrize("z", [None, 1.5])
def test_the_best_are_those_of_all_pairs(make_fit, make_model, who, z):
    fit, model = make_fit(), make_model()
    users, items = (index.ravel() for index in np.indices((28, 18)))
    key = fit.probability(users, items) if z is None else fit.score(users, items) - z * fit.std(users, items)
    key = key.reshape(28, 18) if who == "user" else key.reshape(28, 18).T
    best = np.argsort(-key, axis=1)[:, :4]
    table = model.recommend(n=4, who=who, z=z)
    partners, own = (model.items, model.users) if who == "user" else (model.users, model.items)
    assert table.column_names == [who, "rank", "item" if who == "user" else "user", "score", "std", "probability"]
    assert table[2].to_pylist() == partners.ids.take(pa.array(best.ravel())).to_pylist()
    assert table[0].to_pylist() == np.repeat(own.ids.to_pylist(), 4).tolist()
    assert table["rank"].to_pylist() == [1, 2, 3, 4] * len(own.ids)
    np.testing.assert_allclose(table["score"].to_numpy(), model.score(table["user"], table["item"]), atol=1e-5)


def test_seen_pairs_and_unknown_ids_are_left_out(make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.predictor.top_n.ROWS_PER_SLICE", 2)
    model = make_model()
    asked = ["u03", "unseen", "u05", "u04", "u03"]
    everything = {who: model.recommend(who, 18)["item"].to_pylist() for who in ("u03", "u04", "u05")}
    seen = (
        ["u05", "u03", "u05", "u03", "unseen", "u03"],
        [*everything["u05"][:1], 999, 20, 30, 40, everything["u03"][0]],
    )
    table = model.recommend(asked, 18, seen=seen)
    excluded = set(zip(*seen, strict=True))
    wanted = [
        (who, item) for who in asked if who != "unseen" for item in everything[who] if (who, item) not in excluded
    ]
    assert list(zip(table["user"].to_pylist(), table["item"].to_pylist(), strict=True)) == wanted
    assert len(model.recommend(["unseen"], 3)) == 0
    with pytest.raises(RequestError, match=r"integer of at least 1, not 0; z must .* not -1; who must"):
        model.recommend(n=0, z=-1, who="film")


# ---- newcomers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["user", "item"])
@pytest.mark.parametrize("choices", [{}, {"implicit_features": False}], ids=str)
def test_rows_of_a_converged_fit_are_reproduced(make_model, ratings, who, choices):
    """Of ids with a typical number of ratings, or more: those with fewer are taken for newcomers."""
    model = make_model(tol=1e-10, max_iter=300, **choices)
    users, items, labels = ratings
    own = users if who == "user" else items
    different = np.unique(np.stack([own, items if who == "user" else users]), axis=1)[0]
    counts = np.bincount(different)
    mine = np.isin(own, np.argsort(counts)[-4:])
    assert np.sort(counts)[-4] >= counts.mean()
    asked, films = ids_of(users[mine], items[mine])
    folded = model.fold_in(asked, films, labels[mine], who)
    assert folded.users.ids.type == model.users.ids.type
    assert (folded.info.n_users, folded.info.n_items) == (28, 18)
    np.testing.assert_allclose(folded.score(*ids_of()), model.score(*ids_of()), atol=3e-3)
    assert np.any(folded.score(*ids_of()) != model.score(*ids_of()))  # they were computed anew


def test_a_newcomer_is_served(make_model, ratings, caplog):
    """One with the ratings of u03, of which one is of an item that the model does not know."""
    model = make_model(tol=1e-10, max_iter=300, certificates=[ANSWERING])
    users, items, labels = ratings
    mine = users == 3
    films, told = np.append(10 * items[mine], 777), np.append(labels[mine], 1)
    folded, alone = (model.fold_in("new", films, told, only_new=only) for only in (False, True))
    assert (len(folded.users.ids), len(alone.users.ids), len(model.users.ids)) == (29, 1, 28)
    every = model.items.ids
    np.testing.assert_allclose(folded.probability("new", every), model.probability("u03", every), atol=1e-3)
    assert folded.predictions("new", every).equals(alone.predictions("new", every))
    assert folded.recommend("new", 3).equals(alone.recommend("new", 3))
    np.testing.assert_array_equal(alone.score("unseen", every), model.score("new", every))  # the prior remains
    assert "answered" not in folded.predictions("new", every).column_names
    twice = folded.fold_in(["new", "newer"], [10, 10], [True, False])
    assert len(twice.users.ids) == 30
    assert model.fold_in([], [], []) is model
    assert not caplog.records
    stranger = model.fold_in("stranger", [777], [1])  # nothing is known of these ratings
    assert "1 of 1 users are not folded in: all their ratings are with items that the model does not" in caplog.text
    assert len(stranger.users.ids) == 28


def test_labels_of_newcomers(make_model):
    model = make_model(info={"threshold": 3.5, "label_coding": "threshold"})
    stars = model.fold_in("new", [10, 20], [3.5, 4])
    signs = dataclasses.replace(model, info=dataclasses.replace(model.info, threshold=None)).fold_in(
        "new", [10, 20], [-1, 1]
    )
    np.testing.assert_array_equal(stars.score("new", model.items.ids), signs.score("new", model.items.ids))
    for labels, threshold, reason in (
        ([1], None, "one per pair"),
        ([1, np.nan], None, "not NaN"),
        ("ab", 3, "numbers"),
    ):
        with pytest.raises(RequestError, match=f"cannot fold in: .*{reason}"):
            model.fold_in("new", [10, 20], labels, threshold=threshold)
    with pytest.raises(RequestError, match="who must be 'user' or 'item', not 'film'"):
        model.fold_in("new", 10, 1, who="film")
