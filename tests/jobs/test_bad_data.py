"""Every row of the table of bad input, on Spark; tests/unit/test_local_bad_input.py has it without Spark."""

import pytest
from badinput import CASES, MODELS, SLOW, check_untouched, refused, written
from smalltables import run_jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("bad"))


@pytest.fixture(scope="module")
def models(spark, folder):
    for code, _, err in run_jobs(MODELS, folder).values():
        assert code == 0, err


def by_default(name):
    """One case of each kind by default: where the same check serves several inputs, the others are slow."""
    return pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name


@pytest.mark.parametrize("name", [by_default(name) for name in CASES])
def test_bad_data_is_refused_in_one_line(models, folder, name):
    refused(name, CASES[name][2], folder, "spark")


def test_outputs_are_untouched_by_all_that_was_refused(folder, models):
    check_untouched(folder)
