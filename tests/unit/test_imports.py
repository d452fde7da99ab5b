"""Which folder may import which, no circle of files, no Spark where the mathematics is; the package
without its extras.

Every import counts, also one inside a function or under ``TYPE_CHECKING``. What does not count is
that importing ``a.b.c`` runs the ``__init__.py`` of ``a`` and of ``a.b``.
"""

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onebit_spark
from onebit_spark.__main__ import JOBS, main
from onebit_spark.cli import progress as bars
from onebit_spark.demo import agreement, comparison

PACKAGE = Path(onebit_spark.__file__).parent

# Folder or file: what it may import besides itself. Add a new arrow here first; it must point down.
MAY_IMPORT = {
    "errors": "",
    "records": "",  # the type of JSON
    "registry": "",  # implementations that are found by their files
    "settings": "records registry",
    "kernels": "",  # numba with a cache
    "limits": "",
    "core": "records settings registry kernels limits errors",
    "data": "records sessions core settings kernels limits errors",  # files, tables, ids, side features
    "sessions": "records core settings errors",  # what Spark itself offers
    "ratings": "records data sessions core settings limits errors",
    "engines.base": "records core settings",  # what an engine is
    "loop": "records engines.base data core settings errors",
    "certify": "records data model_info loop core settings errors",
    "model_info": "records data core settings errors",
    "report": "records model_info data certify loop core settings errors",
    "simulate": "records core settings errors",
    "engines": "records sessions ratings data loop engines.base model_info core settings kernels "
    "limits errors",
    "predict": "records report model_info ratings data certify loop core settings kernels limits errors",
    "model_folder": "records predict certify model_info data core settings errors",
    "model": "records model_folder predict report model_info ratings data certify loop core settings "
    "errors",
    "fitting": "records engines.base sessions ratings data certify model_info loop core settings errors",
    "ahead": "records fitting engines certify loop core settings kernels",  # kernels compiled ahead
    "fit": "records fitting ahead engines.base ratings data certify model_info loop core settings errors",
    "in_process": (
        "records fit fitting model model_folder predict engines ratings data model_info certify loop core "
        "settings limits errors"
    ),
    "spark": (
        "records in_process fit fitting model model_folder predict report engines sessions "
        "ratings data certify "
        "model_info loop core settings kernels limits errors"
    ),
    "cli": (
        "records __init__ spark in_process fit fitting model model_folder predict report engines "
        "sessions ratings "
        "data certify model_info loop core settings kernels limits errors"
    ),
    "demo": "records cli spark simulate settings",
    "__init__": "records spark model in_process certify loop core settings errors",  # the public face
    "__main__": "records __init__ cli settings",
    "mlflow": "records __init__ model model_folder predict model_info data loop core settings errors",
    "sklearn": "records in_process model predict data core settings errors",
}
# Files of a folder that are a room of their own: the loop that fits runs on any engine.
ROOMS = {
    "kernels.ahead": "ahead",
    "data.limits": "limits",
    "predict.metrics": "core",
    "core.fit_state": "loop",
    "core.solver": "loop",
    "core.model_selection": "loop",
    "data.ratings": "ratings",
    "engines.base": "engines.base",
    "engines.spark.sessions": "sessions",
}
WITHOUT_SPARK = (
    "core",
    "ratings",
    "engines.base",
    "loop",
    "certify",
    "report",
    "simulate",
    "predict",
    "model",
    "model_info",
    "model_folder",
    "fit",
    "in_process",
    "errors",
    "mlflow",
    "sklearn",
)
SPARK = ("pyspark", "py4j")
MODULE = re.compile(r"onebit_spark(\.[a-z_0-9]+)+")


def name_of(path, package=PACKAGE):
    """core/losses/__init__.py ─► core.losses"""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(name):
    return ROOMS.get(name, name.split(".")[0])


