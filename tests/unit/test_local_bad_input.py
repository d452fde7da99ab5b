"""Every row of the table of bad input without Spark; tests/jobs/test_bad_data.py has it on Spark."""

import pytest
from badinput import CASES, MODELS, check_untouched, refused, written
from smalltables import run_jobs

ONLY_SPARK = "--runtime local cannot work"
OTHER_WORDS = {  # what is said before a file is opened, or that Spark is needed
    "no model": ["--model", "nowhere does not exist"],
    "output on a strange file system": [ONLY_SPARK, "--output foo://x/y is not on this machine"],
    "Delta as asked, without its package": [ONLY_SPARK, "--format delta is read by Spark"],
}
HERE = {name: case for name, case in CASES.items() if case[0] != "reproduce"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = written(tmp_path_factory.mktemp("bad"))
    for code, _, err in run_jobs(MODELS, folder, "local").values():
        assert code == 0, err
    return folder


@pytest.fixture(autouse=True)
def nothing_names_a_cluster(monkeypatch):
    for name in ("PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "SPARK_REMOTE", "SPARK_API_MODE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", HERE)
def test_bad_data_is_refused_in_one_line(folder, name):
    refused(name, OTHER_WORDS.get(name, CASES[name][2]), folder, "local")


def test_outputs_are_untouched_by_all_that_was_refused(folder):
    check_untouched(folder)
