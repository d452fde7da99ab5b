"""Model folders that earlier versions wrote keep loading. tests/spark/folders/NAME-V is one of format_version V.

Recipe: simulate("B2", rank=2, shape=(14, 10), fraction=0.6, seed=4), users as text, five iterations of rank 2, tol 0;
``logistic-1`` with the defaults, ``hinge-split-1`` with the Gamma prior and certificatePriorSplit=0.5.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from onebit_spark.estimator import OneBitCompletion
from onebit_spark.model import OneBitCompletionModel

FOLDERS = Path(__file__).with_name("folders")


def test_a_model_of_version_1_predicts_as_it_did(spark):
    model = OneBitCompletionModel.load(str(FOLDERS / "logistic-1"))
    expected = spark.read.parquet(str(FOLDERS / "logistic-1-predictions"))
    found = model.transform(expected.select("user", "item")).orderBy("user", "item").toPandas()
    told = expected.orderBy("user", "item").toPandas()
    for name in ("score", "std", "probability", "prediction"):
        np.testing.assert_allclose(found[name], told[name], rtol=1e-6)
    assert model.certificate["headline"] == "seeger"


@pytest.mark.parametrize("name", ["logistic-1", "hinge-split-1"])
def test_a_model_of_version_1_is_saved_as_one_of_today(spark, tmp_path, name):
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
