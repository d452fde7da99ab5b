"""A model without Spark: predictions by ids, recommendations, newcomers, and folders that cannot be
read.
"""

import dataclasses
import datetime
import decimal
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.modelfolders import nearest_by_inner_product

import onebit_spark
from onebit_spark import FitConfig, RequestError, Terms, fit_arrays, model_folder
from onebit_spark.core.calibration import Calibration
from onebit_spark.data.locations import ESTIMATOR, VECTORS, Location
from onebit_spark.model_info import ModelInfo

# The last two of each were never rated
USERS, ITEMS = (index.ravel() for index in np.indices((30, 20)))
KINDS = [
    {"loss": "hinge"},
    {"loss": "logistic"},
    {"loss": "logistic", "covariance": "diagonal", "intercepts": False},
]
ANSWERING = {"name": "selective", "group": None, "request": 0.1, "threshold": 0.4}
NAMES = ("score", "std", "probability", "prediction")


def ids_of(users=USERS, items=ITEMS):
    return [f"u{i:02}" for i in users], 10 * items


# ---- predictions -------------------------------------------------------------------------------


def test_what_may_be_passed_for_ids(make_model):
    model = make_model()
    users = ["u01", "u02", "unseen"]
    items = [10, 170, 20]
    expected = model.score(users, items)
    series = pytest.importorskip("pandas").Series
    for form in (
        tuple,
        np.array,
        pa.array,
        series,
        lambda ids: pa.chunked_array([ids[:1], ids[1:]]),
    ):
        np.testing.assert_array_equal(model.score(form(users), form(items)), expected)
    small = np.array(items, np.int16), pa.array(users).dictionary_encode()
    np.testing.assert_array_equal(model.score(small[1], small[0]), expected)
    np.testing.assert_array_equal(
        model.score("u01", items), [model.score("u01", item)[0] for item in items]
    )
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
    """Row i has the id i, cast: in thousands of the smallest unit for instants, for Spark knows no
    nanoseconds.
    """
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
    users = ["u01", "unseen", "u01"]
    items = [10, 10, -5]
    models = {
        rule: make_model(params={"coldStartStrategy": rule}, name=rule)
        for rule in ("prior", "drop", "nan")
    }
    tables = {rule: model.predictions(users, items) for rule, model in models.items()}
    assert [len(tables[rule]) for rule in tables] == [3, 1, 3]
    assert not np.isnan(tables["prior"]["score"].to_numpy()).any()
    for name in NAMES:
        assert np.isnan(tables["nan"][name].to_numpy()).tolist() == [False, True, True]
        assert {tables[rule][name][0].as_py() for rule in tables} == {
            tables["prior"][name][0].as_py()
        }
    assert np.isnan(models["drop"].score(users, items)).tolist() == [False, True, True]
    with pytest.raises(
        RequestError, match="cold_start must be one of prior, drop, nan, not 'raise'"
    ):
        dataclasses.replace(models["prior"], cold_start="raise")


def test_labels_are_those_of_the_ratings(make_fit, make_model):
    signs = make_fit().predict(USERS, ITEMS)
    for coding in ("signed", "binary"):
        expected = np.where(signs > 0, 1.0, -1.0 if coding == "signed" else 0.0)
        np.testing.assert_array_equal(
            make_model(info={"label_coding": coding}, name=coding).predict(*ids_of()), expected
        )


def test_a_calibrated_model_answers_some_pairs(make_fit, make_model):
    score = make_fit().score(USERS, ITEMS)
    std = make_fit().std(USERS, ITEMS)
    often = 1 / (1 + np.exp(-3 * score))
    learnt = Calibration.fit(score, std**2, often, 1 - often)
    model = make_model(info={"calibration": dataclasses.asdict(learnt)}, certificates=[ANSWERING])
    table = model.predictions(*ids_of())
    confident = make_fit().confidence(USERS, ITEMS) >= 0.4
    assert 0 < confident.sum() < len(confident)
    np.testing.assert_array_equal(table["answered"].to_numpy(False), confident)
    np.testing.assert_allclose(
        table["probability"].to_numpy(), learnt.probability(score, std**2), atol=1e-6
    )
    assert (
        np.abs(table["probability"].to_numpy() - make_fit().probability(USERS, ITEMS)).max() > 0.01
    )
    lists = model.recommend(n=20, answered_only=True)
    assert 0 < len(lists) < 28 * 18
    other = dataclasses.replace(model, max_error=0.2)
    with pytest.raises(
        RequestError, match=r"^max_error 0.2 was not certified .*: choose one of 0.1"
    ):
        other.predictions("u01", 10)


