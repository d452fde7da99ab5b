"""The table of bad input: each case is refused in one line, and outputs stay untouched.

All cases run without Spark. On Spark those run by default that depend on how Spark reads, counts or
writes; the rest is slow.
"""

import math

import pyarrow.parquet as pq
import pytest
from support.running import NO_HEADER, TABLES, run_job, table, write

BAD_TABLES = {
    "null_ids": table(user=("a", None, None, "b"), item=("x", "y", None, "y")),
    "nan_ids": table(user=(1.0, math.nan, 2.0, 2.0)),
    "nan_labels": table(label=(1.0, math.nan, None, -1.0)),
    "outside": table(label=(1, 2, 3, -1)),
    "mixed": table(label=(1, 0, -1, 1)),
    "bad_weights": table(w=(1.0, -2.0, None, math.inf)),
    "empty": table().slice(0, 0),
    "other_names": table().rename_columns(["who", "what", "how"]),
    "no_item": table().drop(["item"]),
    "nested": table(user=([1], [1], [2], [2])),
    "hundreds": {
        "user": [i % 17 for i in range(300)],
        "item": [i % 29 for i in range(300)],
        "label": [1 if i % 17 < 9 else -1 for i in range(300)],
    },
    "half_of_integers": TABLES["integers"].slice(0, 2),
}
TABLE_FILES = (
    "delta/part-0.parquet",
    "delta/day=1/part-0.parquet",
    "lake/events/data/part-0.parquet",
    "hudi/1.parquet",
)
TEXTS = {
    "words.csv": "user,item,label\na,x,yes\na,y,no\nb,x,1\nb,y,maybe\n",
    "no_header.csv": NO_HEADER,
    "semicolons.csv": NO_HEADER.replace(",", ";"),
    "blanks.csv": "user, item, label\na,x,1\nb,x,0\n",
    "gaps.csv": "user,item,label\na,x,1\na,,0\nb,x,\n",
    "text.parquet": "this is no Parquet file at all",
    "nested.jsonl": '{"user": {"id": 1}, "item": 1, "label": 1}\n{"user": {"id": 2}, "item": 1, '
    '"label": 0}\n',
    "gaps.jsonl": '{"user": 1, "item": 1, "label": 1}\n{"item": 1, "label": 0}\n',
    "broken.jsonl": '{"user": 1, "item": 1, "label": 1}\n{"user": 2, "item":\n',
    "delta/_delta_log/00000000000000000000.json": "{}",
    "lake/events/metadata/v1.metadata.json": "{}",
    "hudi/.hoodie/hoodie.properties": "",
}

MODELS = {  # for those jobs that are refused after they have read a model
    "model": "fit --ratings {}/good --output {}/model",
    "most_model": "fit --ratings {}/hundreds --holdout 0.1 --output {}/most_model",
    "integer_model": "fit --ratings {}/integers --output {}/integer_model",
}

