"""Every row of the table of bad input: exit code 2, one last line that names it, the output untouched."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import run_all, write

FAST = ["--max-iter", "2", "--tol", "0", "--rank", "2"]


def table(user=("a", "a", "b", "b"), item=("x", "y", "x", "y"), label=(1, -1, 1, 1), **more):
    return pa.table({"user": user, "item": item, "label": label, **more})


TABLES = {
    "good": table(),
    "null_ids": table(user=("a", None, None, "b"), item=("x", "y", None, "y")),
    "nan_ids": table(user=(1.0, math.nan, 2.0, 2.0)),
    "nan_labels": table(label=(1.0, math.nan, None, -1.0)),
    "outside": table(label=(1, 2, 3, -1)),
    "mixed": table(label=(1, 0, -1, 1)),
    "one_class": table(label=(1, 1, 1, 1)),
    "empty": table().slice(0, 0),
    "stars": table(label=(5, 1, 4, 2)),
    "strangers": table(user=("a", "c", "c", "b"), item=("x", "y", "z", "y"), label=(5, 1, 4, 2)),
    "booleans": table(user=("a", "a", "b", "b"), item=("x", "x", "x", "y"), label=(True, False, True, True)),
    "integers": table(user=(1, 1, 2, 2), item=(7, 8, 7, 8)),
    "short_integers": table(user=pa.array([1, 3], pa.int16()), item=pa.array([7, 9], pa.int32()), label=(1, 1)),
    "other_names": table().rename_columns(["who", "what", "how"]),
    "no_item": table().drop(["item"]),
    "nested": table(user=([1], [1], [2], [2])),
    "score": table(score=(1, 2, 3, 4)),
    "hundreds": pa.table({
        "user": [i % 17 for i in range(300)], "item": [i % 19 for i in range(300)],
        "label": [1 if (i % 17 < 9) == (i % 19 < 9) else -1 for i in range(300)],
    }),
}  # fmt: skip
CSV = ["--format", "csv"]
TEXTS = {
    "words.csv": "user,item,label\na,x,yes\na,y,no\nb,x,1\nb,y,maybe\n",
    "no_header.csv": "a,x,1\na,y,0\nb,x,1\n",
    "gaps.csv": "user,item,label\na,x,1\na,,0\nb,x,\n",
    "text.parquet": "this is no Parquet file at all",
}

# name: (job, arguments, exit code, words of the last line); {} is the folder, each fit has its own output
CASES = {
    "missing path": ("fit", ["--ratings", "{}/nowhere"], ["--ratings", "nowhere does not exist"]),
    "missing column": (
        "fit",
        ["--ratings", "{}/other_names"],
        ["no column 'user', 'item', 'label'; its columns are who, what, how", "--user-col"],
    ),
    "missing csv column": ("fit", ["--ratings", "{}/no_header.csv", *CSV], ["no column 'user'", "header=false"]),
    "not parquet": ("fit", ["--ratings", "{}/text.parquet"], ["cannot be read as parquet", "--format"]),
    "empty folder": ("fit", ["--ratings", "{}/void"], ["void holds no parquet file"]),
    "file system": ("fit", ["--ratings", "foo://x/y"], ["--ratings foo://x/y cannot be read", "foo"]),
    "output on a strange file system": (
        "fit",
        ["--ratings", "{}/good", "--output", "foo://x/y"],
        ["--output: ", "foo://x/y"],
    ),
    "output below a file": ("fit", ["--ratings", "{}/good", "--output", "{}/good/model"], ["cannot be made", "/good"]),
    "damaged file": ("fit", ["--ratings", "{}/damaged"], ["the file file:", "/damaged cannot be read"]),
    "damaged file among good ones": ("fit", ["--ratings", "{}/half"], ["/half/damaged cannot be read"]),
    "output exists": ("fit", ["--ratings", "{}/good", "--output", "{}/taken"], ["--output", "add --overwrite"]),
    "predictions exist": (
        "fit",
        ["--ratings", "{}/good", "--predict", "{}/good", "--predictions", "{}/taken"],
        ["--predictions", "add --overwrite"],
    ),
    "null ids": (
        "fit",
        ["--ratings", "{}/null_ids"],
        ["2 ratings with null or NaN in column 'user', such as (", "1 ratings with null or NaN in column 'item'"],
    ),
    "null ids in csv": ("fit", ["--ratings", "{}/gaps.csv", *CSV], ["1 ratings", "'item'", "'label'"]),
    "NaN ids": ("fit", ["--ratings", "{}/nan_ids"], ["1 ratings with null or NaN in column 'user'"]),
    "NaN labels": ("fit", ["--ratings", "{}/nan_labels"], ["2 ratings with null or NaN in column 'label'"]),
    "labels outside": (
        "fit",
        ["--ratings", "{}/outside"],
        ["2 ratings with label outside", "(a, y, 2)", "(b, x, 3)", "threshold"],
    ),
    "words as labels": (
        "fit",
        ["--ratings", "{}/words.csv", *CSV],
        ["3 ratings with no number in column 'label', such as (a, x, yes)"],
    ),
    "mixed codings": ("fit", ["--ratings", "{}/mixed"], ["labels mix −1 (1) and 0 (1) in column 'label'"]),
    "no rating": ("fit", ["--ratings", "{}/empty"], ["no rating"]),
    "one class": ("fit", ["--ratings", "{}/one_class"], ["all 4 labels in column 'label' are positive"]),
    "one class by threshold": (
        "fit",
        ["--ratings", "{}/stars", "--threshold", "5"],
        ["all 4 labels in column 'label' are negative", "threshold 5"],
    ),
    "threshold on booleans": ("fit", ["--ratings", "{}/booleans", "--threshold", "0.5"], ["boolean already"]),
    "nested ids": ("fit", ["--ratings", "{}/nested"], ["'user'", "array<bigint>", "cannot be an id"]),
    "pairs without item": (
        "fit",
        ["--ratings", "{}/good", "--predict", "{}/no_item", "--predictions", "{}/p1"],
        ["--predict", "no column 'item'; its columns are user, label"],
    ),
    "pairs with nulls": (
        "fit",
        ["--ratings", "{}/good", "--predict", "{}/null_ids", "--predictions", "{}/p2"],
        ["2 pairs with null or NaN in column 'user', such as (None, y)", "1 pairs", "'item'"],
    ),
    "pairs of another type": (
        "fit",
        ["--ratings", "{}/good", "--predict", "{}/integers", "--predictions", "{}/p3"],
        ["column 'user' of --predict is of type bigint, but was string in the fit", "cast it"],
    ),
    "no model": ("predict", ["--model", "{}/nowhere", "--pairs", "{}/good"], ["no model at", "nowhere"]),
    "not a model": ("predict", ["--model", "{}/void", "--pairs", "{}/good"], ["is not a model", "metadata.json"]),
    "ids of another type": (
        "predict",
        ["--model", "{}/model", "--pairs", "{}/integers"],
        ["column 'user' of --pairs is of type bigint, but was string in the fit", "column 'item'"],
    ),
    "null pairs": ("predict", ["--model", "{}/model", "--pairs", "{}/null_ids"], ["2 pairs with null or NaN"]),
    "pairs missing": ("predict", ["--model", "{}/model", "--pairs", "{}/nowhere"], ["--pairs", "does not exist"]),
    "output taken": (
        "predict",
        ["--model", "{}/model", "--pairs", "{}/good", "--output", "{}/taken"],
        ["--output", "add --overwrite"],
    ),
    "csv ids for a model of integers": (
        "evaluate",
        ["--model", "{}/old", "--ratings", "{}/words.csv", *CSV],
        ["column 'user' of --ratings is of type string, but was bigint in the fit", "inferSchema=true"],
    ),
    "no label to compare": ("evaluate", ["--model", "{}/model", "--ratings", "{}/other_names"], ["no column 'user'"]),
    "bad labels to compare": ("evaluate", ["--model", "{}/model", "--ratings", "{}/outside"], ["2 ratings with label"]),
    "nothing held out": ("fit", ["--ratings", "{}/good", "--holdout", "1e-9"], ["--holdout 1e-09 holds no rating out"]),
    "bad labels, some held out": ("fit", ["--ratings", "{}/outside", "--holdout", "0.5"], ["2 ratings with label"]),
    "no prior to learn": (
        "fit",
        ["--ratings", "{}/good", "--certificate-prior-split", "1e-9"],
        ["leaves the prior 0 of 4 ratings"],
    ),
    "certified on its own ratings": (
        "evaluate",
        ["--model", "{}/model", "--ratings", "{}/good", "--certify"],
        ["the very ratings that the model was fitted on"],
    ),
    "metrics taken": (
        "evaluate",
        ["--model", "{}/model", "--ratings", "{}/good", "--output", "{}/taken/keep"],
        ["--output", "add --overwrite"],
    ),
    "metrics a folder": (
        "evaluate",
        ["--model", "{}/model", "--ratings", "{}/good", "--output", "{}/taken", "--overwrite"],
        ["is a folder: name a file"],
    ),
}


def line(text):
    return text.split()


GOOD = {  # run first, in this order: later ones and the bad ones use the model
    "model": ("fit", ["--ratings", "{}/good", "--output", "{}/model"]),
    "stars": (
        "fit",
        line("--ratings {}/stars --threshold 3.5 --output {}/star_model --predict {}/score --predictions {}/of_stars"),
    ),
    "booleans": (
        "fit",
        line("--ratings {}/booleans --output {}/b_model --predict {}/good --predictions {}/of_booleans"),
    ),
    "integers": (
        "fit",
        line("--ratings {}/integers --output {}/old --overwrite --quiet")
        + line("--predict {}/short_integers --predictions {}/of_integers"),
    ),
    "csv": (
        "fit",
        line("--ratings {}/no_header.csv --format csv --option header=false --user-col _c0 --item-col _c1")
        + line("--label-col _c2 --output {}/csv_model --predict {}/no_header.csv --predictions {}/of_csv"),
    ),
    "evaluated": ("evaluate", line("--model {}/model --ratings {}/good --output {}/model/exact.json")),
    "binned": ("evaluate", line("--model {}/model --ratings {}/good --output {}/binned.json")),
    "binned one class": ("evaluate", line("--model {}/model --ratings {}/one_class --output {}/one.json")),
    "certified": (
        "fit",
        line("--ratings {}/hundreds --output {}/certified --holdout 0.3 --certificate-prior-split 0.5 --delta 0.1"),
    ),
    "fresh": (
        "evaluate",
        line("--model {}/certified --ratings {}/hundreds --certify --delta 0.01 --output {}/fresh.json"),
    ),
    "strangers": ("evaluate", line("--model {}/star_model --ratings {}/strangers --output {}/s.json")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, content in TABLES.items():
        write(folder / name, content)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    whole = write(folder / "damaged", {"user": list(range(999)), "item": list(range(999)), "label": [0, 1, 1] * 333})
    content = bytearray(whole.read_bytes())
    content[100:3000] = bytes(2900)  # the footer stays
    whole.write_bytes(content)
    (folder / "half").mkdir()
    (folder / "half" / "damaged").write_bytes(content)
    for name in ("first", "second"):
        write(folder / "half" / name, {"user": [1, 2], "item": [1, 2], "label": [0, 1]})
    (folder / "void").mkdir()
    for name in ("taken", "old"):
        (folder / name).mkdir()
        (folder / name / "keep").write_text("mine")
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """All jobs of this file in one Spark application."""
    jobs = {}
    for number, (name, (job, arguments, *_)) in enumerate({**GOOD, **CASES}.items()):
        arguments = [argument.format(folder) for argument in arguments]
        if job == "fit":
            arguments += FAST
        if "--output" not in arguments and job != "evaluate":
            arguments += ["--output", f"{folder}/absent-{number}"]
        jobs[name] = (job, arguments)
    return run_all(jobs, folder)


@pytest.mark.parametrize("name", CASES)
def test_bad_data_is_refused_in_one_line(results, name):
    code, out, err = results[name]
    last = err.splitlines()[-1]
    assert code == 2, err
    assert last.startswith("error: ")
    for words in CASES[name][2]:
        assert words in last
    assert "Traceback" not in err
    assert out == ""


def test_outputs_are_untouched_by_all_that_was_refused(folder, results):
    assert (folder / "taken" / "keep").read_text() == "mine"
    assert [path.name for path in (folder / "taken").iterdir()] == ["keep"]
    assert not list(folder.glob("absent-*"))
    assert not list(folder.glob("p[123]"))
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", GOOD)
def test_good_data_is_done(results, name):
    code, out, err = results[name]
    assert code == 0, err
    assert "error" not in err
    assert out


def test_quiet_says_only_where_the_output_is(folder, results):
    assert results["integers"][1:] == [f"{folder}/old\n{folder}/of_integers\n", ""]


def test_overwrite_replaces_the_whole_folder(folder, results):
    assert (folder / "old" / "metadata.json").exists()
    assert not (folder / "old" / "keep").exists()


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("of_stars", "int32", {0, 1}),
        ("of_booleans", "bool", {False, True}),
        ("of_csv", "int32", {0, 1}),
        ("of_integers", "int32", {-1, 1}),
    ],
)
def test_predictions_are_in_the_coding_that_came_in(folder, results, name, kind, values):
    predictions = pq.read_table(folder / name)
    assert str(predictions.schema.field("prediction").type) == kind
    assert set(predictions["prediction"].to_pylist()) <= values
    assert predictions.num_rows == {"of_integers": 2, "of_csv": 3}.get(name, 4)
    ids = ["_c0", "_c1"] if name == "of_csv" else ["user", "item"]
    assert predictions.column_names == [*ids, "score", "std", "probability", "prediction"]


def test_repeated_cells_are_counted(results):
    assert "1 cells were rated more than once" in results["booleans"][1]
    assert "1 of them with both labels" in results["booleans"][1]


def figures(path):
    return json.loads(path.read_text())


def test_the_binned_evaluation_agrees_with_the_collected_one(folder, results):
    exact, binned = figures(folder / "model" / "exact.json"), figures(folder / "binned.json")
    assert exact.pop("auc_error") == 0
    error = binned.pop("auc_error")
    assert 0 <= error < 0.5
    assert abs(exact.pop("auc") - binned.pop("auc")) <= error + 1e-12
    assert exact.pop("threshold") is binned.pop("threshold") is None
    assert exact == pytest.approx(binned, rel=1e-12)
    assert exact["n"] == 4
    assert exact["majority_error"] == 0.25


def test_evaluation_takes_the_models_threshold_and_counts_unknown_ids(folder, results):
    counted = figures(folder / "s.json")
    assert (counted["threshold"], counted["n"], counted["n_positive"]) == (3.5, 4, 2)
    assert (counted["n_unknown_user"], counted["n_unknown_item"]) == (2, 1)
    assert "2 of them of a user that the model has never seen" in results["strangers"][1]


def test_one_class_has_no_auc(folder, results):
    assert figures(folder / "one.json")["auc"] is None
    assert "only one class" in results["binned one class"][1]


def test_what_a_fit_certifies(folder, results):
    """The headline is the prior split's, since it was asked for; the holdout counts what the fit has not seen."""
    content = figures(folder / "certified" / "certificate.json")
    found = {item["name"]: item for item in content["certificates"]}
    assert content["headline"] == "prior_split"
    assert set(found) == {"prior_split", "holdout"}
    fitted = figures(folder / "certified" / "metadata.json")["n_ratings"]
    assert found["holdout"]["n"] == 300 - fitted
    assert 0.2 < found["holdout"]["n"] / 300 < 0.4
    assert found["prior_split"]["n"] < fitted
    for item in found.values():
        assert item["delta"] == 0.1
        assert item["vacuous"] is (item["bound"] >= min(0.5, item["majority_error"]))
    assert f"Certificate (prior_split): {found['prior_split']['statement']}" in results["certified"][1]
    fresh = figures(folder / "fresh.json")["certificate"]
    assert (fresh["name"], fresh["delta"], fresh["n"]) == ("holdout", 0.01, 300)
    assert fresh["statement"] in results["fresh"][1]
