"""Spark equals local: the same job gives the same model, predictions and certificates in this
process and on Spark.

And what ``onebit_spark.load`` predicts, recommends and folds in is what the Spark model does, from
the same folder.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from support.modelfolders import nearest_by_inner_product, text_ids
from support.running import run_here

import onebit_spark
from onebit_spark import FitConfig, OneBitCompletion, Terms, fit_arrays, fit_table
from onebit_spark.predict.sides import asked_ids
from onebit_spark.simulate import simulate
from onebit_spark.spark.model import OneBitCompletionModel

# ---- jobs ---------------------------------------------------------------------------------------

SLOW = pytest.mark.slow
RUNTIMES = {"local": [], "spark": ["--exchange", "driver"]}
OWN = ("seconds", "exchange", "diagnostics", "calibration")  # of each fit; or sums in another order


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    made = simulate("B2", 2, (50, 30), 0.6, 0.1, seed=2)
    rng = np.random.default_rng(4)
    text = pa.table(
        {
            "user": np.char.add("usér ", made.rows.astype(str)),
            "item": made.cols.astype(np.int32),
            "label": made.labels.astype(int),
            "stars": np.where(made.labels > 0, 4.5, 2.0),
            "liked": made.labels > 0,
            "w": rng.choice([0.0, 0.5, 1.0, 3.0], len(made.labels)),
            "day": pa.array((made.rows % 3).astype("int32")).cast(pa.date32()),
        }
    )
    pq.write_table(text, folder / "ratings.parquet", row_group_size=200)
    pacsv.write_csv(text.drop_columns(["day"]), folder / "ratings.csv")
    (folder / "parts").mkdir()
    for part in range(3):
        (folder / "parts" / f"day={part}").mkdir()
        pq.write_table(
            text.slice(300 * part, 300), folder / "parts" / f"day={part}" / "part-0.parquet"
        )
    pq.write_table(text.slice(0, 40).select(["user", "item"]), folder / "pairs.parquet")
    lines = "".join(f"usér {n},{n % 5},{'ab'[n % 2]}\n" for n in range(60))
    (folder / "users.csv").write_text("user,age,team\n" + lines, encoding="utf-8")
    return folder


FIT = "--rank 3 --max-iter 8 --tol 0 --no-report"
CASES = {
    "csv": "--ratings {}/ratings.csv --holdout 0.2 --max-error 0.3,0.2 --certify-by liked",
    "threshold, weights": (
        "--ratings {}/ratings.parquet --label-col stars --threshold 3 --weight-col w --holdout 0.3"
    ),
    "partitions, dates, booleans": "--ratings {}/parts --item-col day --label-col liked "
    "--holdout 0.2",
    "hinge, certificates": "--ratings {}/ratings.parquet --loss hinge --no-implicit-features",
    "csv with types, features": (
        "--ratings {}/ratings.csv --option inferSchema=true --user-features {}/users.csv "
        "--holdout 0.2 --calibrate"
    ),
}


BY_DEFAULT = "threshold, weights"


def run(job, flags, output, runtime):
    code, _, err = run_here(job, *flags, "--output", output, runtime=runtime)
    assert code == 0, err


@pytest.mark.classic
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == BY_DEFAULT else SLOW) for name in CASES]
)
def test_the_same_model(spark, data, tmp_path, name):
    flags = [flag.format(data) for flag in f"{CASES[name]} {FIT}".split()]
    for runtime, more in RUNTIMES.items():
        run("fit", [*flags, *more], tmp_path / runtime, runtime)
    for part in ("users", "items", "fitted"):
        here, there = (pq.read_table(tmp_path / runtime / part) for runtime in RUNTIMES)
        key = there.column_names[0]
        assert here.sort_by(key).cast(there.schema) == there.sort_by(key)
    here, there = (described(tmp_path / runtime) for runtime in RUNTIMES)
    assert here == there
    here, there = (
        json.loads((tmp_path / runtime / "certificate.json").read_text()) for runtime in RUNTIMES
    )
    assert here == there


def described(model):
    content = json.loads((model / "metadata.json").read_text())
    return {name: value for name, value in content.items() if name not in OWN}


@pytest.fixture(scope="module")
def model(data):
    """The folder of a model that was fitted without Spark."""
    flags = [
        "--holdout",
        "0.3",
        "--max-error",
        "0.3",
        "--rank",
        "2",
        "--max-iter",
        "5",
        "--no-report",
    ]
    run("fit", ["--ratings", data / "ratings.parquet", *flags], data / "model", "local")
    return data / "model"


@pytest.mark.classic
@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--pairs {}/pairs.parquet", ["user", "item"]),
        ("--top 3 --exclude-seen {}/ratings.parquet", ["user", "rank"]),
    ],
    ids=["pairs", "top"],
)
def test_the_same_predictions(spark, data, model, tmp_path, flags, keys):
    for runtime in RUNTIMES:
        run("predict", ["--model", model, *flags.format(data).split()], tmp_path / runtime, runtime)
    tables = [pq.read_table(tmp_path / runtime) for runtime in RUNTIMES]
    here, there = (table.sort_by([(key, "ascending") for key in keys]) for table in tables)
    assert [(field.name, field.type) for field in here.schema] == [
        (f.name, f.type) for f in there.schema
    ]
    for column in here.column_names:
        if pa.types.is_floating(here.schema.field(column).type):
            np.testing.assert_allclose(here[column], there[column], rtol=1e-6, atol=1e-7)
        else:
            assert here[column].to_pylist() == there[column].to_pylist()


@pytest.mark.classic
def test_the_same_figures(spark, data, model, tmp_path, monkeypatch):
    def figures(name, runtime):
        run(
            "evaluate",
            ["--model", model, "--ratings", data / "ratings.parquet"],
            tmp_path / name,
            runtime,
        )
        return json.loads((tmp_path / name).read_text())

    here = figures("here", "local")
    assert_alike(here, figures("there", "spark"))
    monkeypatch.setattr("onebit_spark.spark.scoring.COLLECT_LIMIT", 0)  # then Spark counts in bins
    binned = figures("binned", "spark")
    error = binned.pop("auc_error")
    assert here.pop("auc_error") == 0
    assert 0 < error < 0.5
    assert abs(here.pop("auc") - binned.pop("auc")) <= error + 1e-12
    # The ratings of a bin count as ties
    for name in (
        "average_precision",
        "negative_average_precision",
    ):
        assert here.pop(name) == pytest.approx(binned.pop(name), abs=1e-4)
    assert_alike(here, binned)


def assert_alike(here, there):
    """Numbers up to rounding, all else as it is."""
    if isinstance(there, dict):
        assert here.keys() == there.keys()
        for key in there:
            assert_alike(here[key], there[key])
    elif isinstance(there, list):
        for one, other in zip(here, there, strict=True):
            assert_alike(one, other)
    else:
        assert here == (pytest.approx(there, rel=1e-9) if isinstance(there, float) else there)


@pytest.mark.classic
def test_a_fit_that_was_killed_on_spark_goes_on_here(spark, data, tmp_path):
    flags = (
        f"--ratings {data}/ratings.parquet --rank 2 --tol 0 --likelihood-weight 1 --no-report"
    ).split()
    keep = ["--checkpoint-dir", tmp_path / "c", "--checkpoint-interval", "3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onebit_spark.cli.spark_runtime.SparkRuntime.save", interrupted)
        first = [
            *flags,
            *keep,
            "--max-iter",
            "4",
            "--exchange",
            "driver",
            "--output",
            tmp_path / "a",
        ]
        code, _, err = run_here("fit", *first)
    assert code == 130, err
    other = ["--checkpoint-dir", tmp_path / "d", "--checkpoint-interval", "3"]
    for name, more in (("resumed", [*keep, "--resume"]), ("whole", other)):
        run("fit", [*flags, *more, "--max-iter", "7"], tmp_path / name, "local")
    assert pq.read_table(tmp_path / "resumed" / "users") == pq.read_table(
        tmp_path / "whole" / "users"
    )


def interrupted(*_):
    raise KeyboardInterrupt


# ---- models ------------------------------------------------------------------------------------

NAMES = ("score", "std", "probability", "prediction", "answered")
SELECTIVE = {"name": "selective", "group": None, "threshold": 0.4}
HINGE = {"loss": "hinge", "implicit_features": False}
KINDS = [
    pytest.param({"loss": "hinge"}, "nan", marks=SLOW),
    ({"loss": "logistic"}, "prior"),
    pytest.param({"covariance": "diagonal", "intercepts": False}, "drop", marks=SLOW),
]


@pytest.fixture
def make_named(make_model):
    """A model with text and integer ids, and one certified error rate."""

    def make(**choices):
        ids = text_ids("u", 28), pa.array(10 * np.arange(18, dtype=np.int32))
        model = make_model(*ids, id_types={"user": "string", "item": "int"}, **choices)
        model.certificate = {
            "headline": None,
            "certificates": [{**SELECTIVE, "request": r} for r in (0.1, 0.2)],
        }
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


@pytest.mark.parametrize(
    "id_type",
    ["decimal(9,2)", *(pytest.param(kind, marks=SLOW) for kind in ("tinyint", "timestamp"))],
)
def test_ids_in_files_of_spark(spark, make_model, tmp_path, on_executors, id_type):
    column = "timestamp_seconds(id)" if id_type == "timestamp" else f"cast(id as {id_type})"
    ids = spark.range(28).selectExpr(f"{column} as user", "cast(3 as bigint) as item")
    values = ids.toArrow()["user"].combine_chunks()
    model = make_model(values, id_types={"user": id_type, "item": "bigint"})
    model.save(str(tmp_path / "m"))
    served = onebit_spark.load(tmp_path / "m")
    assert_same(served, model.transform(ids).toArrow())
    # None is unknown
    assert served.users.positions(asked_ids(values, served.users.ids.type, "the ids")).min() == 0


def test_recommendations(spark, make_named, tmp_path):
    model = make_named()
    model.save(str(tmp_path / "m"))
    served = onebit_spark.load(tmp_path / "m")
    for z, answered in ((None, False), (1.0, False), (None, True)):
        expected = {
            line["user"]: line["recommendations"]
            for line in model.recommendForAllUsers(4, z=z, answeredOnly=answered)
            .toArrow()
            .to_pylist()
        }
        found = served.recommend(n=4, z=z, answered_only=answered).to_pylist()
        assert {line["user"] for line in found} == {who for who in expected if expected[who]}
        for line in found:
            wanted = expected[line["user"]][line["rank"] - 1]
            assert line["item"] == wanted["item"]
            assert [line["score"], line["std"]] == pytest.approx(
                [wanted["rating"], wanted["std"]], rel=1e-5
            )


@pytest.mark.parametrize(
    ("choices", "who"), [({}, "user"), pytest.param(HINGE, "item", marks=SLOW)]
)
def test_fold_in(spark, make_named, tmp_path, who, choices):
    model = make_named(**choices)
    model.save(str(tmp_path / "m"))
    lines = [
        ("u01", 990, 1),
        ("u02", 990, -1),
        ("new", 10, 1),
        ("new", 20, -1),
        ("new", 20, 1),
        ("u03", 30, 1),
    ]
    ratings = spark.createDataFrame(lines, "user string, item int, label int")
    folded = onebit_spark.load(tmp_path / "m").fold_in(*zip(*lines, strict=True), who=who)
    pairs = [(user, item) for user in ("new", "u03", "u05") for item in (990, 30, 50)]
    frame = model.foldIn(ratings, who).transform(
        spark.createDataFrame(pairs, "user string, item int")
    )
    assert_same(folded, frame.toArrow())


@pytest.mark.parametrize(
    "choices", [{}, pytest.param(HINGE, marks=SLOW)], ids=["implicit", "hinge"]
)
def test_update(spark, make_named, tmp_path, choices):
    model = make_named(**choices)
    model.save(str(tmp_path / "m"))
    lines = [("u01", 990, 1), ("new", 990, -1), ("new", 10, 1), ("u03", 30, 1), ("u03", 20, -1)]
    frame = model.update(spark.createDataFrame(lines, "user string, item int, label int"))
    updated = onebit_spark.load(tmp_path / "m").update(*zip(*lines, strict=True))
    pairs = [(user, item) for user in ("new", "u03", "u05") for item in (990, 30, 50)]
    assert_same(
        updated, frame.transform(spark.createDataFrame(pairs, "user string, item int")).toArrow()
    )
    assert (updated.info.n_users, updated.info.n_items) == (frame.info.n_users, frame.info.n_items)


def test_a_warm_start(spark, data, tmp_path):
    """From the same folder, with users that it does not know."""
    table = pq.read_table(data / "ratings.parquet", columns=["user", "item", "label"])
    first = table.slice(0, 500)
    config = FitConfig(rank=2, max_iter=3, tol=0.0, likelihood_weight=1.0)
    fit_table(first, config).save(tmp_path / "m")
    here = fit_table(table, config, initial_model=onebit_spark.load(tmp_path / "m"))
    there = (
        OneBitCompletion(rank=2, maxIter=3, tol=0.0, likelihoodWeight=1.0, exchange="driver")
        .setInitialModel(OneBitCompletionModel.load(str(tmp_path / "m")))
        .fit(spark.createDataFrame(table))
    )
    assert here.objective_history == there.info.objective_history
    assert here.objective_history[0] < fit_table(table, config).objective_history[0]
    assert_same(
        here,
        there.transform(
            spark.createDataFrame(table.select(["user", "item"]).slice(0, 50))
        ).toArrow(),
    )


@SLOW
@pytest.mark.classic
@pytest.mark.parametrize("implicit", [False, True], ids=["certified", "implicit features"])
def test_a_fit_of_arrays_is_saved_as_a_model(spark, tmp_path, implicit):
    """Spark reads the folder: it predicts, draws and folds in, and its own folder says the same."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 28, 400)
    cols = rng.integers(0, 18, 400)
    signs = np.sign(rng.normal(size=30)[rows] * rng.normal(size=20)[cols] + 0.5)
    config = FitConfig(rank=3, max_iter=5, tol=0, implicit_features=implicit)
    fit = fit_arrays(rows, cols, signs, config, shape=(30, 20), threads=1, certify=Terms())
    fit.save(tmp_path / "m")
    model = OneBitCompletionModel.load(str(tmp_path / "m"))
    users, items = (index.ravel() for index in np.indices((31, 21)))
    pairs = spark.createDataFrame(pa.table({"user": users, "item": items}))
    table = model.transform(pairs).toArrow().sort_by([("user", "ascending"), ("item", "ascending")])
    for name in ("score", "std", "probability"):
        np.testing.assert_allclose(
            table[name].to_numpy(), getattr(fit, name)(users, items), rtol=1e-6, atol=1e-6
        )
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