# name: (command, parts of the last line); {} is the folder
CASES = {
    "missing path": ("fit --ratings {}/nowhere", "--ratings…nowhere does not exist"),
    "another separator": (
        "fit --ratings {}/semicolons.csv",
        "they look separated by ';': add --option 'sep=;'",
    ),
    "blanks in the header": (
        "fit --ratings {}/blanks.csv",
        "has no column 'item', 'label'; its columns are user, ' item', ' label'",
    ),
    "missing column": (
        "fit --ratings {}/other_names",
        "no column 'user', 'item', 'label'; its columns are who, what, how…--user-col",
    ),
    "missing csv column": (
        "fit --ratings {}/no_header.csv --format csv",
        "no column 'user'…header=false",
    ),
    "not parquet": ("fit --ratings {}/text.parquet", "cannot be read as parquet…format"),
    "empty folder": ("fit --ratings {}/void", "void holds no parquet file"),
    "file system": ("fit --ratings foo://x/y", "--ratings foo://x/y cannot be read…foo"),
    "output on a strange file system": (
        "fit --ratings {}/good --output foo://x/y",
        "--output: …foo://x/y",
    ),
    "output below a file": ("fit --ratings {}/good --output {}/good/model", "cannot be made…/good"),
    "damaged file": ("fit --ratings {}/damaged", "the file file:…/damaged cannot be read"),
    "damaged file among good ones": ("fit --ratings {}/half", "/half/damaged cannot be read"),
    "output exists": ("fit --ratings {}/good --output {}/taken", "--output…add --overwrite"),
    "predictions exist": (
        "fit --ratings {}/good --predict {}/good --predictions {}/taken",
        "--predictions…add --overwrite",
    ),
    "null ids": (
        "fit --ratings {}/null_ids",
        "2 ratings with null or NaN in column 'user', such as (…1 rating with null or NaN in "
        "column 'item'",
    ),
    "null ids in csv": ("fit --ratings {}/gaps.csv --format csv", "1 rating…'item'…'label'"),
    "NaN ids": ("fit --ratings {}/nan_ids", "1 rating with null or NaN in column 'user'"),
    "NaN labels": ("fit --ratings {}/nan_labels", "2 ratings with null or NaN in column 'label'"),
    "bad weights": (
        "fit --ratings {}/bad_weights --weight-col w",
        "3 ratings with a weight that is negative, above 1e+30, null, NaN or no number in column "
        "'w'…(a, y, -1, -2.0)",
    ),
    "bad weights, with a holdout": (
        "fit --ratings {}/bad_weights --weight-col w --holdout 0.3",
        "3 ratings with a weight that is negative, above 1e+30",
    ),
    "missing weights": ("fit --ratings {}/good --weight-col w", "no column 'w'…--weight-col"),
    "labels outside": (
        "fit --ratings {}/outside",
        "2 ratings with label outside…(a, y, 2)…(b, x, 3)…threshold",
    ),
    "words as labels": (
        "fit --ratings {}/words.csv --format csv",
        "3 ratings with no number in column 'label', such as (a, x, yes)"
        "…labels are −1/1, 0/1, true/false, … convert other text first",
    ),
    "mixed codings": ("fit --ratings {}/mixed", "labels mix −1 (1) and 0 (1) in column 'label'"),
    "no rating": ("fit --ratings {}/empty", "no rating"),
    "one class": ("fit --ratings {}/one_class", "all 4 labels in column 'label' are positive"),
    "one class by threshold": (
        "fit --ratings {}/stars --threshold 5",
        "all 4 labels in column 'label' are negative…threshold 5",
    ),
    "threshold on booleans": ("fit --ratings {}/booleans --threshold 0.5", "boolean already"),
    "nested ids": ("fit --ratings {}/nested", "'user'…array<bigint>…cannot be an id"),
    "pairs without item": (
        "fit --ratings {}/good --predict {}/no_item --predictions {}/p1",
        "--predict…no column 'item'; its columns are user, label",
    ),
    "pairs with nulls": (
        "fit --ratings {}/good --predict {}/null_ids --predictions {}/p2",
        "2 pairs with null or NaN in column 'user', such as (None, y)…1 pair with…'item'",
    ),
    "pairs of another type": (
        "fit --ratings {}/good --predict {}/integers --predictions {}/p3",
        "column 'user' of --predict is of type bigint, but was string in the fit…cast it",
    ),
    "no model": ("predict --model {}/nowhere --pairs {}/good", "no model at…nowhere"),
    "not a model": ("predict --model {}/void --pairs {}/good", "is not a model…metadata.json"),
    "ids of another type": (
        "predict --model {}/model --pairs {}/integers",
        "column 'user' of --pairs is of type bigint, but was string in the fit…column 'item'",
    ),
    "null pairs": ("predict --model {}/model --pairs {}/null_ids", "2 pairs with null or NaN"),
    "pairs missing": ("predict --model {}/model --pairs {}/nowhere", "--pairs…does not exist"),
    "output taken": (
        "predict --model {}/model --pairs {}/good --output {}/taken",
        "--output…add --overwrite",
    ),
    "csv ids for a model of integers": (
        "evaluate --model {}/integer_model --ratings {}/words.csv --format csv",
        "column 'user' of --ratings is of type string, but was bigint in the fit…inferSchema=true",
    ),
    "no label to compare": (
        "evaluate --model {}/model --ratings {}/other_names",
        "no column 'user'",
    ),
    "bad labels to compare": (
        "evaluate --model {}/model --ratings {}/outside",
        "2 ratings with label",
    ),
    "nothing held out": (
        "fit --ratings {}/good --holdout 1e-9",
        "--holdout 1e-09 holds no rating out",
    ),
    "nothing left to fit": (
        "fit --ratings {}/good --holdout 0.99999",
        "--holdout 0.99999 holds all 4 ratings out",
    ),
    "nothing seen": (
        "evaluate --model {}/model --ratings {}/good --ranking 1 --exclude-seen {}/empty",
        "--exclude-seen…empty has no rating: leave it out",
    ),
    "bad labels, some held out": ("fit --ratings {}/outside --holdout 0.5", "2 ratings with label"),
    "certified on its own ratings": (
        "evaluate --model {}/model --ratings {}/good --certify",
        "100.0% of them are of cells that the model was fitted on…about 0.0% would be…hold some "
        "out",
    ),
    "certified on all ratings after some were held out": (
        "evaluate --model {}/most_model --ratings {}/hundreds --certify",
        "of them are of cells that the model was fitted on…(300 were compared)",
    ),
    "certified on a part of its own ratings": (
        "evaluate --model {}/integer_model --ratings {}/half_of_integers --certify",
        "100.0% of them are of cells that the model was fitted on",
    ),
    "metrics taken": (
        "evaluate --model {}/model --ratings {}/good --output {}/taken/keep",
        "--output…add --overwrite",
    ),
    "overwriting a folder that is no model": (
        "fit --ratings {}/good --output {}/taken --overwrite",
        "error: --output …/taken is not a model of onebit_spark, and nothing else is "
        "overwritten…delete it",
    ),
    "overwriting a file with a model": (
        "fit --ratings {}/good --output {}/integers --overwrite",
        "--output …/integers is not a model",
    ),
    "overwriting ratings with predictions": (
        "fit --ratings {}/good --predict {}/good --predictions {}/half --overwrite",
        "--predictions …/half is not a folder of predictions",
    ),
    "overwriting a model with predictions": (
        "predict --model {}/model --pairs {}/good --output {}/integer_model --overwrite",
        "--output …/integer_model is not a folder of predictions",
    ),
    "overwriting a file that is no figures": (
        "evaluate --model {}/model --ratings {}/good --output {}/taken/keep --overwrite",
        "--output …/taken/keep is not a file of figures",
    ),
    "overwriting a folder without experiments": (
        "reproduce tables --output {}/taken --overwrite",
        "--output …/taken is not a folder of experiments",
    ),
    "figures below a file": (
        "evaluate --model {}/model --ratings {}/good --output {}/good/metrics.json",
        "--output …cannot be made: …/good is not a folder that you can write to",
    ),
    "experiments below a file": (
        "reproduce tables --output {}/good/all",
        "--output…cannot be made",
    ),
    "checkpoints in a file": (
        "fit --ratings {}/good --checkpoint-dir {}/good",
        "--checkpoint-dir …/good is not a folder that you can write to",
    ),
    "where writing is not allowed": (
        "fit --ratings {}/good --output /proc/model",
        "--output /proc/model cannot be made: /proc is not a folder that you can write to",
    ),
    "Delta as Parquet": (
        "fit --ratings {}/delta",
        "--ratings …/delta belongs to a table of Delta Lake…(--ratings "
        "catalog.database.table)…--format delta",
    ),
    "a partition of Delta": ("fit --ratings {}/delta/day=1", "belongs to a table of Delta Lake"),
    "files of Delta": ("fit --ratings {}/delta/*.parquet", "belongs to a table of Delta Lake"),
    "data of Iceberg as pairs": (
        "fit --ratings {}/good --predict {}/lake/events/data --predictions {}/p4",
        "--predict …/lake/events/data belongs to a table of Iceberg…--format iceberg",
    ),
    "Hudi as features": (
        "fit --ratings {}/good --user-features {}/hudi",
        "--user-features …/hudi belongs to a table of Hudi…--format hudi",
    ),
    "Delta as asked, without its package": (
        "fit --ratings {}/delta --format delta",
        "--ratings …/delta cannot be read as delta",
    ),
    "nested json": (
        "fit --ratings {}/nested.jsonl --format json",
        "'user'…struct<id:bigint>…cannot be an id",
    ),
    "gaps in json": (
        "fit --ratings {}/gaps.jsonl --format json",
        "1 rating with null or NaN in column 'user'",
    ),
    "missing json column": (
        "fit --ratings {}/gaps.jsonl --format json --label-col stars",
        "no column 'stars'; its columns are item, label, user",
    ),
    "broken json": (
        "fit --ratings {}/broken.jsonl --format json",
        "lines that are no JSON objects…multiLine=true",
    ),
    "metrics a folder": (
        "evaluate --model {}/model --ratings {}/good --output {}/taken --overwrite",
        "is a folder: name a file",
    ),
}

