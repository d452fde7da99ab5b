"""Arguments: refused in one last line with exit code 2, every problem named; and how a job ends
that cannot work.
"""

import errno
import logging
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest

from onebit_spark import RequestError, cli
from onebit_spark.certify.certificates import precision_requests
from onebit_spark.cli import running as jobrun
from onebit_spark.cli.flags import GROUPS, as_flag, command_of, flags_of, parse
from onebit_spark.cli.requests import (
    EvaluateRequest,
    FitRequest,
    PositionsRequest,
    PredictRequest,
    local_path,
)
from onebit_spark.cli.running import AGAIN_SECONDS
from onebit_spark.settings import FitConfig

JOBS = {
    "fit": FitRequest,
    "predict": PredictRequest,
    "positions": PositionsRequest,
    "evaluate": EvaluateRequest,
}
SPARK_SESSION = jobrun.spark_session  # the fixture below replaces it


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder with an input, where nothing may start Spark."""
    monkeypatch.chdir(tmp_path)
    for name in ("PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "SPARK_REMOTE", "SPARK_API_MODE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "in.parquet").touch()

    def no_spark(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobrun, "spark_session", no_spark)
    # Its thread would outlive the test
    monkeypatch.setattr(jobrun, "in_background", lambda *_: None)
    return tmp_path


GOOD = {
    "fit": ["--ratings", "in.parquet", "--output", "out"],
    "predict": ["--model", "in.parquet", "--pairs", "in.parquet", "--output", "out"],
    "positions": ["--model", "in.parquet", "--output", "out"],
    "evaluate": ["--model", "in.parquet", "--ratings", "in.parquet"],
}


def refusal(capsys, job, arguments):
    """The one line with which a job is refused."""
    assert getattr(cli, job)(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


def request_of(*arguments, job="fit"):
    return parse(JOBS[job], job, [*GOOD[job], *arguments])


def config_file(folder, text):
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return ["--config", str(path)]


# ---- good requests -----------------------------------------------------------------------------


@pytest.mark.parametrize("job", JOBS)
def test_good_arguments_reach_spark(job, capsys):
    """A fault in the session is exit code 1, so the arguments were accepted."""
    assert getattr(cli, job)(GOOD[job]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: AssertionError: Spark was started"


def test_flags_that_are_no_settings_arrive():
    """Those of settings are in test_settings.py."""
    text = (
        "--format csv --option sep=; --option nullValue=a=b --user-col u --item-col i --label-col "
        "y --threshold -3.5"
        " --weight-col w --holdout 0.1 --predict in.parquet --predictions preds --overwrite --quiet"
    )
    request = request_of(*text.split())
    assert (request.format, request.option) == ("csv", {"sep": ";", "nullValue": "a=b"})
    assert (request.user_col, request.item_col) == ("u", "i")
    assert (request.label_col, request.weight_col, request.threshold) == ("y", "w", -3.5)
    assert (request.holdout, request.predict, request.predictions) == (0.1, "in.parquet", "preds")
    assert request.overwrite
    assert request.quiet


@pytest.mark.parametrize("job", JOBS)
def test_help_names_every_flag(job, capsys):
    with pytest.raises(SystemExit) as ended:
        getattr(cli, job)(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in flags_of(JOBS[job]):
        assert as_flag(name) in text


# ---- the config file ---------------------------------------------------------------------------


def test_flags_win_over_the_file_and_the_file_over_the_defaults(here):
    text = (
        'rank = 4\nmax-iter = 5\nmax_iter = 6\nloss = "hinge"\ntol = 1\nintercepts = '
        "false\n[option]\nheader = true\n"
    )
    request = request_of(*config_file(here, text), "--rank", "8", "--intercepts")
    assert request.fit_config == FitConfig(rank=8, max_iter=6, loss="hinge", tol=1.0)
    assert request.option == {"header": "true"}


def test_the_file_can_name_all_paths(here):
    arguments = config_file(here, 'ratings = "in.parquet"\noutput = "out"\nuser-col = "u"')
    request = parse(FitRequest, "fit", arguments)
    assert (request.ratings, request.output, request.user_col) == ("in.parquet", "out", "u")


def test_the_example_config_is_accepted_with_every_line_in_use(here, request):
    """As it stands, and with all its commented keys uncommented."""
    text = (request.config.rootpath / "conf" / "fit.toml").read_text(encoding="utf-8")
    text = re.sub("data/(ratings|pairs|users|items)", "in.parquet", text)
    everything = re.sub(r"^# (?=[\w-]+ = |\[)", "", text, flags=re.MULTILINE)
    for version in (text, everything):
        fit = parse(FitRequest, "fit", [*config_file(here, version), "--output", "out"])
        assert fit.ratings == "in.parquet"
    assert fit.option == {"sep": ";", "header": "true"}
    assert (fit.max_error, fit.certify_by) == ((0.05,), "country")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("0.1,0.05", (0.1, 0.05)), ("0.05", (0.05,)), ([0.2, 0.1], (0.2, 0.1)), (0.25, (0.25,))],
)
def test_error_rates_come_as_a_list(here, given, expected):
    command = ["--holdout", "0.1", *(["--max-error", given] if isinstance(given, str) else [])]
    file = "" if isinstance(given, str) else f"max-error = {given}"
    assert (
        parse(FitRequest, "fit", [*GOOD["fit"], *config_file(here, file), *command]).max_error
        == expected
    )
    assert parse(FitRequest, "fit", GOOD["fit"]).max_error == ()


@pytest.mark.parametrize("given", ["0.9,negative:0.99", "0.8", [0.9, "negative:0.99"], 0.9])
def test_precisions_come_as_a_list(here, given):
    command = ["--holdout", "0.1", *(["--min-precision", given] if isinstance(given, str) else [])]
    file = "" if isinstance(given, str) else f"min-precision = {given}"
    request = parse(FitRequest, "fit", [*GOOD["fit"], *config_file(here, file), *command])
    assert precision_requests(request.min_precision) == precision_requests(given)
    text = given if isinstance(given, str) else ",".join(map(str, np.atleast_1d(given)))
    assert f"--min-precision {text}" in command_of("fit", request)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--min-precision", "0.9"],
            "--min-precision needs ratings that are not fitted: add --holdout 0.1",
        ),
        (
            ["--holdout", "0.1", "--min-precision", "90"],
            "--min-precision must hold precisions strictly between 0 and 1",
        ),
        (
            ["--holdout", "0.1", "--min-precision", "0.9,neg:0.9"],
            "such as 0.9 or negative:0.99, not 'neg:0.9'",
        ),
    ],
)
def test_precisions_are_checked(flags, message):
    with pytest.raises(RequestError, match=message):
        parse(FitRequest, "fit", [*GOOD["fit"], *flags])


BAD_FILES = {
    "rnak = 3": ["unknown key 'rnak'", "allowed keys:", "rank", "max-iter"],
    'config = "other.toml"': ["unknown key 'config'"],
    "rank = \n": ["is not TOML", "line 1"],
    'rank = "many"': ["--rank must be an integer or auto, not 'many' (in ", "job.toml)"],
    "rank = 2.5": ["must be an integer or auto, not '2.5'"],
    "rank = true": ["must be an integer or auto, not 'true'"],
    'overwrite = "yes"': ["must be true or false, not 'yes'"],
    "ratings = 3": ["ratings must be text, not 3"],
    'loss = "huber"': ["must be one of hinge, logistic, not 'huber'"],
    "option = 3": ["must be key=value"],
    'max-iter = "many"': ["--max-iter must be an integer, not 'many'"],
    'max_iter = "many"': ["--max-iter must be an integer, not 'many'"],
    'no-report = "yes"': ["no-report must be true or false, not 'yes'"],
    "no-rank = true": ["unknown key 'no-rank'"],
    "rank = 0": ["--rank must be an integer of at least 1"],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-report = true", False),
        ("no_report = false", True),
        ("report = true\nno-report = true", False),
        ("no-report = true\nreport = true", True),
    ],
)
def test_a_config_file_takes_the_opposite_of_a_flag_as_the_command_line_does(here, text, expected):
    assert parse(FitRequest, "fit", [*GOOD["fit"], *config_file(here, text)]).report is expected
    assert not parse(
        FitRequest, "fit", [*GOOD["fit"], *config_file(here, text), "--no-report"]
    ).report


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_bad_config_file_is_refused(here, capsys, text):
    line = refusal(capsys, "fit", [*GOOD["fit"], *config_file(here, text)])
    assert all(words in line for words in BAD_FILES[text]), line


def test_a_missing_config_file_is_refused(capsys):
    assert "nowhere.toml cannot be read" in refusal(
        capsys, "fit", [*GOOD["fit"], "--config", "nowhere.toml"]
    )


# ---- bad arguments -----------------------------------------------------------------------------

BAD_VALUES = {
    ("--loss", "huber"): "--loss must be one of hinge, logistic, not 'huber'",
    (
        "--format",
        "orc",
    ): "--format must be one of parquet, csv, json, delta, iceberg, hudi, not 'orc'",
    ("--solver", "gradient"): "--solver 'gradient' belongs to the hinge loss",
    ("--rank", "0"): "--rank must be an integer of at least 1 or auto, not 0",
    ("--rank", "two"): "--rank must be an integer or auto, not 'two'",
    ("--alpha", "0"): "--alpha must be a positive finite number",
    ("--likelihood-weight", "nan"): "--likelihood-weight must be a positive finite number",
    ("--seed", "-1"): "--seed must be an integer from 0 to 2^63 − 1, not -1",
    ("--delta", "0"): "--delta must lie strictly between 0 and 1, not 0.0",
    ("--holdout", "1"): "--holdout must lie strictly between 0 and 1",
    ("--delta", "1.5"): "--delta must lie strictly between 0 and 1",
    ("--threshold", "nan"): "--threshold must be a finite number",
    ("--threshold", "high"): "--threshold must be a number, not 'high'",
    ("--option", "header"): "--option must be key=value, not 'header'",
    ("--user-col", ""): "--user-col must be text that is not empty",
    ("--user-col", "item"): "must name three different columns",
    (
        "--predict",
        "in.parquet",
    ): "--predict PAIRS and --predictions FOLDER (or --output-table TABLE) go together",
    ("--rnak", "3"): "unknown flag --rnak: did you mean --rank?",
    ("--exchange", "telepathy"): "auto, driver, broadcast, mixed, shuffle",
    ("--resume",): "--resume needs --checkpoint-dir",
    (
        "--holdout",
        "0.1",
        "--max-error",
        "0.1,x",
    ): "must be a number, or several numbers separated by commas",
    (
        "--holdout",
        "0.1",
        "--max-error",
        "0.1,0.5",
    ): "--max-error must hold error rates strictly between 0 and 0.5",
    ("--max-error", "0.1"): "--max-error needs ratings that are not fitted: add --holdout 0.1",
    ("--certify-by", "age"): "--certify-by needs ratings that are not fitted",
    ("--rank",): "expected one argument",
    ("stray",): "unexpected argument 'stray'",
}


@pytest.mark.parametrize("arguments", BAD_VALUES, ids=" ".join)
def test_bad_arguments_are_refused(capsys, arguments):
    assert BAD_VALUES[arguments] in refusal(capsys, "fit", [*GOOD["fit"], *arguments])


@pytest.mark.parametrize(
    ("flag", "value"),
    [("max-error", "0.1"), ("delta", "0.1"), ("delta", "0.05"), ("certificate-grid", "1")],
)
def test_terms_and_error_rates_of_an_evaluation_need_a_certificate(capsys, flag, value):
    line = refusal(capsys, "evaluate", [*GOOD["evaluate"], f"--{flag}", value])
    assert f"--{flag} needs a certificate: add --certify" in line


@pytest.mark.parametrize("arguments", [[], ["--runtime", "spark"]])
def test_a_job_that_needs_spark_where_it_is_not_installed(capsys, monkeypatch, arguments):
    monkeypatch.setattr(jobrun, "find_spec", lambda _: None)
    line = refusal(capsys, "fit", [*GOOD["fit"], *arguments])
    assert (
        "this job needs Spark, which is not installed: pip install '.[spark]' in a clone of "
        "onebit_spark" in line
    )


@pytest.mark.parametrize("exchange", ["driver", "shuffle"])
def test_a_fit_compiles_while_spark_starts(exchange, monkeypatch):
    """Also where executors fit: they take the driver's kernels."""
    calls = []
    monkeypatch.setattr(jobrun, "compile_ahead", lambda *settings: calls.append(settings))
    jobrun._warm_up(
        parse(FitRequest, "fit", [*GOOD["fit"], "--exchange", exchange, "--no-report"]), "local"
    )
    assert len(calls) == 1


