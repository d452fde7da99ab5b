"""Good data in every coding and format, and what the jobs write about them: without Spark; on Spark
it is slow.
"""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from support.modelfolders import save_small_model
from support.running import NO_HEADER, TABLES, run_here, run_job, table, write

import onebit_spark


def rated(numbers):
    """Different cells for different numbers, up to 17 × 29."""
    users = [i % 17 for i in numbers]
    items = [i % 29 for i in numbers]
    labels = [
        1 if (user < 9) == (item < 14) else -1 for user, item in zip(users, items, strict=True)
    ]
    ages = ["old" if i % 3 else "new" for i in numbers]
    return pa.table({"user": users, "item": items, "label": labels, "age": ages})


def figures(path):
    return json.loads(path.read_text())


HUNDREDS = rated(range(300))
GOOD_TABLES = {
    "strangers": table(user=("a", "c", "c", "b"), item=("x", "y", "z", "y"), label=(5, 1, 4, 2)),
    "short_integers": table(
        user=pa.array([1, 3], pa.int16()), item=pa.array([7, 9], pa.int32()), label=(1, 1)
    ),
    "score": table(score=(1, 2, 3, 4)),
    "hundreds": HUNDREDS,
    "weighted": HUNDREDS.append_column("w", pa.array([i % 4 / 2 for i in range(300)])),
    "later": rated(range(300, 400)),
    "few": rated(range(400, 405)),
    "user_features": pa.table(
        {"user": range(18), "half": ["low" if i < 9 else "high" for i in range(18)]}
    ),
    "newer_features": pa.table({"user": [90], "half": ["low"]}),
    "newcomers": pa.table({"user": [17, 90, 91], "item": [20, 3, 3]}),
}


GOOD = {
    "model": "fit --ratings {}/good --output {}/model",
    "stars": (
        "fit --ratings {}/stars --threshold 3.5 --output {}/star_model --predict {}/score "
        "--predictions {}/of_stars"
    ),
    "booleans": "fit --ratings {}/booleans --output {}/b_model --predict {}/good --predictions "
    "{}/of_booleans",
    "integers": (
        "fit --ratings {}/integers --output {}/old --overwrite --quiet --predict {}/short_integers "
        "--predictions {}/of_integers"
    ),
    "csv": (
        "fit --ratings {}/no_header.csv --format csv --option header=false --user-col _c0 "
        "--item-col _c1 "
        "--label-col _c2 --output {}/csv_model --predict {}/no_header.csv --predictions {}/of_csv"
    ),
    "json": (
        "fit --ratings {}/numbers.jsonl --format json --output {}/json_model --predict "
        "{}/few.jsonl "
        "--predictions {}/of_json"
    ),
    "json, predicted": (
        "predict --model {}/json_model --top 1 --exclude-seen {}/few.jsonl --format json --output "
        "{}/json_top"
    ),
    "json, evaluated": "evaluate --model {}/json_model --ratings {}/few.jsonl --format json "
    "--output {}/json.json",
    "evaluated": "evaluate --model {}/model --ratings {}/good --output {}/model/exact.json",
    "certified": (
        "fit --ratings {}/hundreds --output {}/certified --holdout 0.5 --no-implicit-features "
        "--delta 0.1 "
        "--max-error 0.45,0.01 --certify-by age --predict {}/hundreds --predictions {}/of_hundreds "
        "--report"
    ),
    "featured": (
        "fit --ratings {}/hundreds --output {}/featured --user-features {}/user_features --report "
        "--predict "
        "{}/newcomers --predictions {}/of_newcomers"
    ),
    "newer": "predict --model {}/featured --pairs {}/newcomers --user-features "
    "{}/newer_features --output {}/of_newer",
    "fresh": (
        "evaluate --model {}/certified --ratings {}/later --certify --delta 0.01 --output "
        "{}/fresh.json "
        "--max-error 0.4 --certify-by age --ranking 3 --exclude-seen {}/hundreds"
    ),
    "weighted": (
        "fit --ratings {}/weighted --weight-col w --output {}/weighted_model --holdout 0.3 "
        "--no-implicit-features --loss hinge --report"
    ),
    "weighted measured": "evaluate --model {}/weighted_model --ratings {}/weighted --output "
    "{}/weighted.json",
    "weighted csv": "fit --ratings {}/weighted.csv --format csv --weight-col w --output "
    "{}/weighted_csv",
    "too few to tell": "evaluate --model {}/certified --ratings {}/few --certify --output "
    "{}/few.json",
    "top": (
        "predict --model {}/certified --top 3 --exclude-seen {}/seen.csv --format csv --option "
        "sep=; --option "
        "inferSchema=true --output {}/top"
    ),
    "to csv": "predict --model {}/certified --pairs {}/later --output {}/predictions.csv",
    "to csv again": "predict --model {}/certified --pairs {}/later --output {}/predictions.csv "
    "--overwrite",
    "strangers": "evaluate --model {}/star_model --ratings {}/strangers --output {}/s.json",
}
NEEDS = {  # job: the one that writes what it reads
    "json, predicted": "json",
    "json, evaluated": "json",
    "evaluated": "model",
    "newer": "featured",
    "fresh": "certified",
    "weighted measured": "weighted",
    "too few to tell": "certified",
    "top": "certified",
    "to csv": "certified",
    "to csv again": "to csv",
    "strangers": "stars",
}