ON_SPARK = (
    "missing path",
    "missing csv column",
    "file system",
    "damaged file among good ones",
    "words as labels",
    "pairs with nulls",
    "Delta as asked, without its package",
    "broken json",
    "where writing is not allowed",
)
ONLY_SPARK = "--runtime local cannot work"
OTHER_WORDS = {  # without Spark: what is said before a file is opened, or that Spark is needed
    "no model": "--model…nowhere does not exist",
    "output on a strange file system": f"{ONLY_SPARK}…--output foo://x/y is not on this machine",
    "Delta as asked, without its package": f"{ONLY_SPARK}…--format delta is read by Spark",
}
PARAMETERS = [("local", name) for name in CASES if not CASES[name][0].startswith("reproduce")]
PARAMETERS += [
    pytest.param("spark", name, marks=[] if name in ON_SPARK else [pytest.mark.slow])
    for name in CASES
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a runtime, with all inputs; models are fitted once they are needed."""
    folders = {}

    def folder(runtime):
        if runtime not in folders:
            folders[runtime] = write_inputs(tmp_path_factory.mktemp("bad"))
        return folders[runtime]

    return folder


@pytest.fixture
def outside_spark(monkeypatch):
    for name in (
        "PYSPARK_GATEWAY_PORT",
        "HADOOP_CONF_DIR",
        "SPARK_REMOTE",
        "SPARK_API_MODE",
        "PYSPARK_SUBMIT_ARGS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("runtime", "name"), PARAMETERS)
def test_bad_input_is_refused_in_one_line(request, folders, runtime, name):
    """Exit code 2, one last line that has the parts, no traceback, and nothing else printed."""
    request.getfixturevalue("spark" if runtime == "spark" else "outside_spark")
    folder = folders(runtime)
    (command, parts) = CASES[name]
    for model, fit in MODELS.items():
        if f"{{}}/{model} " in f"{command} " and not (folder / model).exists():
            code, _, err = run_job(fit, folder, runtime)
            assert code == 0, err
    code, out, err = run_job(command, folder, runtime)
    last = err.splitlines()[-1]
    assert code == 2, err
    assert last.startswith("error: ")
    for part in (OTHER_WORDS.get(name, parts) if runtime == "local" else parts).split("…"):
        assert part in last
    assert "Traceback" not in err
    assert out == ""
    assert_untouched(folder)


def write_inputs(folder):
    """All inputs of the cases, in a folder."""
    for name, content in {**TABLES, **BAD_TABLES}.items():
        write(folder / name, content)
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in TABLE_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, TABLES["good"])
    whole = write(
        folder / "damaged",
        {"user": list(range(999)), "item": list(range(999)), "label": [0, 1, 1] * 333},
    )
    content = bytearray(whole.read_bytes())
    content[100:3000] = bytes(2900)  # the footer stays
    whole.write_bytes(content)
    (folder / "half").mkdir()
    (folder / "half" / "damaged").write_bytes(content)
    for name in ("first", "second"):
        write(folder / "half" / name, {"user": [1, 2], "item": [1, 2], "label": [0, 1]})
    (folder / "void").mkdir()
    (folder / "taken").mkdir()
    (folder / "taken" / "keep").write_text("mine")
    return folder


def assert_untouched(folder):
    """What the refused job was to overwrite is as it was, and it has written nothing else."""
    assert (folder / "taken" / "keep").read_text() == "mine"
    assert [path.name for path in (folder / "taken").iterdir()] == ["keep"]
    assert pq.read_table(folder / "integers") == TABLES["integers"]
    assert sorted(path.name for path in (folder / "half").iterdir()) == [
        "damaged",
        "first",
        "second",
    ]
    assert not list(folder.glob("absent-*"))
    assert not list(folder.glob("p[1234]"))
    assert not list(folder.glob(".*"))
