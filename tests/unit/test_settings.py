"""A setting is declared once: its flag, config key, Param and the words for what is wrong follow
from there.
"""

import inspect
import json
import re
import tomllib
from dataclasses import fields, replace

import pytest
from pyspark.ml.param import Param

from onebit_spark import FitConfig, Terms
from onebit_spark.cli.flags import as_flag, parse
from onebit_spark.cli.requests import FitRequest
from onebit_spark.core.losses import LOSSES
from onebit_spark.core.priors import PRIORS
from onebit_spark.core.spectral import STARTS
from onebit_spark.settings import Execution, Problem, declared, param_names
from onebit_spark.spark.estimator import OneBitCompletion
from onebit_spark.spark.params import TABLES, FitParams, PredictionParams, settings_with_params

ANOTHER = {str: "elsewhere", int: 7, float: 0.25}


def unlike_the_default(table):
    """A value of the table whose every setting with a Param differs from its default."""
    values = {}
    for name, item in declared(table).items():
        choices = [choice for choice in item.choices if choice != item.default]
        value = (
            choices[-1]
            if choices
            else not item.default
            if item.kind is bool
            else ANOTHER[item.kind]
        )
        assert value != item.default
        values[name] = value if item.param else item.default
    return table(**values)


@pytest.mark.parametrize("table", TABLES)
def test_every_field_is_a_setting_with_a_help(table):
    assert list(declared(table)) == [item.name for item in fields(table)]
    for item in declared(table).values():
        assert item.help
        assert item.optional == (item.default is None)
        assert item.problem(item.default) is None
    assert table().problems() == unlike_the_default(table).problems() == []


def test_the_written_params_are_those_of_the_tables():
    """Each has a Param with a getter and a setter, and an argument of its type, in the order of the
    tables.
    """
    written = {name: value for name, value in vars(FitParams).items() if isinstance(value, Param)}
    assert list(written) == list(settings_with_params())
    arguments = inspect.signature(FitParams.__init__).parameters
    for name, item in settings_with_params().items():
        capital = name[0].upper() + name[1:]
        assert written[name].name == name
        for verb in ("get", "set"):
            method = getattr(FitParams, verb + capital)
            assert method.__name__ == verb + capital
            assert written[name].doc in method.__doc__
        kind = (
            item.kind.__name__
            + (" | str" if item.words else "")
            + (" | None" if item.optional else "")
        )
        assert arguments[name].annotation == kind
        assert (getattr(OneBitCompletion(), "get" + capital)() is None) == item.optional


def test_the_constructor_takes_every_param_with_its_default():
    taken = inspect.signature(OneBitCompletion.__init__).parameters
    settings = {name: item.default for name, item in settings_with_params().items()}
    shared = PredictionParams()
    expected = {**settings, **{param.name: shared.getOrDefault(param) for param in shared.params}}
    assert {name: item.default for name, item in taken.items() if name != "self"} == expected
    assert {param.name for param in OneBitCompletion().params} == set(expected)


def test_arguments_are_keywords_and_known():
    with pytest.raises(TypeError, match="takes keyword arguments only"):
        OneBitCompletion("user")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rnak'"):
        OneBitCompletion(rnak=3)


def test_params_hand_every_setting_on():
    config, execution, terms = (
        unlike_the_default(table) for table in (FitConfig, Execution, Terms)
    )
    estimator = OneBitCompletion(
        **{
            param: getattr(table, name)
            for table in (config, execution, terms)
            for name, param in param_names(type(table)).items()
        }
    )
    assert (estimator.fitConfig(), estimator.execution(), estimator.certificateTerms()) == (
        config,
        execution,
        terms,
    )
    plain = OneBitCompletion()
    assert (plain.fitConfig(), plain.execution(), plain.certificateTerms()) == (
        FitConfig(),
        Execution(),
        Terms(),
    )


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "in.parquet").touch()
    return ["--ratings", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]


def flags_for(settings):
    """The settings of an object as a command line."""
    for name, item in declared(type(settings)).items():
        value = getattr(settings, name)
        if item.key and item.kind is bool:
            yield as_flag(item.key if value else f"no_{item.key}")
        elif item.key:
            yield from (as_flag(item.key), str(value))


