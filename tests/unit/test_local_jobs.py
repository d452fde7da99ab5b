"""The jobs without Spark: what they write, what they print, and that neither Java nor pyspark is needed."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from running import run_here

import onebit_spark
from onebit_spark.simulate import simulate

QUICK = ["--max-iter", "4", "--tol", "0", "--rank", "2"]


@pytest.fixture(autouse=True)
def nothing_names_a_cluster(monkeypatch):
    for name in ("PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "SPARK_REMOTE", "SPARK_API_MODE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """ratings.csv, pairs.parquet and users.csv in a folder."""
    folder = tmp_path_factory.mktemp("data")
    made = simulate("B2", 2, (60, 40), 0.5, 0.1, seed=1)
    users, items = np.char.add("u", made.rows.astype(str)), np.char.add("i", made.cols.astype(str))
    table = pa.table({"user": users, "item": items, "label": made.labels.astype(int), "half": made.rows % 2})
    pacsv.write_csv(table, folder / "ratings.csv")
    pairs = pa.table({"user": ["u1", "u2", "stranger"], "item": ["i3", "i4", "i5"], "note": [1, 2, 3]})
    pq.write_table(pairs, folder / "pairs.parquet")
    (folder / "users.csv").write_text("user,age,town\n" + "".join(f"u{n},{n % 9},t{n % 3}\n" for n in range(70)))
    return folder


def job(name, *arguments, runtime="auto"):
    code, out, err = run_here(name, *arguments, runtime=runtime)
    assert code == 0, err
    return out, err


def test_fit_writes_what_is_documented(data, tmp_path):
    model, predictions = tmp_path / "model", tmp_path / "predictions"
    out, err = job(
        "fit", "--ratings", data / "ratings.csv", "--output", model, "--holdout", "0.3", "--calibrate", "--max-error",
        "0.3", "--certify-by", "half", "--predict", data / "pairs.parquet", "--predictions", predictions, *QUICK,
    )  # fmt: skip
    assert "runtime: local (" in err
    names = {path.name for path in model.iterdir()}
    assert {"metadata.json", "metadata", "users", "items", "fitted", "certificate.json"} <= names
    told = json.loads((model / "metadata.json").read_text())
    assert (told["id_types"], told["exchange"]["exchange"]) == ({"user": "string", "item": "string"}, "local")
    certificates = json.loads((model / "certificate.json").read_text())["certificates"]
    assert {item["name"] for item in certificates} == {"holdout", "selective"}
    assert {str(item["group"]["value"]) for item in certificates if item.get("group")} == {"0", "1"}
    assert told["calibration"] is not None
    assert told["diagnostics"]["source"] == "the held-out ratings that calibrated it"
    table = pq.read_table(predictions)
    columns = ["user", "item", "score", "std", "probability", "prediction", "answered"]
    assert table.column_names == columns
    assert table.schema.field("prediction").type == pa.int32()
    served = onebit_spark.load(model)
    np.testing.assert_array_equal(table["score"].to_numpy(), served.score(table["user"], table["item"]))
    assert "Fitted " in out
    assert f"predictions: {predictions}" in out
    assert out.count("Certificate (holdout)") >= 1


def test_without_a_holdout_the_report_is_about_the_training_ratings(data, tmp_path):
    job("fit", "--ratings", data / "ratings.csv", "--output", tmp_path / "model", *QUICK)
    told = json.loads((tmp_path / "model" / "metadata.json").read_text())
    assert told["diagnostics"]["source"] == "training ratings"
    assert told["diagnostics"]["n"] == told["n_ratings"] == 1200
    assert (tmp_path / "model" / "report.html").is_file()


def test_predict_and_evaluate(data, tmp_path):
    model = tmp_path / "model"
    job("fit", "--ratings", data / "ratings.csv", "--output", model, "--no-report", "--user-features",
        data / "users.csv", *QUICK)  # fmt: skip
    job("predict", "--model", model, "--pairs", data / "pairs.parquet", "--output", tmp_path / "p")
    assert pq.read_table(tmp_path / "p")["user"].to_pylist() == ["u1", "u2", "stranger"]
    ages = tmp_path / "more.csv"
    ages.write_text("user,age,town\nstranger,3,t1\n")
    job(
        "predict",
        "--model",
        model,
        "--pairs",
        data / "pairs.parquet",
        "--output",
        tmp_path / "q",
        "--user-features",
        ages,
    )
    before, after = (pq.read_table(tmp_path / name)["score"].to_pylist() for name in ("p", "q"))
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    seen = ["--exclude-seen", data / "ratings.csv"]
    out, _ = job("predict", "--model", model, "--top", "4", *seen, "--output", tmp_path / "top")
    best = pq.read_table(tmp_path / "top")
    assert best.column_names == ["user", "item", "rank", "score", "std", "probability"]
    rated = set(map(tuple, pacsv.read_csv(data / "ratings.csv").select(["user", "item"]).to_pandas().to_numpy()))
    assert not rated & set(zip(best["user"].to_pylist(), best["item"].to_pylist(), strict=True))
    assert best["rank"].to_pylist()[:4] == [1, 2, 3, 4]
    assert "Recommended 4 items to each of 70 users, none of the 1,200 pairs" in out
    out, _ = job("evaluate", "--model", model, "--ratings", data / "ratings.csv", "--output", tmp_path / "metrics.json")
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert figures["n"] == 1200
    assert 0 < figures["error"] < 0.5
    assert figures["n_unknown_user"] == 0


def test_an_empty_table_of_pairs(data, tmp_path):
    pq.write_table(pq.read_table(data / "pairs.parquet").slice(0, 0), tmp_path / "none.parquet")
    job("fit", "--ratings", data / "ratings.csv", "--output", tmp_path / "m", "--no-report", *QUICK)
    job("predict", "--model", tmp_path / "m", "--pairs", tmp_path / "none.parquet", "--output", tmp_path / "p")
    assert pq.read_table(tmp_path / "p").num_rows == 0


def test_tune(data, tmp_path):
    (tmp_path / "grid.toml").write_text("rank = [1, 2]\nlikelihood-weight = 1.0\n")
    flags = ["--ratings", data / "ratings.csv", "--grid", tmp_path / "grid.toml", "--folds", "3", "--max-iter", "4"]
    out, _ = job("tune", *flags, "--output", tmp_path / "tuned")
    assert "2 settings, 3 folds of 1,200 ratings: 6 fits, one core each." in out
    assert pq.read_table(tmp_path / "tuned" / "folds").num_rows == 6
    settings = pq.read_table(tmp_path / "tuned" / "settings").to_pylist()
    assert [line["chosen"] for line in settings].count(True) == 1
    assert onebit_spark.load(tmp_path / "tuned" / "model").info.n_ratings == 1200
    out, _ = job("tune", *flags, "--output", tmp_path / "other", "--worker-limit", "10")
    assert "all cores together" in out
    found = pq.read_table(tmp_path / "other" / "folds").drop_columns(["seconds"])
    assert found == pq.read_table(tmp_path / "tuned" / "folds").drop_columns(["seconds"])


def test_a_killed_fit_goes_on(data, tmp_path):
    flags = ["--ratings", data / "ratings.csv", "--rank", "2", "--tol", "0", "--no-report", "--likelihood-weight", "1"]
    keep = ["--checkpoint-dir", tmp_path / "c", "--checkpoint-interval", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onebit_spark.cli.local_runtime.LocalRuntime.save", killed)
        code, _, err = run_here("fit", *flags, *keep, "--max-iter", "5", "--output", tmp_path / "m", runtime="local")
    assert code == 130, err
    assert "iteration-000004 is complete: to go on from it, run the same command with --resume" in err
    assert not (tmp_path / "m").exists()
    job("fit", *flags, *keep, "--max-iter", "7", "--resume", "--output", tmp_path / "m")
    keep[1] = tmp_path / "d"
    job("fit", *flags, *keep, "--max-iter", "7", "--output", tmp_path / "whole")
    resumed, whole = (json.loads((tmp_path / name / "metadata.json").read_text()) for name in ("m", "whole"))
    assert resumed["objective_history"] == whole["objective_history"]
    assert pq.read_table(tmp_path / "m" / "users") == pq.read_table(tmp_path / "whole" / "users")
    assert not list((tmp_path / "c").iterdir())


def killed(*_):
    raise KeyboardInterrupt


def test_nothing_of_spark_is_imported(data, tmp_path):
    """In a fresh interpreter without pyspark, matplotlib and tqdm, with all jobs."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys(["pyspark", "py4j", "matplotlib", "tqdm"]))
from onebit_spark.__main__ import main
data, here = {str(data)!r}, {str(tmp_path)!r}
quick = {QUICK!r}
ratings = ["--ratings", f"{{data}}/ratings.csv"]
codes = [
    main(["fit", *ratings, "--holdout", "0.2", "--output", f"{{here}}/m", *quick]),
    main(["predict", "--model", f"{{here}}/m", "--pairs", f"{{data}}/pairs.parquet", "--output", f"{{here}}/p"]),
    main(["evaluate", "--model", f"{{here}}/m", *ratings]),
    main(["tune", *ratings, "--folds", "2", "--max-iter", "2", "--output", f"{{here}}/t"]),
]
print(codes, sorted(name for name in sys.modules if name.startswith(("pyspark.", "py4j."))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900)
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0, 0] []"], done.stderr
    assert "no report.html: its plots need matplotlib" in done.stderr
    assert "no tuning.png: it needs matplotlib" in done.stderr