def test_pairs_are_called_positive_and_negative(make_fit, make_model, tmp_path):
    """``positive`` is for the first precision, past score 0; ``min_precision`` selects another; one
    was not met.
    """
    common = {"name": "precision", "group": None}
    certificates = [
        {**common, "class": "positive", "request": 0.9, "threshold": 0.3},
        {**common, "class": "positive", "request": 0.7, "threshold": -0.2},
        {**common, "class": "negative", "request": 0.95, "threshold": 0.4},
        {**common, "class": "negative", "request": 0.99, "threshold": None},
        {
            **common,
            "class": "positive",
            "request": 0.9,
            "threshold": -9.0,
            "group": {"column": "age", "value": "1"},
        },
    ]
    model = make_model(certificates=certificates)
    z = make_fit().confidence(USERS, ITEMS) * np.sign(make_fit().score(USERS, ITEMS))
    table = model.predictions(*ids_of())
    assert table.column_names[-3:] == ["prediction", "positive", "negative"]
    other = dataclasses.replace(model, min_precision="0.7,negative:0.99")
    other.save(tmp_path / "other")
    other = onebit_spark.load(tmp_path / "other")
    assert other.min_precision == "0.7,negative:0.99"
    for each, least, most in ((model, 0.3, -0.4), (other, -0.2, -np.inf)):
        table = each.predictions(*ids_of())
        np.testing.assert_array_equal(table["positive"].to_numpy(False), z >= least)
        np.testing.assert_array_equal(table["negative"].to_numpy(False), z <= most)
    assert 0 < np.sum(z >= 0.3) < np.sum(z >= 0) < np.sum(z >= -0.2) < len(z)
    unknown = dataclasses.replace(other, cold_start="nan").predictions("nobody", 10)
    assert unknown["positive"].to_pylist() == [False]
    assert "positive" not in model.fold_in(["new"], [10], [1]).predictions("new", 10).column_names
    with pytest.raises(
        RequestError, match=r"^min_precision 0.8 was not certified .*: choose one of 0.9, 0.7"
    ):
        dataclasses.replace(model, min_precision="0.8").predictions(*ids_of())


# ---- recommendations ---------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["user", "item"])
@pytest.mark.parametrize("z", [None, 1.5])
def test_the_best_are_those_of_all_pairs(make_fit, make_model, who, z):
    fit = make_fit()
    model = make_model()
    users, items = (index.ravel() for index in np.indices((28, 18)))
    key = (
        fit.probability(users, items)
        if z is None
        else fit.score(users, items) - z * fit.std(users, items)
    )
    key = key.reshape(28, 18) if who == "user" else key.reshape(28, 18).T
    best = np.argsort(-key, axis=1)[:, :4]
    table = model.recommend(n=4, who=who, z=z)
    partners, own = (model.items, model.users) if who == "user" else (model.users, model.items)
    assert table.column_names == [
        who,
        "rank",
        "item" if who == "user" else "user",
        "score",
        "std",
        "probability",
    ]
    assert table[2].to_pylist() == partners.ids.take(pa.array(best.ravel())).to_pylist()
    assert table[0].to_pylist() == np.repeat(own.ids.to_pylist(), 4).tolist()
    assert table["rank"].to_pylist() == [1, 2, 3, 4] * len(own.ids)
    np.testing.assert_allclose(
        table["score"].to_numpy(), model.score(table["user"], table["item"]), atol=1e-5
    )


def test_seen_pairs_and_unknown_ids_are_left_out(make_model, monkeypatch):
    monkeypatch.setattr("onebit_spark.predict.top_n.ROWS_PER_SLICE", 2)
    model = make_model()
    asked = ["u03", "unseen", "u05", "u04", "u03"]
    everything = {
        who: model.recommend(who, 18)["item"].to_pylist() for who in ("u03", "u04", "u05")
    }
    seen = (
        ["u05", "u03", "u05", "u03", "unseen", "u03"],
        [*everything["u05"][:1], 999, 20, 30, 40, everything["u03"][0]],
    )
    table = model.recommend(asked, 18, seen=seen)
    excluded = set(zip(*seen, strict=True))
    wanted = [
        (who, item)
        for who in asked
        if who != "unseen"
        for item in everything[who]
        if (who, item) not in excluded
    ]
    assert list(zip(table["user"].to_pylist(), table["item"].to_pylist(), strict=True)) == wanted
    assert len(model.recommend(["unseen"], 3)) == 0
    with pytest.raises(
        RequestError, match=r"integer of at least 1, not 0; z must .* not -1; who must"
    ):
        model.recommend(n=0, z=-1, who="film")


