"""Model folders that earlier versions wrote keep loading. tests/spark/folders/NAME-V is one of format_version V.

Recipe: simulate("B2", rank=2, shape=(14, 10), fraction=0.6, seed=4), users as text, five iterations of rank 2, tol 0;
``logistic-V`` with the defaults of its time, ``hinge-split-1`` with the Gamma prior and certificatePriorSplit=0.5.
From version 2 on with selective certificates, and predictions of unknown ids, too; version 4 with weights and item
features, among them those of two items without ratings.
"""

import json

import numpy as np
import pytest
from modelfolders import FOLDERS, VERSIONS

from onebit_spark.estimator import OneBitCompletion
from onebit_spark.model import OneBitCompletionModel

HEADLINES = {"logistic-1": "seeger", "logistic-2": "seeger", "logistic-3": None, "logistic-4": None}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_predicts_as_it_did(spark, version):
    """tests/unit/test_serving.py does the same without Spark."""
    model = OneBitCompletionModel.load(str(FOLDERS / version))
    expected = spark.read.parquet(str(FOLDERS / f"{version}-predictions"))
    found = model.transform(expected.select("user", "item")).orderBy("user", "item").toPandas()
    expected = expected.orderBy("user", "item").toPandas()
    for name in expected.columns.drop(["user", "item"]):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert model.certificate["headline"] == HEADLINES[version]


@pytest.mark.parametrize(
    "name", ["hinge-split-1", *(pytest.param(each, marks=pytest.mark.slow) for each in ("logistic-1", "logistic-2"))]
)
def test_an_old_model_is_saved_as_one_of_today(spark, tmp_path, name):
    model = OneBitCompletionModel.load(str(FOLDERS / name))
    model.save(str(tmp_path / "model"))
    again = OneBitCompletionModel.load(str(tmp_path / "model"))
    assert again.info == model.info
    assert again.certificate == model.certificate
    assert sorted(map(str, again.users.collect())) == sorted(map(str, model.users.collect()))
    assert json.loads((tmp_path / "model" / "metadata.json").read_text())["format_version"] >= 2


def test_an_estimator_of_version_1(spark):
    estimator = OneBitCompletion.load(str(FOLDERS / "estimator-1"))
    assert (estimator.getRank(), estimator.getCertificateGrid()) == (7, 3)
