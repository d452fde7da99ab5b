"""The model folder: there and back, damaged in every way, and never half written."""

import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter

from onebit_spark import RequestError
from onebit_spark.data import locations as filesystem
from onebit_spark.data.locations import MARKER, PREDICTIONS, Location, replace_folder
from onebit_spark.model_info import FORMAT_VERSION, ModelInfo
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.model import OneBitCompletionModel

SLOW = pytest.mark.slow
KINDS = [
    pytest.param({"loss": "hinge"}, marks=SLOW),
    {"loss": "logistic"},
    pytest.param({"loss": "logistic", "covariance": "diagonal", "intercepts": False}, marks=SLOW),
]


def scores(spark, model):
    pairs = spark.createDataFrame(pa.table({"user": [0, 3, 27, 99], "item": [0, 99, 17, 99]}))
    return model.transform(pairs).orderBy("user", "item").toArrow()


@pytest.fixture(scope="module")
def pristine(make_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("pristine") / "model"
    make_model().save(str(path))
    return path


@pytest.fixture
def saved(pristine, tmp_path):
    """A copy of a saved model, which a test may change."""
    return shutil.copytree(pristine, tmp_path / "model")


def load(path):
    return OneBitCompletionModel.load(str(path))


def hidden(folder):
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


# ---- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("choices", KINDS, ids=["hinge", "logistic", "diagonal"])
def test_round_trip(spark, make_model, tmp_path, choices):
    model = make_model(**choices).setScoreCol("utility")
    path = tmp_path / "with space" / "modèle"
    model.save(str(path))
    loaded = load(path)
    assert loaded.info == model.info
    assert loaded.uid == model.uid
    assert loaded.getScoreCol() == "utility"
    assert loaded.users.dtypes == model.users.dtypes
    assert scores(spark, loaded).equals(scores(spark, model))
    assert hidden(path.parent) == []


def test_a_loaded_model_can_be_saved(saved, tmp_path):
    load(saved).save(str(tmp_path / "again"))
    shutil.rmtree(saved)
    again = load(tmp_path / "again")
    assert (again.users.count(), again.items.count()) == (28, 18)


def test_the_folder_is_open_formats(saved, make_model):
    assert {entry.name for entry in saved.iterdir() if not entry.name.startswith(".")} == {
        MARKER,
        "certificate.json",
        "metadata.json",
        "metadata",
        "users",
        "items",
    }
    info = json.loads((saved / "metadata.json").read_text(encoding="utf-8"))
    assert info["format_version"] == FORMAT_VERSION
    assert info["parameters"]["loss"] == "logistic"
    assert info["objective_history"] == make_model().info.objective_history
    users = pq.read_table(saved / "users")
    assert users.column_names == ["id", "mean", "covariance", "intercept", "implicit"]
    assert [len(users[name][0]) for name in ("mean", "covariance", "implicit")] == [3, 10, 6]


def test_generic_loaders_find_the_class(spark, saved):
    assert isinstance(
        DefaultParamsReader.loadParamsInstance(str(saved), spark), OneBitCompletionModel
    )
    assert isinstance(
        OneBitCompletionModel.read().session(spark).load(str(saved)), OneBitCompletionModel
    )


@pytest.mark.parametrize(
    "id_type", ["date", pytest.param("string", marks=SLOW), pytest.param("int", marks=SLOW)]
)
def test_id_types_survive(spark, make_model, tmp_path, id_type):
    ids = pa.array(np.arange(28, dtype=np.int32))
    ids = ids.cast({"string": pa.string(), "date": pa.date32(), "int": pa.int32()}[id_type])
    make_model(ids, id_types={"user": id_type, "item": "bigint"}).save(str(tmp_path / "m"))
    loaded = load(tmp_path / "m")
    assert dict(loaded.users.dtypes)["id"] == id_type
    users = spark.createDataFrame(pa.table({"user": ids, "item": np.zeros(28, np.int64)}))
    assert loaded.transform(users).count() == 28


# ---- overwriting -------------------------------------------------------------------------------


def test_an_existing_folder_is_replaced_only_on_request(saved, make_model):
    before = (saved / "metadata.json").read_bytes()
    with pytest.raises(RequestError, match=r"exists: .*overwritten"):
        make_model(loss="hinge").save(str(saved))
    assert (saved / "metadata.json").read_bytes() == before
    make_model(loss="hinge").write().overwrite().save(str(saved))
    assert load(saved).info.config.loss == "hinge"
    assert hidden(saved.parent) == []


def test_only_a_model_is_overwritten(make_model, tmp_path):
    """By each of the ways in which a model is written."""
    model = make_model()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious.txt").write_text("mine")
    for kind, write in {
        "a model": lambda: model.write().overwrite().save(str(mine)),
        "an estimator": lambda: OneBitCompletion().write().overwrite().save(str(mine)),
        "a folder of vectors": lambda: model.exportVectors(mine, overwrite=True),
    }.items():
        with pytest.raises(RequestError, match=f"mine is not {kind} of onebit_spark"):
            write()
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("precious.txt", "mine")]
    assert hidden(tmp_path) == []