class Results:
    """What each job printed.

    A job runs when a test first asks for it, after those that it needs.
    """

    def __init__(self, folder, runtime):
        self.folder = folder
        self.runtime = runtime
        self.found = {}

    def __getitem__(self, name):
        if name not in self.found:
            if name in NEEDS:
                self[NEEDS[name]]
            self.found[name] = run_job(GOOD[name], self.folder, self.runtime)
        return self.found[name]

    def after(self, *names):
        """The folder, once these jobs have run."""
        for name in names:
            code, _, err = self[name]
            assert code == 0, err
        return self.folder


@pytest.fixture(scope="module", params=["local", pytest.param("spark", marks=pytest.mark.slow)])
def runtime(request):
    return request.param


@pytest.fixture(scope="module")
def folder(runtime, tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for name, content in {**TABLES, **GOOD_TABLES}.items():
        write(folder / name, content)
    (folder / "no_header.csv").write_text(NO_HEADER)
    pyarrow.csv.write_csv(GOOD_TABLES["weighted"], folder / "weighted.csv")
    options = pyarrow.csv.WriteOptions(delimiter=";", quoting_style="none")
    pyarrow.csv.write_csv(HUNDREDS, folder / "seen.csv", options)
    save_small_model(folder / "old")
    (folder / "old" / "keep").write_text("a note in a model")
    for name, lines in (("numbers.jsonl", HUNDREDS), ("few.jsonl", HUNDREDS.slice(0, 3))):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines.to_pylist()))
    return folder


@pytest.fixture(scope="module")
def results(request, runtime, folder):
    """The jobs of this file, each of which runs once, when it is needed."""
    if runtime == "spark":
        request.getfixturevalue("spark")
    return Results(folder, runtime)


@pytest.mark.parametrize("name", GOOD)
def test_good_data_is_done(results, name):
    code, out, err = results[name]
    assert code == 0, err
    assert "error" not in err
    assert out


def test_overwrite_replaces_the_whole_folder_and_quiet_prints_only_its_name(results):
    folder = results.after("integers")
    assert results["integers"][1:] == (f"{folder}/old\n{folder}/of_integers\n", "")
    assert (folder / "old" / "metadata.json").exists()
    assert not (folder / "old" / "keep").exists()
    assert not list(folder.glob(".*"))  # nothing hidden is left behind


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("stars", "int32", {0, 1}),
        ("booleans", "bool", {False, True}),
        ("csv", "int32", {0, 1}),
        ("integers", "int32", {-1, 1}),
        ("json", "int32", {-1, 1}),
    ],
)
def test_predictions_are_in_the_coding_that_came_in(results, name, kind, values):
    predictions = pq.read_table(results.after(name) / f"of_{name}")
    assert str(predictions.schema.field("prediction").type) == kind
    assert set(predictions["prediction"].to_pylist()) <= values
    assert predictions.num_rows == {"integers": 2, "csv": 3, "json": 3}.get(name, 4)
    ids = ["_c0", "_c1"] if name == "csv" else ["user", "item"]
    assert predictions.column_names == [*ids, "score", "std", "probability", "prediction"]