def imported(text):
    """The modules that a file imports, and (module, name) for each name that it takes from one.

    A string that is the path of a module counts too: a process that runs it, or ``import_module``.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and MODULE.fullmatch(str(node.value)):
            yield node.value, None
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path"
            yield from ((node.module or "", alias.name) for alias in node.names)


def arrows_of(texts):
    """file ─► files of the package that it imports; ``from package import module`` is an arrow to
    the module.
    """
    found = {}
    for name, text in texts.items():
        found[name] = set()
        for module, taken in imported(text):
            top, _, inside = module.partition(".")
            if top != "onebit_spark":
                continue
            whole = f"{inside}.{taken}".lstrip(".")
            target = whole if whole in texts else inside or "__init__"
            assert target in texts, f"{name} imports {module}, which is not there"
            found[name].add(target)
        found[name].discard(name)
    return found


def circles_of(arrows):
    """The groups of files that reach each other: Tarjan's strongly connected components of two
    files and more.
    """
    number = {}
    low = {}
    stack = []
    circles = []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for other in arrows[file]:
            if other not in number:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == number[file]:
            circle = set(stack[stack.index(file) :])
            del stack[stack.index(file) :]
            if len(circle) > 1:
                circles.append(circle)

    for file in arrows:
        if file not in number:
            visit(file)
    return circles


def upward(arrows):
    """Imports between rooms that the table does not allow."""
    pairs = [(file, other) for file, others in arrows.items() for other in others]
    rooms = [(file, other, room_of(file), room_of(other)) for file, other in sorted(pairs)]
    return [
        f"{file} -> {other}"
        for file, other, a, b in rooms
        if a != b and b not in MAY_IMPORT.get(a, "").split()
    ]


@pytest.fixture(scope="module")
def arrows():
    return arrows_of({name: path.read_text(encoding="utf-8") for name, path in FILES.items()})


def test_every_room_is_on_the_plan():
    assert {room_of(name) for name in FILES} <= set(MAY_IMPORT)


def test_the_plan_itself_has_no_circle():
    assert not circles_of({room: set(below.split()) for room, below in MAY_IMPORT.items()})


def test_imports_between_rooms_point_down(arrows):
    assert upward(arrows) == []


def test_no_circle_of_files(arrows):
    circles = circles_of(arrows)
    assert not circles, [sorted(circle) for circle in circles]


def test_every_room_says_what_it_is_for():
    rooms = [name for name, path in FILES.items() if path.name == "__init__.py"]
    assert not [
        name
        for name in rooms
        if not ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize("room", WITHOUT_SPARK)
def test_rooms_without_spark(room):
    files = [name for name in FILES if room_of(name) == room]
    assert files
    found = {
        (name, module)
        for name in files
        for module, _ in imported(FILES[name].read_text(encoding="utf-8"))
        if module.split(".")[0] in SPARK
    }
    assert not found


def test_these_checks_can_fail():
    """On a house of four files: a circle through a function and TYPE_CHECKING, and an import that
    points up.
    """
    arrows = arrows_of(
        {
            "core.a": "def late():\n    from onebit_spark.core import b\n",
            "core.b": "if TYPE_CHECKING:\n    from onebit_spark.core.a import A\nfrom "
            "onebit_spark.spark.c import C\n",
            "spark.c": "import onebit_spark.core.d\n",
            "core.d": "import numpy\nrun(['-m', 'onebit_spark.spark.c'])\n",
        }
    )
    assert arrows == {
        "core.a": {"core.b"},
        "core.b": {"core.a", "spark.c"},
        "spark.c": {"core.d"},
        "core.d": {"spark.c"},
    }
    assert sorted(map(sorted, circles_of(arrows))) == [["core.a", "core.b"], ["core.d", "spark.c"]]
    assert upward(arrows) == ["core.b -> spark.c", "core.d -> spark.c"]


def test_only_the_platform_reaches_into_a_session():
    """A SparkContext, the JVM and RDDs exist in classic sessions only."""
    classic = {"sparkContext", "_jdf", "_jvm", "_jsc", "_jsparkSession", "rdd"}
    found = {
        f"{name}: {node.attr}"
        for name, path in FILES.items()
        if name not in ("engines.spark.sessions", "engines.spark.frames", "data.locations")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in classic
    }
    assert not found


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
    assert done.stdout.splitlines() == ["False True", "True onebit_spark.spark.estimator"], (
        done.stderr
    )
    with pytest.raises(AttributeError, match="no attribute 'OneBit'"):
        _ = onebit_spark.OneBit


def test_the_command_lists_its_jobs(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {job} " in text for job in JOBS)
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
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(bars, "tqdm", None)
    terminal = Terminal()
    with bars.TaskProgress(4, "noise", stream=terminal) as progress:
        progress.advance(4, seconds=1.0)
    assert terminal.getvalue() == "noise: 4 of 4 fits\n"


def test_the_times_are_those_of_the_fits(tmp_path):
    """Not of the jobs, of which one draws a report and predicts."""
    for name, objective, fit in (("driver", 1000.0, 5.0), ("blocks", 1000.0001, 36.0)):
        # The start is a part of the fit
        seconds = {
            "survey": 3.0,
            "blocking": 1.0,
            "fit": fit,
            "start": 2.0,
        }
        (tmp_path / name).mkdir()
        info = {"objective_history": [2000.0, objective], "seconds": seconds}
        (tmp_path / name / "metadata.json").write_text(json.dumps(info))
    text = agreement(tmp_path / "driver", tmp_path / "blocks")
    assert text.startswith(
        "Both agree: the objectives, 1000.000000 and 1000.000100, differ by 1e-07 of their size.\n"
    )
    assert "The fit took 9 s on the driver and 40 s by blocks." in text


def test_two_models_are_compared_line_by_line(tmp_path):
    for name, mean in (("one", 0.5), ("two", 0.5), ("other", 0.25)):
        for side in ("users", "items"):
            (tmp_path / name / side).mkdir(parents=True)
            ids = ["a", "b"] if name == "one" else ["b", "a"]
            pq.write_table(
                pa.table({"id": ids, "mean": [mean, mean]}),
                tmp_path / name / side / "part-0.parquet",
            )
    text = comparison(tmp_path / "one", tmp_path / "two", 31.2, 4.4)
    assert text.startswith("The two models are the same to the last bit.")
    assert "it took 31 s,\nand without Spark 4 s." in text
    assert "DIFFER" in comparison(tmp_path / "one", tmp_path / "other", 1, 1)


def test_tests_share_helpers_and_nothing_else():
    """What several tests need is in tests/support/; no test module imports another."""
    tests = Path(__file__).parents[1]
    borrowed = set()
    for path in tests.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            borrowed |= {
                f"{path.name}: {name}"
                for name in modules
                if name.split(".")[-1].startswith("test_")
            }
    assert not borrowed
