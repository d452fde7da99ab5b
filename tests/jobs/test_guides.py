"""Every snippet of README and guides runs as printed, and prints what stands below it.

The snippets of a guide are one session. They run in their order, in one namespace that has only
``spark``, in a folder like a clone. A guide makes its own data, except for those that are about a
cluster. ``guides.py`` says which snippets are not run.
"""

import contextlib
import io
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.ml.recommendation import ALS
from support.guides import GUIDES, ROOT, assert_prints, snippets
from support.running import run_here, write

from onebit_spark import simulate

TABLES = {"cluster.md": ("films.ratings", "films.pairs"), "platforms.md": ("films.ratings",)}
SHORTER = {"fit": ["--max-iter", "4"]}  # the rest is as printed
DRAWS_REPORTS = (
    "README.md"  # where the jobs of the others draw none: half of the Python time of a job
)
LEFT_BEHIND = {  # expressions that hold at the end
    "README.md": 'Path("model/report.html").exists()',
    "predictions.md": 'Path("reported/report.html").exists()',
    "streaming.md": 'Path("models/batch-0/metadata.json").exists()',
}

# Beyond the package and its extra `all`
NEEDS = {
    "mlflow.md": ["mlflow"],
    "sklearn.md": ["sklearn", "mapie"],
}

PAGES = [guide for guide in GUIDES if list(snippets(guide))]
BY_DEFAULT = "serving.md"  # has snippets of each kind; the other guides are slow


@pytest.mark.usefixtures("short_als")
@pytest.mark.parametrize(
    "guide",
    [
        pytest.param(
            page, marks=[] if page.name == BY_DEFAULT else [pytest.mark.slow], id=page.name
        )
        for page in PAGES
    ],
)
def test_the_guide_runs(guide, spark, clone, monkeypatch):
    for package in NEEDS.get(guide.name, ()):
        pytest.importorskip(package)
    names = {"spark": spark}
    printed = ""
    for snippet in snippets(guide):
        where = f"{guide.name}, line {snippet.line}"
        text = stand_in(snippet.text, clone)
        if snippet.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, where, "exec"), names)
        elif snippet.kind == "output":
            assert_prints(printed.getvalue(), text)
        elif snippet.kind == "run" and text.startswith("export "):
            for setting in snippet.words[1:]:
                monkeypatch.setenv(*setting.split("=", 1))
        elif snippet.kind == "run":
            job, flags = snippet.job
            if job == "simulate":
                simulate.main(flags)
                continue
            runtime = "auto" if "onebit-spark" in snippet.words else "spark"
            flags = [*(stand_in(flag, clone) for flag in flags), *SHORTER.get(job, ())]
            if job == "fit" and guide.name != DRAWS_REPORTS:
                flags.append("--no-report")
            code, _, err = run_here(job, *flags, runtime=runtime)
            assert code == 0, f"{where}: {text}\n{err}"
    assert eval(LEFT_BEHIND.get(guide.name, "True"), {**names, "Path": Path})


def stand_in(text, folder):
    """Folders here for those of a cluster and of a service."""
    return re.sub(r"hdfs:///|/Volumes/main/default/", f"{folder}/", text).replace(
        "main.default.", "films."
    )


# ---- what the guides find ----------------------------------------------------------------------


@pytest.fixture
def clone(guide, spark, tmp_path, monkeypatch):
    """The working folder, of Python and of the JVM: the jobs, and on a cluster the ratings."""
    for name in ("jobs", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    data = cluster_data() if guide.name in TABLES else {}
    for name, table in data.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / "0.parquet", table)
    monkeypatch.chdir(tmp_path)
    with jvm_in(spark, tmp_path), kept_settings(spark), catalog(spark, guide.name, data):
        yield tmp_path


@pytest.fixture
def short_als(monkeypatch):
    """MLlib's, in one iteration on one block: it is not what is tested, and takes thousands of
    tasks.
    """
    fit = ALS.fit
    monkeypatch.setattr(
        ALS, "fit", lambda als, ratings: fit(als.setMaxIter(1).setNumBlocks(1), ratings)
    )


def cluster_data():
    """1,500 of the 60 × 40 cells of a matrix of rank 2, with labels and stars."""
    drawn = simulate.simulate("B1", 2, (60, 40), 0.625, seed=3)
    ratings = pa.table(
        {"user": drawn.rows, "item": drawn.cols, "label": drawn.labels, "stars": drawn.labels + 3}
    )
    return {
        "ratings": ratings.slice(0, 1200),
        "pairs": ratings.slice(1200).select(["user", "item"]),
    }


@contextlib.contextmanager
def jvm_in(spark, folder):
    """The JVM does not follow ``chdir``.

    Hadoop's file system has a folder of its own, and new ones ask Java.
    """
    hadoop = spark._jvm.org.apache.hadoop.fs
    java = spark._jvm.java.lang.System
    files = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration())

    def go(place):
        files.setWorkingDirectory(hadoop.Path(place))
        return java.setProperty("user.dir", place)

    before = go(str(folder))
    yield
    go(before)


@contextlib.contextmanager
def kept_settings(spark):
    """README's example sets the number of partitions in the session that all tests share."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@contextlib.contextmanager
def catalog(spark, guide, data):
    """The tables that a guide reads by their names."""
    if guide not in TABLES:
        yield
        return
    spark.sql("CREATE DATABASE films")
    for name in TABLES[guide]:
        spark.createDataFrame(data[name.partition(".")[2]]).write.saveAsTable(name)
    yield
    spark.sql("DROP DATABASE films CASCADE")