def test_ids_in_json_keep_their_types(results):
    folder = results.after("json")
    assert figures(folder / "json_model" / "metadata.json")["id_types"] == {
        "user": "bigint",
        "item": "bigint",
    }
    assert pq.read_table(folder / "of_json")["user"].to_pylist() == [0, 1, 2]


def test_weights_of_zero_count_nowhere(results):
    """A quarter of the 300 ratings has weight 0, the others .5, 1 and 1.5: 225 are fitted or held
    out.
    """
    folder = results.after("weighted", "weighted measured", "weighted csv")
    info, document = (
        figures(folder / "weighted_model" / f"{name}.json") for name in ("metadata", "certificate")
    )
    certificates = {item["name"]: item for item in document["certificates"]}
    assert info["n_ratings"] + certificates["holdout"]["n"] == 225
    assert figures(folder / "weighted.json")["n"] == 225
    assert set(certificates) == {"holdout", "catoni", "seeger"}
    assert certificates["seeger"]["n"] == info["n_ratings"]
    out = results["weighted"][1]
    assert f"Weighted by the column 'w': the weights sum to {info['total_weight']:,.6g}." in out
    assert "theorem1 does not hold with weights" in out
    as_text = figures(folder / "weighted_csv" / "metadata.json")
    assert (as_text["n_ratings"], as_text["total_weight"]) == (225, 225.0)
    assert "sum of the weights" in (folder / "weighted_model" / "report.html").read_text()


def test_repeated_cells_are_counted(results):
    assert "Rated more than once: 1 cell, 1 rating beyond the first" in results["booleans"][1]
    assert "With both labels: 1." in results["booleans"][1]


def test_evaluation_takes_the_models_threshold_and_counts_unknown_ids(results):
    folder = results.after("strangers")
    counted = figures(folder / "s.json")
    assert (counted["threshold"], counted["n"], counted["n_positive"]) == (3.5, 4, 2)
    assert (counted["n_unknown_user"], counted["n_unknown_item"]) == (2, 1)
    told = results["strangers"][1]
    assert "2 of them of a user that the model has never seen" in told
    assert f"auc        {counted['auc']:.4f}   exact\n" in told


def test_what_a_fit_certifies(results):
    """The headline is the holdout's, which bounds what users call; it counts what the fit has not
    seen.
    """
    folder = results.after("certified")
    content = figures(folder / "certified" / "certificate.json")
    found = {item["name"]: item for item in content["certificates"]}
    assert content["headline"] == "holdout"
    found |= {item["name"]: item for item in content["certificates"] if not item.get("group")}
    assert set(found) == {"seeger", "catoni", "holdout", "selective"}
    fitted = figures(folder / "certified" / "metadata.json")["n_ratings"]
    assert found["holdout"]["n"] == 300 - fitted
    assert 0.4 < found["holdout"]["n"] / 300 < 0.6
    assert found["seeger"]["n"] == fitted
    found.pop("selective")
    for item in found.values():
        assert item["delta"] == 0.1
        assert item["vacuous"] is (item["bound"] >= min(0.5, item["majority_error"]))
    assert f"Certificate (holdout): {found['holdout']['statement']}" in results["certified"][1]
    assert found["holdout"]["freshness"]["checked"]


def test_fresh_ratings_certify_a_model(results):
    folder = results.after("fresh", "too few to tell")
    fresh = figures(folder / "fresh.json")["certificate"]
    assert (fresh["name"], fresh["delta"], fresh["n"]) == ("holdout", 0.01, 100)
    assert fresh["freshness"] == {"checked": True, "share": 0, "expected": 0, "looked_at": 100}
    assert fresh["statement"] in results["fresh"][1]
    further = figures(folder / "fresh.json")["certificates"]
    assert [item["name"] for item in further] == [
        "holdout",
        "selective",
        *["holdout"] * 2,
        *["selective"] * 2,
    ]
    assert all(item["statement"] in results["fresh"][1] for item in further)
    assert "could not be checked" not in results["fresh"][1]
    assert not figures(folder / "few.json")["certificate"]["freshness"]["checked"]
    warning = (
        "Whether the model has seen these ratings could not be checked: only 5 of the "
        "ratings can be compared"
    )
    assert warning in results["too few to tell"][1]


