"""docs/ARCHITECTURE.md's recipes for a prior and a loss, followed: one file in a copy of the
package, and no more.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onebit_spark
from onebit_spark.core.losses import LOSSES, Loss
from onebit_spark.registry import Registry, names_in

PACKAGE = Path(onebit_spark.__file__).parent
RECIPES = Path(__file__).resolve().parents[1] / "recipes"


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The folder of a copy of the package with a third prior and a third loss."""
    root = tmp_path_factory.mktemp("extended")
    copy = shutil.copytree(
        PACKAGE, root / "onebit_spark", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(RECIPES / "log_normal.py", copy / "core" / "priors")
    shutil.copy(RECIPES / "squared.py", copy / "core" / "losses")
    return root


def run(root, *words, cwd=None):
    """Run Python with this package, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-P", *map(str, words)]
    done = subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FITS = """
import numpy as np
from onebit_spark import FitConfig, fit_arrays
rng = np.random.default_rng(0)
rows, cols = np.divmod(np.arange(900), 30)
labels = np.where(rng.normal(size=30)[rows] * rng.normal(size=30)[cols] > 0, 1, -1)
for options in ({"prior": "log-normal"}, {"loss": "squared"}, {"loss": "squared", "prior": "log-normal"}):
    model = fit_arrays(rows, cols, labels, FitConfig(rank=3, max_iter=60, **options))
    falls = np.diff(model.objective_history)
    right = np.mean(model.predict(rows, cols) == labels)
    print(bool(np.all(falls <= 1e-6 * abs(model.objective_history[-1]))), bool(right > 0.9), model.effective_rank)
"""


def test_a_new_prior_and_a_new_loss_fit(extended):
    assert run(extended, "-c", FITS).split("\n")[:3] == ["True True 1"] * 3


def test_the_command_takes_them(extended, tmp_path):
    rng = np.random.default_rng(1)
    rows, cols = np.divmod(np.arange(400), 20)
    labels = rng.normal(size=20)[rows] * rng.normal(size=20)[cols] > 0
    pq.write_table(
        pa.table({"user": rows, "item": cols, "label": labels}), tmp_path / "ratings.parquet"
    )
    words = [
        "--ratings",
        tmp_path / "ratings.parquet",
        "--output",
        tmp_path / "model",
        "--rank",
        2,
        "--no-report",
    ]
    words += ["--prior", "log-normal", "--loss", "squared"]
    run(extended, "-m", "onebit_spark", "fit", *words, cwd=tmp_path)
    show = (
        "import sys, onebit_spark; m = onebit_spark.load(sys.argv[1]); print(m.config.loss, "
        "m.config.prior)"
    )
    assert run(extended, "-c", show, tmp_path / "model") == "squared log-normal\n"


def test_the_contract_of_priors_holds_for_a_new_one(extended):
    tests = Path(__file__).parent / "test_priors.py"
    printed = run(
        extended, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "log-normal", tests
    )
    assert int(printed.split(" passed")[0].split()[-1]) >= 6


NAMES = """
import sys
from onebit_spark.settings import FitConfig, declared
settings = declared(FitConfig)
print(*settings["prior"].choices, *settings["loss"].choices, "numpy" in sys.modules)
"""


def test_a_zip_has_the_same_names_and_no_numpy_is_imported(extended, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "shipped"), "zip", extended)
    expected = "gamma inverse-gamma log-normal hinge logistic squared False\n"
    assert run(archive, "-c", NAMES) == run(extended, "-c", NAMES) == expected


def test_a_name_is_that_of_a_file():
    assert tuple(LOSSES) == names_in("core/losses") == ("hinge", "logistic")
    assert {name: loss.name for name, loss in LOSSES.items()} == {name: name for name in LOSSES}
    with pytest.raises(KeyError, match="huber"):
        LOSSES["huber"]
    with pytest.raises(
        TypeError, match=r"onebit_spark.core.priors.gamma must define one subclass of Loss, not 0"
    ):
        Registry("core/priors", Loss)["gamma"]
