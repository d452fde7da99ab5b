"""Folders of a model without Spark: vectors that appear whole or not at all, and model folders that cannot be read."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from modelfolders import FOLDERS, nearest_by_inner_product

import onebit_spark
from onebit_spark import RequestError
from onebit_spark.core.model_info import FORMAT_VERSION
from onebit_spark.platform.files import VECTORS, Location
from onebit_spark.predictor import model_folder

# ---- vectors ---------------------------------------------------------------------------------------------------------


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
    assert items.take(pa.array(found.ravel())).to_pylist() == model.recommend(users, 5, z=0.0)["item"].to_pylist()


def test_vectors_appear_whole_or_not_at_all(make_model, tmp_path, monkeypatch):
    model, path = make_model(), tmp_path / "vectors"
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
    monkeypatch.setattr("onebit_spark.predictor.model_folder.pq.write_table", killed)
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
    (target / "_SUCCESS").touch()
    rename = Location.move_to

    def fail(self, other):
        if self.name.startswith(".out.writing"):
            raise OSError("disk on fire")
        rename(self, other)

    monkeypatch.setattr(Location, "move_to", fail)
    with pytest.raises(OSError, match="disk on fire"), model_folder.replaced_folder(target, VECTORS, overwrite=True):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert (target / "users").exists()


# ---- folders that cannot be read -------------------------------------------------------------------------------------


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
    "half-written": (lambda path: (path / "metadata.json").unlink(), r"not a model \(or half-written\)"),
    "newer": (edit(format_version=99), f"format_version 99, and this onebit_spark reads version {FORMAT_VERSION}"),
    "no version": (edit(format_version=edit), "damaged model folder: .*format_version"),
    "no JSON": (lambda path: (path / "metadata.json").write_text("{"), "metadata.json is not JSON"),
    "not a dict": (lambda path: (path / "metadata.json").write_text("[]"), "damaged model folder"),
    "binary": (lambda path: (path / "metadata.json").write_bytes(b"\x00\xff"), "damaged model folder"),
    "missing keys": (edit(majority=edit, columns=edit), "lacks majority, columns"),
    "wrong type": (edit(n_users="many"), "n_users cannot be 'many'"),
    "parameters": (edit(parameters={"loss": "hinge", "depth": 1}), "lack .*'covariance'.* unknown .'depth'"),
    "gamma": (edit(inverse_gamma=[1.0]), "inverse_gamma has 1 entries for rank 2"),
    "intercepts": (edit(intercept_prior=None), "intercept_prior cannot be None"),
    "label coding": (edit(label_coding="±"), "label_coding must be one of signed"),
    "no certificate": (lambda path: (path / "certificate.json").unlink(), r"it has no certificate\.json"),
    "certificate": (lambda path: (path / "certificate.json").write_text("[]"), "holds no certificates"),
    "no items": (lambda path: shutil.rmtree(path / "items"), "it has no items/"),
    "empty items": (emptied, "damaged model folder: items/"),
    "lost part": (lambda path: (path / "users" / "part-00001.parquet").unlink(), "14 ids, and 28 were saved"),
    "rotten part": (lambda path: (path / "users" / "part-00001.parquet").write_bytes(b"?"), "damaged .*users/"),
    "columns": (other_columns, "users/ lacks covariance, intercept, implicit"),
    "ragged": (ragged, "damaged model folder: users/"),
    "id type": (edit(id_types={"user": "bigint", "item": "int"}), "ids of type string, where .* says bigint"),
    "Spark only": (edit(id_types={"user": "interval day", "item": "int"}), "with Spark only"),
    "no Params": (lambda path: shutil.rmtree(path / "metadata"), "damaged model folder: metadata/"),
    "rotten Params": (lambda path: (path / "metadata" / "part-00000").write_text("[]"), "damaged .*metadata/"),
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
    with pytest.raises(RequestError, match=r"not a folder of this machine.*copy it here, or use OneBitCompletionModel"):
        onebit_spark.load(path)
    with pytest.raises(RequestError, match="not a folder of this machine"):
        make_model().export_vectors(path)


def test_an_estimator_is_not_a_model():
    with pytest.raises(RequestError, match="holds an estimator, not a fitted model"):
        onebit_spark.load(FOLDERS / "estimator-1")


def test_no_spark_is_imported(make_folder, tmp_path):
    """In a fresh interpreter where pyspark cannot be imported."""
    program = f"""
import sys
sys.modules.update(pyspark=None, py4j=None)
import onebit_spark
model = onebit_spark.load({str(make_folder())!r})
new = model.fold_in("new", [10, 20], [1, -1])
new.recommend("new", 3)
new.export_vectors({str(tmp_path / "vectors")!r})
print(model, len(new.predictions(["new", "u01"], 10)), [name for name in sys.modules if name.startswith("pyspark.")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "FittedModel(28 users, 18 items, rank 2) 2 []", done.stderr
