"""What the package is without Spark, without its extras, and as a command."""

import subprocess
import sys

import pytest

import onebit_spark
from onebit_spark.__main__ import JOBS, main
from onebit_spark.cli import progress as bars

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
{program}
"""


def run_without(missing, program):
    """In a fresh interpreter that lacks some packages."""
    text = WITHOUT.format(missing=missing, program=program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)


def test_without_spark_a_fit_in_this_process_works():
    program = """
from onebit_spark import FitConfig, fit_arrays
fit = fit_arrays([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], FitConfig(rank=1, tol=0, max_iter=20))
print(fit.predict([0], [0]).tolist())
try:
    from onebit_spark import OneBitCompletion
except ImportError as error:
    print(error)
"""
    done = run_without(["pyspark", "py4j", "pandas", "matplotlib", "tqdm"], program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[1.0]"
    assert "OneBitCompletion needs pyspark" in done.stdout
    assert "pip install '.[spark]'" in done.stdout


def test_the_estimator_is_imported_when_it_is_asked_for():
    program = """
import onebit_spark
print("pyspark" in sys.modules, "OneBitCompletion" in dir(onebit_spark) or "OneBitCompletion" in onebit_spark.__all__)
from onebit_spark import OneBitCompletion
print("pyspark" in sys.modules, OneBitCompletion.__module__)
"""
    done = run_without([], program)
    assert done.stdout.splitlines() == ["False True", "True onebit_spark.estimator"], done.stderr
    with pytest.raises(AttributeError, match="no attribute 'OneBit'"):
        _ = onebit_spark.OneBit


def test_the_command_lists_its_jobs(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {job} " in told for job in JOBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onebit_spark {onebit_spark.__version__}\n"
    assert main(["fitt"]) == 2
    assert "name the job first" in capsys.readouterr().err
    assert main(["reproduce", "tables"]) == 2
    assert capsys.readouterr().err.startswith("error: reproduce is jobs/reproduce.py in a checkout")


@pytest.mark.parametrize("job", JOBS)
def test_every_job_of_the_command_has_help(job, capsys):
    with pytest.raises(SystemExit):
        main([job, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: onebit-spark {job}")


def test_without_tqdm_a_terminal_sees_lines(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    assert bars.bar(3, "x", sys.stderr, "{n}") is None  # no terminal
    monkeypatch.setattr(bars, "tqdm", None)
    assert bars.bar(3, "x", Terminal(), "{n}") is None