# ---- newcomers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["user", "item"])
@pytest.mark.parametrize("choices", [{}, {"implicit_features": False}], ids=str)
def test_rows_of_a_converged_fit_are_reproduced(make_model, ratings, who, choices):
    """Of ids with a typical number of ratings, or more: those with fewer are taken for
    newcomers.
    """
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
    films = np.append(10 * items[mine], 777)
    signs = np.append(labels[mine], 1)
    folded, alone = (model.fold_in("new", films, signs, only_new=only) for only in (False, True))
    assert (len(folded.users.ids), len(alone.users.ids), len(model.users.ids)) == (29, 1, 28)
    every = model.items.ids
    np.testing.assert_allclose(
        folded.probability("new", every), model.probability("u03", every), atol=1e-3
    )
    assert folded.predictions("new", every).equals(alone.predictions("new", every))
    assert folded.recommend("new", 3).equals(alone.recommend("new", 3))
    # The prior remains
    np.testing.assert_array_equal(alone.score("unseen", every), model.score("new", every))
    assert "answered" not in folded.predictions("new", every).column_names
    twice = folded.fold_in(["new", "newer"], [10, 10], [True, False])
    assert len(twice.users.ids) == 30
    assert model.fold_in([], [], []) is model
    assert not caplog.records
    stranger = model.fold_in("stranger", [777], [1])  # nothing is known of these ratings
    assert (
        "1 of 1 users are not folded in: all their ratings are with items that the model does not"
        in caplog.text
    )
    assert len(stranger.users.ids) == 28


def test_labels_of_newcomers(make_model):
    model = make_model(info={"threshold": 3.5, "label_coding": "threshold"})
    stars = model.fold_in("new", [10, 20], [3.5, 4])
    signs = dataclasses.replace(
        model, info=dataclasses.replace(model.info, threshold=None)
    ).fold_in("new", [10, 20], [-1, 1])
    np.testing.assert_array_equal(
        stars.score("new", model.items.ids), signs.score("new", model.items.ids)
    )
    for labels, threshold, reason in (
        ([1], None, "one per pair"),
        ([1, np.nan], None, "not NaN"),
        ("ab", 3, "numbers"),
    ):
        with pytest.raises(RequestError, match=f"cannot fold in: .*{reason}"):
            model.fold_in("new", [10, 20], labels, threshold=threshold)
    with pytest.raises(RequestError, match="who must be 'user' or 'item', not 'film'"):
        model.fold_in("new", 10, 1, who="film")


# 28 × 18 are rated; the shape is 30 × 20
ROWS, COLS = (index.ravel() for index in np.indices((31, 21)))
METHODS = ("score", "std", "probability", "predict")