def test_flags_hand_every_setting_on(arguments, monkeypatch):
    # As if there were a device for all
    monkeypatch.setattr("onebit_spark.cli.requests.device_problems", lambda *_: [])
    config, execution, terms = (
        unlike_the_default(table) for table in (FitConfig, Execution, Terms)
    )
    request = parse(
        FitRequest,
        "fit",
        [*arguments, *(word for x in (config, execution, terms) for word in flags_for(x))],
    )
    assert request.fit_config == config
    no_flags = {
        name: item.default for name, item in declared(Execution).items() if item.key is None
    }
    assert request.execution == replace(execution, **no_flags)
    assert request.terms == terms
    plain = parse(FitRequest, "fit", arguments)
    assert (plain.fit_config, plain.execution, plain.terms) == (FitConfig(), Execution(), Terms())


def test_the_example_config_shows_every_key_and_its_default(request):
    text = (request.config.rootpath / "conf" / "fit.toml").read_text(encoding="utf-8")
    shown = tomllib.loads(re.sub(r"^# (?=[\w-]+ = |\[)", "", text, flags=re.MULTILINE))
    for item in (item for table in TABLES for item in declared(table).values() if item.key):
        value = shown[item.key.replace("_", "-")]
        assert value == item.default or item.optional


def test_a_config_file_hands_every_setting_on(arguments, tmp_path):
    config = unlike_the_default(FitConfig)
    values = {
        item.key: getattr(config, name) for name, item in declared(FitConfig).items() if item.key
    }
    lines = [f"{key.replace('_', '-')} = {json.dumps(value)}\n" for key, value in values.items()]
    (tmp_path / "chosen.toml").write_text("".join(lines))
    request = parse(FitRequest, "fit", [*arguments, "--config", str(tmp_path / "chosen.toml")])
    assert request.fit_config == config


def test_a_setting_stands_where_it_is_declared_and_where_it_acts(request):
    package = request.config.rootpath / "onebit_spark"
    names = re.compile(r"\b(checkpoint_interval|checkpointInterval)\b")
    files = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if names.search(file.read_text("utf-8"))
    }
    recipe = (
        (package.parent / "docs" / "ARCHITECTURE.md")
        .read_text("utf-8")
        .partition("### A new setting")[2]
    )
    assert files == {"settings.py", "spark/params.py", "fit.py"}
    assert all(f"`{file}" in recipe for file in files)


def test_the_guide_shows_every_flag_of_a_fit(request):
    guide = (request.config.rootpath / "docs" / "settings.md").read_text("utf-8")
    for item in (item for item in declared(FitConfig).values() if item.key):
        assert f"`{as_flag(item.key)}`" in guide
        assert f"`{item.param}`" in guide


@pytest.mark.parametrize("table", TABLES)
def test_a_table_documents_itself(table):
    for name, item in declared(table).items():
        assert f"\n    {name} : " in table.__doc__
        if "{" not in item.help:
            documented = " ".join(table.__doc__.split())
            assert item.help[1:] in documented


def test_each_front_end_has_its_own_name_of_a_field():
    problem = Problem("resume", "needs {other}: where?", other="checkpoint_dir")
    assert str(problem) == "resume needs checkpoint_dir: where?"
    assert problem.in_words({"resume": "--resume", "checkpoint_dir": "--checkpoint-dir"}) == (
        "--resume needs --checkpoint-dir: where?"
    )
    assert OneBitCompletion(resume=True).problems() == [
        "resume needs checkpointDir: where is the checkpoint to resume from?"
    ]
    assert OneBitCompletion(
        numUserBlocks=0, likelihoodWeight=-1.0, threshold=float("nan")
    ).problems() == [
        "threshold must be a finite number, not nan",
        "likelihoodWeight must be a positive finite number or auto, not -1.0",
        "numUserBlocks must be an integer of at least 1, not 0",
    ]


def test_the_names_are_those_of_the_registries():
    settings = declared(FitConfig)
    assert (settings["loss"].choices, settings["prior"].choices) == (tuple(LOSSES), tuple(PRIORS))
    assert settings["start"].choices == tuple(STARTS)