IN_A_FRESH_PROCESS = """
import sys
from onebit_spark.__main__ import main
codes = [main(["--version"]), main(["fit", "--rnak", "3"]), main(["evaluate", "--model", "m"])]
print(codes, sorted({"numpy", "numba", "pyarrow", "scipy", "pyspark"} & set(sys.modules)))
"""


def test_a_wrong_flag_is_answered_before_anything_large_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "[0, 2, 2] []", done.stderr


INTERRUPTED_BY_AN_IMPORT = """
import signal, sys
module, sys.argv[1:] = sys.argv[1], ["fit", "--ratings", "in.csv", "--output", "out"]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
import onebit_spark.__main__
sys.exit(onebit_spark.__main__.command())
"""


@pytest.mark.parametrize(
    "module",
    [
        "onebit_spark.cli.requests",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("pyarrow", "numba")),
    ],
)
def test_an_interrupt_during_an_import(here, module):
    """As in the first second of a job: one line, no traceback."""
    (here / "in.csv").write_text("user,item,label\na,b,1\nc,b,0\n")
    command = [sys.executable, "-c", INTERRUPTED_BY_AN_IMPORT, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1].startswith("interrupted.")
    assert "Traceback" not in done.stderr


def test_help_is_in_groups_and_fits_the_terminal(capsys, monkeypatch):
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            cli.fit(["--help"])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) < int(columns)
        assert [line for line in lines if re.fullmatch(r"\S.*:", line)] == [
            f"{title}:" for title in (*GROUPS, "help")
        ]
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    assert len(shown) <= 46
    assert shown[:10] == list(map(as_flag, FitRequest.main))