@pytest.mark.parametrize("choices", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_its_folder_predicts_as_it_does(make_fit, tmp_path, choices):
    fit = make_fit(**choices)
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    for name in METHODS:  # to the bit: both are in single precision
        np.testing.assert_array_equal(
            getattr(model, name)(ROWS, COLS), getattr(fit, name)(ROWS, COLS)
        )
    assert model.recommend(n=5).equals(fit.recommend(n=5))
    assert model.users.ids.to_pylist() == list(range(28))
    assert (model.info.n_users, model.info.n_items) == (28, 18)
    assert (model.info.n_ratings, model.info.effective_rank) == (500, fit.effective_rank)
    assert model.info.objective_history == fit.objective_history
    assert model.info.thresholds == fit.info.thresholds


def test_rows_without_ratings_are_known_by_their_features(ratings, tmp_path):
    features = np.random.default_rng(2).normal(size=(30, 2))
    fit = fit_arrays(
        *ratings, FitConfig(rank=2, max_iter=5, tol=0), (30, 20), threads=1, row_features=features
    )
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    assert (model.info.n_users, model.info.n_items, model.info.rated) == (30, 18, (28, 18))
    np.testing.assert_array_equal(model.score(ROWS, COLS), fit.score(ROWS, COLS))
    assert fit.score(28, 0) != fit.score(30, 0)


def test_certificates_are_kept(ratings, tmp_path):
    config = FitConfig(rank=2, max_iter=5, tol=0, implicit_features=False)
    fit = fit_arrays(*ratings, config, (30, 20), threads=1, certify=Terms())
    fit.save(tmp_path / "model")
    model = onebit_spark.load(tmp_path / "model")
    assert model.certificate["certificates"] == json.loads(
        json.dumps([item.as_dict() for item in fit.certificates])
    )
    assert model.headline is not None
    model.save(tmp_path / "again")
    again = onebit_spark.load(tmp_path / "again")
    assert again.users.table.equals(model.users.table)
    assert again.certificate == model.certificate


def test_a_folder_is_not_overwritten_by_chance(make_fit, tmp_path):
    fit = make_fit()
    path = tmp_path / "model"
    fit.save(path)
    with pytest.raises(RequestError, match=r"exists: .*overwritten"):
        fit.save(path)
    fit.save(path, overwrite=True)
    assert ModelInfo.from_json((path / "metadata.json").read_text()).fitted is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("mine")
    with pytest.raises(RequestError, match="mine is not a model"):
        fit.save(tmp_path / "mine", overwrite=True)


# ---- vectors -----------------------------------------------------------------------------------


def exported(folder):
    tables = (pq.read_table(folder / name) for name in ("users", "items"))
    return [(table["id"], np.stack(table["vector"].to_numpy())) for table in tables]


@pytest.mark.parametrize("intercepts", [True, False])
def test_inner_products_of_vectors_are_scores(make_model, tmp_path, intercepts):
    model = make_model(intercepts=intercepts)
    model.export_vectors(tmp_path / "vectors")
    (users, left), (items, right) = exported(tmp_path / "vectors")
    assert left.shape[1] == right.shape[1] == (4 if intercepts else 2)
    scores = left.astype(float) @ right.astype(float).T
    for user, line in zip(users, scores, strict=True):
        np.testing.assert_allclose(line, model.score(user.as_py(), items), atol=1e-6)
    found = nearest_by_inner_product(left, right, 5)
    assert (
        items.take(pa.array(found.ravel())).to_pylist()
        == model.recommend(users, 5, z=0.0)["item"].to_pylist()
    )


def test_vectors_appear_whole_or_not_at_all(make_model, tmp_path, monkeypatch):
    model = make_model()
    path = tmp_path / "vectors"
    model.export_vectors(f"file:{path}")
    before = sorted(entry.relative_to(path) for entry in path.rglob("*"))
    with pytest.raises(RequestError, match=r"exists: .*overwritten"):
        model.export_vectors(path)
    model.fold_in("new", 10, 1).export_vectors(path, overwrite=True)
    assert len(pq.read_table(path / "users")) == 29
    assert sorted(entry.relative_to(path) for entry in path.rglob("*")) == before

    def killed(*args):
        raise KeyboardInterrupt

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("mine")
    with pytest.raises(RequestError, match="mine is not a folder of vectors"):
        model.export_vectors(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "precious.txt").read_text() == "mine"
    monkeypatch.setattr("onebit_spark.model_folder.pq.write_table", killed)
    for target, overwrite in ((path, True), (tmp_path / "others", False)):
        with pytest.raises(KeyboardInterrupt):
            model.export_vectors(target, overwrite)
    assert len(pq.read_table(path / "users")) == 29
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "model", "vectors"]


def test_a_failed_rename_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "out"
    for name in ("users", "items"):
        (target / name).mkdir(parents=True)
        (target / name / "part-0.parquet").touch()
    VECTORS.write_marker(Location(None, target))
    rename = Location.move_to

    def fail(self, other):
        if self.name.startswith(".out.writing"):
            raise OSError("disk on fire")
        rename(self, other)

    monkeypatch.setattr(Location, "move_to", fail)
    with (
        pytest.raises(OSError, match="disk on fire"),
        model_folder.replaced_folder(target, VECTORS, overwrite=True),
    ):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert (target / "users").exists()


# ---- folders that cannot be read ---------------------------------------------------------------


def edit(**changes):
    """Changes in metadata.json; what is changed to ``edit`` is missing."""

    def damage(path):
        content = json.loads((path / "metadata.json").read_text()) | changes
        kept = {name: value for name, value in content.items() if value is not edit}
        (path / "metadata.json").write_text(json.dumps(kept))

    return damage