def test_overwriting_the_folder_it_reads_from_is_refused(spark, saved):
    model = load(saved)
    with pytest.raises(RequestError, match="still reads its factors there"):
        model.copy().write().overwrite().save(f"file:{saved}")
    assert scores(spark, model).num_rows == 4


class Killed(BaseException):
    pass


def killed(*args, **kwargs):
    raise Killed


@pytest.mark.parametrize("renaming", [True, False])
def test_killed_before_the_end_of_writing(saved, make_model, monkeypatch, tmp_path, renaming):
    """On disk the old model stays whole; on an object store (simulated) no folder is left that
    passes for a model.
    """
    if not renaming:
        monkeypatch.setattr(filesystem, "RENAMING", ())
    with monkeypatch.context() as patch:
        patch.setattr(DefaultParamsWriter, "saveMetadata", killed)
        with pytest.raises(Killed):
            make_model(loss="hinge").write().overwrite().save(str(saved))
        with pytest.raises(Killed):
            make_model(loss="hinge").save(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert hidden(tmp_path) == []
    if renaming:
        assert load(saved).info.config.loss == "logistic"
    else:
        assert not saved.exists()
        make_model(loss="hinge").save(str(saved))
        assert load(saved).info.config.loss == "hinge"


@SLOW
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_rename_restores_the_old_model(spark, saved, make_model, monkeypatch, failing):
    """The first move puts the old model aside, the second puts the new one in place."""
    kind = type(Location(spark, saved))
    moves = []
    move = kind.move_to

    def fail(self, target):
        moves.append(target)
        if len(moves) == failing:
            raise OSError("disk on fire")
        move(self, target)

    monkeypatch.setattr(kind, "move_to", fail)
    with pytest.raises(OSError, match="disk on fire"):
        make_model(loss="hinge").write().overwrite().save(str(saved))
    assert load(saved).info.config.loss == "logistic"
    assert scores(spark, load(saved)).num_rows == 4
    assert hidden(saved.parent) == []


def test_a_folder_of_predictions_is_replaced(spark, tmp_path):
    path = tmp_path / "predictions"
    scored = ["id AS score", "id AS std", "id AS probability"]
    with replace_folder(spark, path, PREDICTIONS) as folder:
        spark.range(3).selectExpr(scored).write.mode("append").parquet(folder)
        assert not path.exists()
    with replace_folder(spark, path, PREDICTIONS, overwrite=True) as folder:
        spark.range(4).selectExpr(scored).write.mode("append").parquet(folder)
        assert spark.read.parquet(str(path)).count() == 3
    assert spark.read.parquet(str(path)).count() == 4
    with pytest.raises(RequestError, match="exists"), replace_folder(spark, path, PREDICTIONS):
        pytest.fail("the body runs only if there is something to write to")
    assert [entry.name for entry in tmp_path.iterdir()] == ["predictions"]


def test_a_folder_that_appeared_meanwhile_is_not_touched(spark, tmp_path):
    path = tmp_path / "out"
    with pytest.raises(RequestError, match="exists"), replace_folder(spark, path, PREDICTIONS):
        path.mkdir()
    assert list(path.iterdir()) == []
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        ("nosuch://a/b", "No FileSystem|Unrecognized filesystem"),
        ("file:///", "name a"),
    ],
)
def test_impossible_paths(make_model, path, reason):
    with pytest.raises(RequestError, match=reason):
        make_model().save(path)


