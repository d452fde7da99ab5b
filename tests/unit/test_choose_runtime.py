"""Where a job runs, and why."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onebit_spark import RequestError
from onebit_spark import settings as core_config
from onebit_spark.cli import running
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import FitRequest, PredictRequest
from onebit_spark.cli.running import choose

FIT = ["--ratings", "in.parquet", "--output", "out"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "PYSPARK_GATEWAY_PORT",
        "HADOOP_CONF_DIR",
        "SPARK_REMOTE",
        "SPARK_API_MODE",
        "PYSPARK_SUBMIT_ARGS",
    ):
        monkeypatch.delenv(name, raising=False)
    pq.write_table(
        pa.table({"user": [1, 2], "item": [1, 1], "label": [1, 0]}), tmp_path / "in.parquet"
    )
    (tmp_path / "in.csv").write_text("user,item,label\n1,1,1\n")


def chosen(*flags, request=FitRequest, otherwise="auto"):
    return choose(
        parse(request, "job", [*FIT, *flags] if request is FitRequest else list(flags)), otherwise
    )


def test_a_file_runs_here(monkeypatch):
    assert chosen().name == "local"
    assert chosen("--ratings", "in.csv", "--option", "sep=;").name == "local"
    assert chosen("--exchange", "driver", "--checkpoint-dir", "c").name == "local"
    assert chosen("--runtime", "spark") == ("spark", "as requested")
    assert chosen("--runtime", "local") == ("local", "as requested")
    assert chosen(otherwise="spark").name == "spark"  # a job of Spark's stays there
    assert chosen("--runtime", "local", otherwise="spark").name == "local"
    monkeypatch.setattr(core_config, "no_device", lambda: None)
    assert chosen("--device", "cuda").name == "local"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")  # names no cluster
    assert chosen().name == "local"


NEEDS_SPARK = {
    ("--remote", "sc://host"): "--remote sc://host names a Spark Connect server",
    ("--ratings", "films.ratings"): "--ratings films.ratings is a table of a catalog",
    ("--ratings", "in.{parquet,csv}"): "is a pattern that Spark expands",
    ("--ratings", "s3://b/*.parquet"): "is a pattern that Spark expands",
    ("--format", "delta"): "--format delta is read by Spark",
    ("--option", "mergeSchema=true"): "Arrow's reader of parquet has no option mergeSchema",
    ("--output", "hdfs:///models/a"): "--output hdfs:///models/a is not on this machine",
    ("--checkpoint-dir", "s3://b/c"): "--checkpoint-dir s3://b/c is not on this machine",
    ("--predict", "in.csv", "--output-table", "a.b"): "--output-table a.b is a table of a catalog",
    ("--exchange", "shuffle"): "--exchange shuffle fits on executors",
    ("--row-blocks", "4"): "--row-blocks divides the ratings for executors",
    ("--driver-ratings", "0"): "--driver-ratings 0 fits on executors",
}


@pytest.mark.parametrize("flags", NEEDS_SPARK, ids=" ".join)
def test_what_needs_spark_says_so(flags, monkeypatch):
    name, reason = chosen(*flags)
    assert (name, NEEDS_SPARK[flags] in reason) == ("spark", True), reason
    with pytest.raises(RequestError, match="--runtime local cannot work: ") as caught:
        chosen(*flags, "--runtime", "local")
    assert NEEDS_SPARK[flags] in str(caught.value)
    monkeypatch.setattr(running, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match="that needs Spark, which is not installed: pip install"):
        chosen(*flags)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARK_REMOTE", "sc://host"),
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("SPARK_API_MODE", "connect"),
        ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell"),
        ("PYSPARK_GATEWAY_PORT", "1"),
    ],
)
def test_a_cluster_that_is_named_is_used(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert chosen().name == "spark"
    assert chosen("--runtime", "local").name == "local"


def test_ratings_that_do_not_fit_go_to_spark(monkeypatch):
    assert chosen("--driver-ratings", "1") == (
        "spark",
        "2 ratings are more than the driver takes (driverRatings = 1)",
    )
    monkeypatch.setattr(running, "available_memory", lambda: 100)
    assert "2 ratings are more than" in chosen().reason
    with pytest.raises(
        RequestError, match=r"--runtime local cannot work: .* 2 ratings and their factors take"
    ):
        chosen("--runtime", "local")


def test_text_ids_take_memory(monkeypatch):
    """Six times their size while they are sorted: of half of the memory, 24 bytes per rating leave
    too little.
    """
    n = 100_000
    for name, users in (("numbers", range(n)), ("text", [f"{number:0100}" for number in range(n)])):
        pq.write_table(
            pa.table({"user": users, "item": [1] * n, "label": [1] * n}), f"{name}.parquet"
        )
    monkeypatch.setattr(running, "available_memory", lambda: 100 * 2**20)
    assert chosen("--ratings", "numbers.parquet").name == "local"
    name, reason = chosen("--ratings", "text.parquet")
    assert name == "spark"
    assert reason.startswith(
        "100,000 ratings are more than the driver takes (half of the 100 MB that are free hold 0"
    )


def test_models_and_pairs():
    (name, _) = chosen(
        "--model", "in.parquet", "--pairs", "in.csv", "--output", "out", request=PredictRequest
    )
    assert name == "local"
    flags = ["--model", "s3://bucket/model", "--top", "3", "--output", "out"]
    assert chosen(*flags, request=PredictRequest) == (
        "spark",
        "--model s3://bucket/model is not on this machine",
    )