def other_columns(path):
    for part in (path / "users").iterdir():
        pq.write_table(pa.table({"id": ["a"], "mean": [[0.5]]}), part)


def ragged(path):
    table = pq.read_table(path / "users")
    short = table.set_column(1, "mean", pa.array([[0.5]] * len(table), pa.list_(pa.float32())))
    shutil.rmtree(path / "users")
    (path / "users").mkdir()
    pq.write_table(short, path / "users" / "part.parquet")


def emptied(path):
    shutil.rmtree(path / "items")
    (path / "items").mkdir()


DAMAGES = {
    "missing": (shutil.rmtree, "no model at .*no such folder"),
    "half-written": (
        lambda path: (path / "metadata.json").unlink(),
        r"not a model \(or half-written\)",
    ),
    "older": (
        edit(format_version=0),
        "format_version 0, and this onebit_spark reads 1 only: load it with",
    ),
    "newer": (
        edit(format_version=2, majority=edit),
        "format_version 2, and this onebit_spark reads 1 only",
    ),
    "no version": (edit(format_version=edit), "damaged model folder: .*format_version"),
    "no JSON": (lambda path: (path / "metadata.json").write_text("{"), "metadata.json is not JSON"),
    "not a dict": (lambda path: (path / "metadata.json").write_text("[]"), "damaged model folder"),
    "binary": (
        lambda path: (path / "metadata.json").write_bytes(b"\x00\xff"),
        "damaged model folder",
    ),
    "missing keys": (edit(majority=edit, columns=edit, axes=edit), "lacks majority, columns, axes"),
    "wrong type": (edit(n_users="many"), "n_users cannot be 'many'"),
    "parameters": (
        edit(parameters={"loss": "hinge", "depth": 1}),
        "lack .*'covariance'.* unknown .'depth'",
    ),
    "gamma": (edit(inverse_gamma=[1.0]), "inverse_gamma has 1 entries for rank 2"),
    "intercepts": (edit(intercept_prior=None), "intercept_prior cannot be None"),
    "prior of the intercepts": (
        edit(intercept_scale_prior={"alpha": 1.0}),
        "intercept_scale_prior cannot be {'alpha': 1.0} with intercepts=True",
    ),
    "label coding": (edit(label_coding="±"), "label_coding must be one of signed"),
    "no certificate": (
        lambda path: (path / "certificate.json").unlink(),
        r"it has no certificate\.json",
    ),
    "certificate": (
        lambda path: (path / "certificate.json").write_text("[]"),
        "holds no certificates",
    ),
    "no items": (lambda path: shutil.rmtree(path / "items"), "it has no items/"),
    "empty items": (emptied, "damaged model folder: items/"),
    "lost part": (
        lambda path: (path / "users" / "part-00001.parquet").unlink(),
        "14 ids, and 28 were saved",
    ),
    "rotten part": (
        lambda path: (path / "users" / "part-00001.parquet").write_bytes(b"?"),
        "damaged .*users/",
    ),
    "columns": (other_columns, "users/ lacks covariance, intercept, implicit"),
    "ragged": (ragged, "damaged model folder: users/"),
    "id type": (
        edit(id_types={"user": "bigint", "item": "int"}),
        "ids of type string, where .* says bigint",
    ),
    "Spark only": (edit(id_types={"user": "interval day", "item": "int"}), "with Spark only"),
    "no Params": (lambda path: shutil.rmtree(path / "metadata"), "damaged model folder: metadata/"),
    "rotten Params": (
        lambda path: (path / "metadata" / "part-00000").write_text("[]"),
        "damaged .*metadata/",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused_in_one_line(make_folder, damage):
    path = make_folder()
    harm, message = DAMAGES[damage]
    harm(path)
    with pytest.raises(RequestError, match=message) as caught:
        onebit_spark.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", ["hdfs://name/model", "s3://bucket/model", "dbfs:/model"])
def test_folders_of_other_machines_are_refused(make_model, path):
    with pytest.raises(
        RequestError,
        match=r"not a folder of this machine.*copy it here, or use OneBitCompletionModel",
    ):
        onebit_spark.load(path)
    with pytest.raises(RequestError, match="not a folder of this machine"):
        make_model().export_vectors(path)


def test_an_estimator_is_not_a_model(tmp_path):
    ESTIMATOR.write_marker(Location(None, tmp_path))
    with pytest.raises(RequestError, match="holds an estimator, not a fitted model"):
        onebit_spark.load(tmp_path)