def test_what_is_answered(results):
    """For the first error rate, which is met; the second cannot be, and says so; both within groups
    as well.
    """
    folder = results.after("certified")
    found = figures(folder / "certified" / "certificate.json")["certificates"]
    selective = [item for item in found if item["name"] == "selective"]
    requests = [(item["request"], (item["group"] or {}).get("value")) for item in selective]
    assert requests == [(rate, who) for who in (None, "new", "old") for rate in (0.45, 0.01)]
    groups = [
        item["group"]["value"] for item in found if item["name"] == "holdout" and item.get("group")
    ]
    assert groups == ["new", "old"]
    met, unmet = selective[:2]
    assert (met["bound"], unmet["threshold"]) == (0.45, None)
    for item in (met, unmet, selective[-1]):
        assert f"Certificate (selective): {item['statement']}" in results["certified"][1]
    predictions = pq.read_table(folder / "of_hundreds").to_pandas()
    assert list(predictions.columns)[-2:] == ["prediction", "answered"]
    z = predictions.score.abs() / (8 / 3.141592653589793 + predictions["std"] ** 2) ** 0.5
    assert (predictions.answered == (z >= met["threshold"])).all()
    assert predictions.answered.any()
    page = (folder / "certified" / "report.html").read_text()
    assert "Orange points: certified" in page


def test_the_report_names_the_job_and_its_seconds(results):
    """Date, version, input and command; the seconds under the names that the job prints."""
    folder = results.after("certified")
    job = figures(folder / "certified" / "metadata.json")["diagnostics"]["job"]
    page = (folder / "certified" / "report.html").read_text()
    assert job["input"] == f"{folder}/hundreds"
    assert job["command"].startswith(f"onebit-spark fit --ratings {folder}/hundreds ")
    for flag in (
        f"--output {folder}/certified",
        "--holdout 0.5",
        "--max-error 0.45,0.01",
        "--certify-by age",
        "--delta 0.1",
    ):
        assert flag in job["command"]
    for shown in (job["date"], f"onebit_spark {job['version']}", job["command"]):
        assert shown in page
    (times,) = [line for line in results["certified"][1].splitlines() if line.startswith("Time: ")]
    assert all(f"{phase} " in times for phase in job["seconds"])
    assert {"reading", "iterations", "certifying"} <= set(job["seconds"])


def test_the_best_items_of_every_user(results):
    folder = results.after("top")
    assert (
        "Recommended 3 items to each of 17 users, none of the 300 pairs of --exclude-seen."
        in results["top"][1]
    )
    top = pq.read_table(folder / "top").to_pandas()
    assert list(top.columns) == ["user", "item", "rank", "score", "std", "probability"]
    seen = set(zip(*(HUNDREDS[name].to_pylist() for name in ("user", "item")), strict=True))
    assert not seen & set(zip(top.user, top.item, strict=True))
    for _, best in top.sort_values("rank").groupby("user"):
        assert best["rank"].tolist() == [1, 2, 3]
        assert best["probability"].is_monotonic_decreasing
    assert top.user.nunique() == 17


def test_predictions_as_csv(results):
    """One file with a header line, the same on both runtimes, and the same figures as in
    Parquet.
    """
    folder = results.after("to csv again")
    path = folder / "predictions.csv"
    assert path.is_file()
    found = pyarrow.csv.read_csv(path)
    assert found.column_names == [
        "user",
        "item",
        "score",
        "std",
        "probability",
        "prediction",
        "answered",
    ]
    model = onebit_spark.load(folder / "certified")
    expected = model.score(found["user"], found["item"])
    assert found["score"].to_pylist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    assert found.num_rows == GOOD_TABLES["later"].num_rows


def test_figures_on_fitted_ratings_have_a_warning(results):
    folder = results.after("weighted measured", "fresh")
    warning = "the model was fitted on some of these ratings ("
    assert results["weighted measured"][1].splitlines()[0].startswith(f"Warning: {warning}")
    assert figures(folder / "weighted.json")["warning"].startswith(warning)
    assert "warning" not in figures(folder / "fresh.json")


