"""reproduce.py: bad requests, and data that cannot be fetched, end in one line; the first before Spark starts."""

from contextlib import nullcontext

import pytest
from paper.job import reproduce

from onebit_spark.cli import running as jobrun


def refusal(capsys, arguments):
    """The one line with which the job is refused."""
    assert reproduce(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tables", "--replicates", "0"], "(1) --output is required; (2) --replicates must be"),
        (["movielens", "--output", "x"], "give either --movielens PATH or --download"),
        (["movielens", "--output", "x", "--movielens", "nowhere"], "--movielens nowhere does not exist"),
        (["--output", "x"], "name the experiment first, tables, noise or movielens, not '--output'"),
        (["noise", "--output", "x", "--movielens", "y"], "unknown flag --movielens"),
    ],
)
def test_bad_requests_end_before_spark_starts(capsys, monkeypatch, tmp_path, arguments, words):
    def no_spark(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobrun, "spark_session", no_spark)
    monkeypatch.chdir(tmp_path)
    assert words in refusal(capsys, arguments)
    assert not list(tmp_path.iterdir())


def test_a_download_that_fails_is_told_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(jobrun, "spark_session", lambda *_: nullcontext())
    monkeypatch.setenv("ONEBIT_DATA", str(tmp_path / "data"))
    output = tmp_path / "none"
    arguments = ["movielens", "--download", "--url", "http://127.0.0.1:9/x.zip", "--output", str(output)]
    assert refusal(capsys, arguments).startswith("error: http://127.0.0.1:9/x.zip cannot be fetched")
    assert not output.exists()
