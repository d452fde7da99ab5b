"""The same job in this process and on Spark: the same model to the last bit, the same predictions and certificates."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from running import run_here

from onebit_spark.simulate import simulate

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
        pq.write_table(text.slice(300 * part, 300), folder / "parts" / f"day={part}" / "part-0.parquet")
    pq.write_table(text.slice(0, 40).select(["user", "item"]), folder / "pairs.parquet")
    lines = "".join(f"usér {n},{n % 5},{'ab'[n % 2]}\n" for n in range(60))
    (folder / "users.csv").write_text("user,age,team\n" + lines, encoding="utf-8")
    return folder


CASES = {
    "text and integers": ["--ratings", "{}/ratings.parquet"],
    "csv": ["--ratings", "{}/ratings.csv", "--holdout", "0.2", "--max-error", "0.3,0.2", "--certify-by", "liked"],
    "csv with types": ["--ratings", "{}/ratings.csv", "--option", "inferSchema=true", "--holdout", "0.2"],
    "threshold, weights, holdout": [
        "--ratings", "{}/ratings.parquet", "--label-col", "stars", "--threshold", "3", "--weight-col", "w",
        "--holdout", "0.3",
    ],
    "dates and booleans": ["--ratings", "{}/ratings.parquet", "--item-col", "day", "--label-col", "liked"],
    "partitions": ["--ratings", "{}/parts", "--item-col", "day", "--holdout", "0.2"],
    "hinge, prior split": [
        "--ratings", "{}/ratings.parquet", "--loss", "hinge", "--no-implicit-features",
        "--certificate-prior-split", "0.5",
    ],
    "features": ["--ratings", "{}/ratings.csv", "--user-features", "{}/users.csv", "--holdout", "0.2", "--calibrate"],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_same_model(spark, data, tmp_path, name):
    flags = [flag.format(data) for flag in CASES[name]] + ["--rank", "3", "--max-iter", "8", "--tol", "0"]
    for runtime, more in RUNTIMES.items():
        output = ["--output", tmp_path / runtime, "--no-report"]
        code, _, err = run_here("fit", *flags, *more, *output, runtime=runtime)
        assert code == 0, err
    for part in ("users", "items", "fitted"):
        here, there = (pq.read_table(tmp_path / runtime / part) for runtime in RUNTIMES)
        key = there.column_names[0]
        assert here.sort_by(key).cast(there.schema) == there.sort_by(key)
    here, there = (told(tmp_path / runtime) for runtime in RUNTIMES)
    assert here == there
    here, there = (json.loads((tmp_path / runtime / "certificate.json").read_text()) for runtime in RUNTIMES)
    assert here == there


def told(model):
    content = json.loads((model / "metadata.json").read_text())
    return {name: value for name, value in content.items() if name not in OWN}


def test_the_same_predictions_figures_and_folds(spark, data, tmp_path):
    (tmp_path / "grid.toml").write_text("rank = [1, 2]\nlikelihood-weight = 1.0\n")
    ratings, model = ["--ratings", data / "ratings.parquet"], tmp_path / "model"
    fit = [*ratings, "--holdout", "0.3", "--max-error", "0.3", "--rank", "2", "--max-iter", "5", "--output", model]
    assert run_here("fit", *fit, runtime="local")[0] == 0
    jobs = {
        "pairs": ("predict", ["--model", model, "--pairs", data / "pairs.parquet"]),
        "top": ("predict", ["--model", model, "--top", "3", "--exclude-seen", data / "ratings.parquet"]),
        "metrics": ("evaluate", ["--model", model, *ratings]),
        "tuned": ("tune", [*ratings, "--grid", tmp_path / "grid.toml", "--folds", "2", "--max-iter", "3"]),
    }
    for runtime in RUNTIMES:
        for name, (job, flags) in jobs.items():
            code, _, err = run_here(job, *flags, "--output", tmp_path / f"{name}-{runtime}", runtime=runtime)
            assert code == 0, err
    for name, keys in (("pairs", ["user", "item"]), ("top", ["user", "rank"])):
        tables = [pq.read_table(tmp_path / f"{name}-{runtime}") for runtime in RUNTIMES]
        here, there = (table.sort_by([(key, "ascending") for key in keys]) for table in tables)
        assert [(field.name, field.type) for field in here.schema] == [(f.name, f.type) for f in there.schema]
        for column in here.column_names:
            if pa.types.is_floating(here.schema.field(column).type):
                np.testing.assert_allclose(here[column], there[column], rtol=1e-6, atol=1e-7)
            else:
                assert here[column].to_pylist() == there[column].to_pylist()
    here, there = (json.loads((tmp_path / f"metrics-{runtime}").read_text()) for runtime in RUNTIMES)
    assert_alike(here, there)
    tables = [pq.read_table(tmp_path / f"tuned-{runtime}" / "folds") for runtime in RUNTIMES]
    here, there = (table.drop_columns(["seconds"]) for table in tables)
    assert here == there


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


def test_a_fit_that_was_killed_on_spark_goes_on_here(spark, data, tmp_path):
    flags = [
        "--ratings",
        data / "ratings.parquet",
        "--rank",
        "2",
        "--tol",
        "0",
        "--likelihood-weight",
        "1",
        "--no-report",
    ]
    keep = ["--checkpoint-dir", tmp_path / "c", "--checkpoint-interval", "3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onebit_spark.cli.spark_runtime.SparkRuntime.save", interrupted)
        code, _, err = run_here(
            "fit", *flags, *keep, "--max-iter", "4", "--exchange", "driver", "--output", tmp_path / "a"
        )
    assert code == 130, err
    other = ["--checkpoint-dir", tmp_path / "d", "--checkpoint-interval", "3"]
    for name, more in (("resumed", [*keep, "--resume"]), ("whole", other)):
        code, _, err = run_here("fit", *flags, *more, "--max-iter", "7", "--output", tmp_path / name, runtime="local")
        assert code == 0, err
    assert pq.read_table(tmp_path / "resumed" / "users") == pq.read_table(tmp_path / "whole" / "users")


def interrupted(*_):
    raise KeyboardInterrupt