# ---- damage ------------------------------------------------------------------------------------


def edit(**changes):
    def damage(path):
        content = json.loads((path / "metadata.json").read_text(encoding="utf-8"))
        rewrite(path, json.dumps(content | changes))

    return damage


def rewrite(path, text):
    (path / ".metadata.json.crc").unlink(missing_ok=True)
    (path / "metadata.json").write_text(text, encoding="utf-8")


def empty(path):
    shutil.rmtree(path)
    path.mkdir()
    return path


def other_schema(path):
    pq.write_table(pa.table({"id": [1], "mean": [[0.5]]}), empty(path / "users") / "part.parquet")


DAMAGES = {  # what Spark reads; tests/unit has what stands in metadata.json
    "another format": (
        edit(format_version=2),
        "format_version 2, and this onebit_spark reads 1 only: load it with",
    ),
    "id types": (
        edit(id_types={"user": "string", "item": "bigint"}),
        "should have the columns id string",
    ),
    "no such type": (edit(id_types={"user": "strong", "item": "bigint"}), "damaged model folder"),
    "no users": (
        lambda path: shutil.rmtree(path / "users"),
        "damaged model folder: it has no users/",
    ),
    "no items": (
        lambda path: shutil.rmtree(path / "items"),
        "damaged model folder: it has no items/",
    ),
    "no Parquet": (lambda path: empty(path / "items"), "damaged model folder: items/"),
    "rotten Parquet": (
        lambda path: (empty(path / "users") / "part.parquet").write_bytes(
            b"not a Parquet file at all"
        ),
        "damaged model folder: users/",
    ),
    "schema": (other_schema, "users/ should have the columns id bigint, mean array<float>"),
    "no Params": (lambda path: shutil.rmtree(path / "metadata"), "damaged model folder: metadata/"),
    "rotten Params": (
        lambda path: (empty(path / "metadata") / "part-0").write_text("{}\n"),
        "damaged model folder: metadata/",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused_in_one_line(saved, damage):
    harm, message = DAMAGES[damage]
    harm(saved)
    with pytest.raises(RequestError, match=message) as caught:
        load(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


def test_info_refuses_what_it_could_not_read_back(make_model):
    info = make_model().info
    assert ModelInfo.from_json(info.to_json()) == info
    with pytest.raises(ValueError, match="majority"):
        dataclasses.replace(info, majority=0)
    with pytest.raises(ValueError, match="JSON compliant"):
        dataclasses.replace(info, objective_history=[float("nan")]).to_json()
    single = dataclasses.replace(info, inverse_gamma=[np.float32(x) for x in info.inverse_gamma])
    assert len(ModelInfo.from_json(single.to_json()).inverse_gamma) == 3


def test_an_estimator_with_a_strange_param_is_refused_in_one_line(spark, tmp_path):
    OneBitCompletion(rank=3).save(str(tmp_path / "estimator"))
    (file,) = (tmp_path / "estimator" / "metadata").glob("part-*")
    metadata = json.loads(file.read_text())
    metadata["paramMap"]["colour"] = "green"
    file.write_text(json.dumps(metadata))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(RequestError, match=r"cannot load .*estimator: metadata/: .*'colour'"):
        OneBitCompletion.load(str(tmp_path / "estimator"))
