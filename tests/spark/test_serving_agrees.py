"""What ``onebit_spark.load`` predicts, recommends and folds in is what the Spark model does, from the same folder."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from modelfolders import nearest_by_inner_product, text_ids

import onebit_spark
from onebit_spark import FitConfig, RequestError, Terms, fit_arrays
from onebit_spark.model import OneBitCompletionModel

NAMES = ("score", "std", "probability", "prediction", "answered")
SELECTIVE = {"name": "selective", "group": None, "threshold": 0.4}
KINDS = [
    ({"loss": "hinge"}, "nan"),
    ({"loss": "logistic"}, "prior"),
    ({"covariance": "diagonal", "intercepts": False}, "drop"),
]


@pytest.fixture
def make_named(make_model):
    """A model with text and integer ids, and one certified error rate."""

    def make(**choices):
        ids = text_ids("u", 28), pa.array(10 * np.arange(18, dtype=np.int32))
        model = make_model(*ids, id_types={"user": "string", "item": "int"}, **choices)
        model.certificate = {"headline": None, "certificates": [{**SELECTIVE, "request": r} for r in (0.1, 0.2)]}
        return model

    return make


def asked(spark):
    pairs = [(f"u{i:02}", 10 * j) for i in range(0, 30, 3) for j in range(0, 20, 2)]
    return spark.createDataFrame(pairs, "user string, item int")


def assert_same(served, expected):
    found = served.predictions(expected["user"], expected["item"])
    for name in (name for name in NAMES if name in expected.column_names):
        np.testing.assert_allclose(
            found[name].to_numpy(), expected[name].to_numpy(), rtol=1e-6, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize(("choices", "rule"), KINDS, ids=["hinge", "logistic", "diagonal"])
def test_predictions(spark, make_named, tmp_path, choices, rule):
    """With every cold start, and a chosen error rate."""
    model = make_named(**choices).setColdStartStrategy(rule).setMaxError(0.2)
    model.save(str(tmp_path / "m"))
    served = onebit_spark.load(tmp_path / "m")
    assert (served.cold_start, served.max_error) == (rule, 0.2)
    expected = model.transform(asked(spark)).toArrow()
    assert_same(served, expected)
    pairs = asked(spark).toArrow()
    assert len(served.predictions(pairs["user"], pairs["item"])) == len(expected)


@pytest.mark.parametrize("id_type", ["tinyint", "timestamp", "decimal(9,2)"])
def test_ids_in_files_of_spark(spark, make_model, tmp_path, on_executors, id_type):
    column = "timestamp_seconds(id)" if id_type == "timestamp" else f"cast(id as {id_type})"
    ids = spark.range(28).selectExpr(f"{column} as user", "cast(3 as bigint) as item")
    values = ids.toArrow()["user"].combine_chunks()
    model = make_model(values, id_types={"user": id_type, "item": "bigint"})
    model.save(str(tmp_path / "m"))
    served = onebit_spark.load(tmp_path / "m")
    assert_same(served, model.transform(ids).toArrow())
    assert served.users.positions(served.asked("user", values)).min() == 0  # none is unknown


def test_recommendations(spark, make_named, tmp_path):
    model = make_named()
    model.save(str(tmp_path / "m"))
    served = onebit_spark.load(tmp_path / "m")
    for z, answered in ((None, False), (1.0, False), (None, True)):
        expected = {
            line["user"]: line["recommendations"]
            for line in model.recommendForAllUsers(4, z=z, answeredOnly=answered).toArrow().to_pylist()
        }
        found = served.recommend(n=4, z=z, answered_only=answered).to_pylist()
        assert {line["user"] for line in found} == {who for who in expected if expected[who]}
        for line in found:
            told = expected[line["user"]][line["rank"] - 1]
            assert line["item"] == told["item"]
            assert [line["score"], line["std"]] == pytest.approx([told["rating"], told["std"]], rel=1e-5)


HINGE = {"loss": "hinge", "implicit_features": False}


# Each side and each loss; the others are slow.
@pytest.mark.parametrize(
    ("choices", "who"),
    [
        pytest.param({}, "user", id="implicit-user"),
        pytest.param(HINGE, "item", id="hinge-item"),
        pytest.param({}, "item", id="implicit-item", marks=pytest.mark.slow),
        pytest.param(HINGE, "user", id="hinge-user", marks=pytest.mark.slow),
    ],
)
def test_fold_in(spark, make_named, tmp_path, who, choices):
    model = make_named(**choices)
    model.save(str(tmp_path / "m"))
    lines = [("u01", 990, 1), ("u02", 990, -1), ("new", 10, 1), ("new", 20, -1), ("new", 20, 1), ("u03", 30, 1)]
    ratings = spark.createDataFrame(lines, "user string, item int, label int")
    folded = onebit_spark.load(tmp_path / "m").fold_in(*zip(*lines, strict=True), who=who)
    pairs = [(user, item) for user in ("new", "u03", "u05") for item in (990, 30, 50)]
    frame = model.foldIn(ratings, who).transform(spark.createDataFrame(pairs, "user string, item int"))
    assert_same(folded, frame.toArrow())


@pytest.mark.classic
@pytest.mark.parametrize("split", [False, True], ids=["plain", "split"])
def test_a_fit_of_arrays_is_saved_as_a_model(spark, tmp_path, split):
    """Spark reads the folder: it predicts, draws and folds in, and its own folder says the same."""
    rng = np.random.default_rng(5)
    rows, cols = rng.integers(0, 28, 400), rng.integers(0, 18, 400)
    signs = np.sign(rng.normal(size=30)[rows] * rng.normal(size=20)[cols] + 0.5)
    config = FitConfig(rank=3, max_iter=5, tol=0)
    terms = Terms(prior_split=0.5) if split else None
    fit = fit_arrays(rows, cols, signs, config, shape=(30, 20), threads=1, certify=terms)
    fit.save(tmp_path / "m")
    model = OneBitCompletionModel.load(str(tmp_path / "m"))
    users, items = (index.ravel() for index in np.indices((31, 21)))
    pairs = spark.createDataFrame(pa.table({"user": users, "item": items}))
    table = model.transform(pairs).toArrow().sort_by([("user", "ascending"), ("item", "ascending")])
    for name in ("score", "std", "probability"):
        np.testing.assert_allclose(table[name].to_numpy(), getattr(fit, name)(users, items), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(table["prediction"].to_numpy(), fit.predict(users, items))
    assert model.sample(pairs).where("sampledScore is null").count() == 0
    assert model.certificate["certificates"] == [item.as_dict() for item in fit.certificates]
    lines = [(99, item, 1 if item % 2 else -1) for item in range(18)]
    folded = model.foldIn(spark.createDataFrame(lines, "user long, item long, label int"))
    assert folded.info.n_users == 29
    model.save(str(tmp_path / "again"))
    assert (
        onebit_spark.load(tmp_path / "again")
        .predictions(users, items)
        .equals(onebit_spark.load(tmp_path / "m").predictions(users, items))
    )


# ---- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercepts", [True, False])
def test_vectors(make_named, tmp_path, intercepts):
    """The same from Spark and from this process; a nearest-neighbour index finds the best by score."""
    model = make_named(intercepts=intercepts)
    model.save(str(tmp_path / "m"))
    model.exportVectors(str(tmp_path / "spark"))
    onebit_spark.load(tmp_path / "m").export_vectors(tmp_path / "here")
    tables = {}
    for name in ("users", "items"):
        one, other = (pq.read_table(tmp_path / way / name).sort_by("id") for way in ("spark", "here"))
        assert one.cast(other.schema).equals(other)
        tables[name] = one
    users, items = (np.stack(table["vector"].to_numpy()) for table in tables.values())
    best = tables["items"]["id"].take(pa.array(nearest_by_inner_product(users, items, 5).ravel())).to_pylist()
    found = {who: best[5 * at : 5 * at + 5] for at, who in enumerate(tables["users"]["id"].to_pylist())}
    lists = model.recommendForAllUsers(5, z=0.0).toArrow().to_pylist()
    assert found == {line["user"]: [one["item"] for one in line["recommendations"]] for line in lists}


def test_vectors_appear_whole_or_not_at_all(make_named, tmp_path, monkeypatch):
    model, path = make_named(), tmp_path / "vectors"
    model.save(str(tmp_path / "m"))
    model.exportVectors(path)
    with pytest.raises(RequestError, match=r"exists: .*overwritten"):
        model.exportVectors(path)
    make_named(intercepts=False).exportVectors(path, overwrite=True)
    assert len(pq.read_table(path / "users")["vector"][0]) == 3
    with pytest.raises(RequestError, match="still reads its factors there"):
        OneBitCompletionModel.load(str(tmp_path / "m")).exportVectors(tmp_path / "m", overwrite=True)

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("onebit_spark.ml.persistence.Location.write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        model.exportVectors(path, overwrite=True)
    assert len(pq.read_table(path / "users")["vector"][0]) == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m", "vectors"]