@pytest.mark.parametrize("intercepts", [True, pytest.param(False, marks=SLOW)])
def test_vectors(make_named, tmp_path, intercepts):
    """The same from Spark and from this process; a nearest-neighbour index finds the best
    by score.
    """
    model = make_named(intercepts=intercepts)
    model.save(str(tmp_path / "m"))
    model.exportVectors(str(tmp_path / "spark"))
    onebit_spark.load(tmp_path / "m").export_vectors(tmp_path / "here")
    tables = {}
    for name in ("users", "items"):
        one, other = (
            pq.read_table(tmp_path / way / name).sort_by("id") for way in ("spark", "here")
        )
        assert one.cast(other.schema).equals(other)
        tables[name] = one
    users, items = (np.stack(table["vector"].to_numpy()) for table in tables.values())
    best = (
        tables["items"]["id"]
        .take(pa.array(nearest_by_inner_product(users, items, 5).ravel()))
        .to_pylist()
    )
    found = {
        who: best[5 * at : 5 * at + 5] for at, who in enumerate(tables["users"]["id"].to_pylist())
    }
    lists = model.recommendForAllUsers(5, z=0.0).toArrow().to_pylist()
    assert found == {
        line["user"]: [one["item"] for one in line["recommendations"]] for line in lists
    }