def test_lists_are_measured(results):
    """As by the model, on both runtimes."""
    folder = results.after("fresh")
    model = onebit_spark.load(folder / "certified")
    (seen, later) = (GOOD_TABLES[name] for name in ("hundreds", "later"))
    expected = model.ranking(later, n=3, seen=seen)
    found = figures(folder / "fresh.json")["ranking"]
    assert found.keys() == expected.keys() >= {"model", "popularity"}
    assert found["model"] == pytest.approx(expected["model"])
    assert found["popularity"] == pytest.approx(expected["popularity"])
    assert (
        f"lists of 3 items, over {expected['n_users']} users with positive ratings"
        in results["fresh"][1]
    )


def test_users_without_ratings_are_predicted_from_their_features(results):
    """User 17 was in the table of features at the fit, user 90 came with another one; user 91 is
    unknown.
    """
    folder = results.after("featured", "newer")
    printed = results["featured"][1]
    assert "Fitted 300 ratings of 17 users on 29 items" in printed
    assert "Side features of the users: 2. They predict 1 user without ratings." in printed
    first, later = (
        dict(zip(*(found[name].to_pylist() for name in ("user", "score")), strict=True))
        for found in (pq.read_table(folder / name) for name in ("of_newcomers", "of_newer"))
    )
    assert first[17] == pytest.approx(later[17])
    assert first[90] == pytest.approx(first[91])
    assert later[90] != pytest.approx(later[91])
    assert "<h3>Features of users</h3>" in (folder / "featured" / "report.html").read_text()


# ---- without Spark -----------------------------------------------------------------------------


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_killed_fit_goes_on(tmp_path):
    ratings = write(tmp_path / "ratings", HUNDREDS)
    flags = [
        "--ratings",
        ratings,
        "--rank",
        "2",
        "--tol",
        "0",
        "--no-report",
        "--likelihood-weight",
        "1",
    ]

    def fit(output, checkpoints, iterations, *more):
        keep = [
            "--checkpoint-dir",
            tmp_path / checkpoints,
            "--checkpoint-interval",
            "2",
            "--max-iter",
            iterations,
        ]
        return run_here("fit", *flags, *keep, *more, "--output", tmp_path / output, runtime="local")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onebit_spark.cli.local_runtime.LocalRuntime.save", interrupted)
        code, _, err = fit("resumed", "c", 5)
    assert code == 130, err
    assert (
        "iteration-000004 is complete: to continue from it, run the same command with --resume"
        in err
    )
    assert not (tmp_path / "resumed").exists()
    assert fit("resumed", "c", 7, "--resume")[0] == fit("whole", "d", 7)[0] == 0
    resumed, whole = (figures(tmp_path / name / "metadata.json") for name in ("resumed", "whole"))
    assert resumed["objective_history"] == whole["objective_history"]
    assert pq.read_table(tmp_path / "resumed" / "users") == pq.read_table(
        tmp_path / "whole" / "users"
    )
    assert not list((tmp_path / "c").iterdir())


def test_nothing_of_spark_is_imported(tmp_path):
    """In a fresh interpreter without pyspark, matplotlib and tqdm, with all jobs.

    One table of pairs is empty.
    """
    write(tmp_path / "ratings.parquet", HUNDREDS)
    write(tmp_path / "pairs.parquet", HUNDREDS.slice(0, 0).select(["user", "item"]))
    program = f"""
import sys
sys.modules.update(dict.fromkeys(["pyspark", "py4j", "matplotlib", "tqdm"]))
from onebit_spark.__main__ import main
here = {str(tmp_path)!r}
ratings, quick = ["--ratings", f"{{here}}/ratings.parquet"], ["--max-iter", "4", "--tol", "0", "--rank", "2"]
codes = [
    main(["fit", *ratings, "--holdout", "0.2", "--output", f"{{here}}/m", *quick]),
    main(["predict", "--model", f"{{here}}/m", "--pairs", f"{{here}}/pairs.parquet", "--output", f"{{here}}/p"]),
    main(["evaluate", "--model", f"{{here}}/m", *ratings]),
]
print(codes, sorted(name for name in sys.modules if name.startswith(("pyspark.", "py4j."))))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=900
    )
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0] []"], done.stderr
    assert "no report.html: its plots need matplotlib" in done.stderr
    assert pq.read_table(tmp_path / "p").num_rows == 0