@pytest.mark.parametrize("job", JOBS)
def test_required_flags(capsys, job):
    line = refusal(capsys, job, [])
    for name in GOOD[job][::2]:
        assert f"{name} is required" in line or re.search(f"give (either )?{name} ", line)


def test_all_problems_stand_in_one_line(capsys):
    arguments = [
        "--ratings",
        "nowhere",
        "--rank",
        "0",
        "--alpha",
        "x",
        "--loss",
        "huber",
        "--sed",
        "3",
    ]
    line = refusal(capsys, "fit", arguments)
    assert line.startswith("error: ")
    assert "7 problems" in line
    for words in (
        "--ratings nowhere does not exist",
        "--rank",
        "--alpha",
        "--loss",
        "--seed?",
        "--output is required",
    ):
        assert words in line


def test_missing_inputs(capsys):
    arguments = ["--model", "m", "--pairs", "p", "--output", "out"]
    line = refusal(capsys, "predict", arguments)
    assert "--model m does not exist" in line
    assert "--pairs p does not exist" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --pairs PATH or --top N"),
        (["--pairs", "in.parquet", "--top", "3"], "give either --pairs PATH or --top N"),
        (["--top", "0"], "--top must be an integer of at least 1, not 0"),
        (
            ["--pairs", "in.parquet", "--exclude-seen", "in.parquet"],
            "--exclude-seen belongs to --top N",
        ),
        (["--top", "3", "--exclude-seen", "nowhere"], "--exclude-seen nowhere does not exist"),
    ],
)
def test_what_predict_is_asked_for(capsys, arguments, message):
    assert message in refusal(
        capsys, "predict", ["--model", "in.parquet", "--output", "out", *arguments]
    )


@pytest.mark.parametrize("path", ["out", "file:{here}/out", "file://{here}/out"])
def test_an_existing_output_is_refused_and_untouched(capsys, here, path):
    (here / "out").mkdir()
    (here / "out" / "keep").write_text("mine")
    arguments = ["--ratings", "in.parquet", "--output", path.format(here=here)]
    assert "exists already: choose another path or add --overwrite" in refusal(
        capsys, "fit", arguments
    )
    assert (here / "out" / "keep").read_text() == "mine"
    assert parse(FitRequest, "fit", [*arguments, "--overwrite"]).overwrite


def test_an_output_may_not_hold_what_is_read(capsys, here):
    (here / "data").mkdir()
    (here / "data" / "ratings.csv").touch()
    arguments = ["--ratings", "data/ratings.csv", "--output", "data", "--overwrite"]
    assert "lies in --output data, which is replaced as a whole" in refusal(
        capsys, "fit", arguments
    )
    arguments = [*GOOD["fit"], "--predict", "in.parquet", "--predictions", "./out"]
    assert "--predictions ./out lies in --output out" in refusal(capsys, "fit", arguments)
    assert request_of("--predict", "in.parquet", "--predictions", "out-2").predictions == "out-2"
    figures = ["--model", "data", "--ratings", "in.parquet", "--output", "data/metrics.json"]
    assert parse(EvaluateRequest, "evaluate", figures).output == "data/metrics.json"


def test_what_is_certainly_local(monkeypatch):
    assert str(local_path("a/b")) == "a/b"
    assert str(local_path("file:///a/b")) == "/a/b"
    assert local_path("hdfs://host/a") is None
    # Under spark-submit the default file system may be another
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert local_path("a/b") is None
    assert str(local_path("file:/a/b")) == "/a/b"


@pytest.fixture
def good_arguments(tmp_path, monkeypatch):
    monkeypatch.setattr(jobrun, "spark_session", SPARK_SESSION)
    return ["--ratings", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]


@pytest.mark.parametrize("where", ["flag", "SPARK_REMOTE"])
def test_a_connect_server_that_does_not_answer(capsys, monkeypatch, good_arguments, where):
    """At once, and not after the minutes that Spark tries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no server listens there
        address = f"sc://127.0.0.1:{taken.getsockname()[1]}/;token=secret"
        if where == "flag":
            good_arguments += ["--remote", address]
        else:
            monkeypatch.setenv("SPARK_REMOTE", address)
        message = refusal(capsys, "fit", good_arguments)
    assert "no Spark Connect server answers at 127.0.0.1:" in message
    assert "secret" not in message


JAVA = """An error occurred while calling o31.parquet.
: org.apache.spark.SparkException: [SOME_CONDITION] Something broke in file:/x.
And more of it. SQLSTATE: KD001
\tat org.apache.spark.Some.method(Some.scala:1)
"""
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 9, in <lambda>
    1/0
    ~^~
ZeroDivisionError: division by zero

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


NO_SPACE = "No space left on device"
FULL = "the disk is full: free some space on the disk of "


class Py4JJavaError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Py4JJavaError(JAVA), "[SOME_CONDITION] Something broke in file:/x. And more of it."),
        (Py4JJavaError(JAVA + "Caused by: java.io.IOException: disk full\n\tat x"), "disk full"),
        (
            Py4JJavaError(JAVA + "Caused by: java.lang.OutOfMemoryError: Java heap space"),
            "Spark ran out of memory",
        ),
        (RuntimeError(WORKER), "ZeroDivisionError: division by zero"),
        (
            RuntimeError(WORKER.replace("ZeroDivisionError", "onebit_spark.errors.FitFailed")),
            "division by zero",
        ),
        (RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway"), "Spark did not start"),
        (ConnectionRefusedError("x"), "Spark's driver ended unexpectedly"),
        (
            Py4JJavaError(JAVA + f"Caused by: java.io.IOException: {NO_SPACE}"),
            FULL + "the output, or on that of spark.",
        ),
        (OSError(errno.ENOSPC, NO_SPACE, "/m/users"), FULL + "/m/users"),
        (KeyError("a\nb"), r"KeyError: 'a\nb'"),
        (MemoryError(), "MemoryError"),
        (OSError("x" * 2000), "OSError: xxx"),
    ],
)
def test_the_telling_line_of_a_failure(error, reason):
    message = jobrun.reason_of(error)
    assert message.startswith(reason)
    assert "\n" not in message
    assert len(message) < 700


def run(monkeypatch, work, arguments, advice=""):
    """A fit that does this work on a session that is none."""
    monkeypatch.setattr(jobrun, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("onebit_spark.cli.fit_job.fit", work)
    monkeypatch.setattr("onebit_spark.cli.fit_job.how_to_resume", lambda *_: advice)
    return cli.fit(arguments)


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (RequestError("wrong:\n  column 'x'"), 2, "error: wrong: column 'x'"),
        (jobrun.FitFailed("diverged"), 1, "error: diverged"),
        (ZeroDivisionError("oops"), 1, "error: ZeroDivisionError: oops"),
        (
            OSError("[FAILED_READ_FILE.X] Error while reading file file:/a.b. SQLSTATE: 1"),
            2,
            "error: the file file:/a.b ",
        ),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_how_a_job_ends(monkeypatch, capsys, good_arguments, failure, code, line, debug):
    def work(runtime, request):
        raise failure

    monkeypatch.setenv("ONEBIT_DEBUG", "1" if debug else "")
    assert run(monkeypatch, work, good_arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(line)
    assert len(lines) == 1 or debug


def test_a_signal_counts_more_than_what_it_broke(monkeypatch, capsys, good_arguments):
    """The JVM of spark-submit has the signal too.

    A call that it does not answer is no failure of the fit.
    """

    def work(spark, request):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise ConnectionRefusedError("the JVM is gone")

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    advice = "Go on with --resume."
    assert run(monkeypatch, work, good_arguments, advice) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"interrupted. {advice}\n"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert logging.getLogger().isEnabledFor(logging.ERROR)


def test_a_signal_in_a_finaliser_is_not_lost(monkeypatch, capsys, good_arguments):
    """Python ignores what is raised there.

    py4j has many finalisers, so a signal often comes in one of them.
    """

    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work(spark, request):
        Interrupted()
        began = time.monotonic()
        try:
            while time.monotonic() < began + 30:
                time.sleep(0.01)
        finally:
            time.sleep(2 * AGAIN_SECONDS)  # what is on its way out is left in peace
            tidied.append(time.monotonic() - began)

    tidied = []
    assert run(monkeypatch, work, good_arguments) == 128 + signal.SIGTERM
    assert tidied[0] < 20
    assert capsys.readouterr().err == "interrupted.\n"
