"""Executors, workers and the driver die while a fit runs on a standalone cluster; the model is that
of a quiet run.
"""

import signal
from functools import partial

import pytest
from support.eventlog import (
    BLOCKING,
    CERTIFICATE,
    CHECKPOINT,
    COLUMNS_STEP,
    PART,
    ROWS_STEP,
    START,
    SURVEY,
    WRITING,
)
from support.faultyfit import ITERATIONS, ClusterFit, assert_same_fit, quiet_fit, write_ratings
from support.standalone import descendants, send, wait_for

pytestmark = pytest.mark.cluster

STRAGGLING = (ROWS_STEP, "iteration 4, rows", "iteration 5, rows")
EXECUTOR = "kill_executor"
WORKER = "replace_worker"
DEATHS = {  # exchange ─► flags and settings, and who dies in which phase of the same fit
    "broadcast": (
        ("--likelihood-weight", "auto"),  # chosen on blocks that were made from blocks
        {"likelihood_weight": "auto"},
        {
            SURVEY: EXECUTOR,
            BLOCKING: WORKER,
            PART: WORKER,
            START: EXECUTOR,
            ROWS_STEP: WORKER,
            COLUMNS_STEP: EXECUTOR,
            WRITING: WORKER,
        },
    ),
    "shuffle": (
        ("--no-implicit-features",),  # only then are draws from the posterior certified
        {"implicit_features": False},
        {
            SURVEY: WORKER,
            BLOCKING: EXECUTOR,
            START: WORKER,
            ROWS_STEP: EXECUTOR,
            COLUMNS_STEP: WORKER,
            CERTIFICATE: WORKER,
            WRITING: EXECUTOR,
        },
    ),
}


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    path = tmp_path_factory.mktemp("ratings") / "ratings.parquet"
    write_ratings(path)
    return path


@pytest.fixture
def make_fit(cluster, package_zip, tmp_path, ratings):
    def make(name, exchange, *arguments, settings=None):
        arguments = ("--holdout", 0.1, "--exchange", exchange, *arguments)
        return ClusterFit(
            cluster, package_zip, tmp_path / name, ratings, *arguments, settings=settings
        )

    return make


def assert_undisturbed(fit, ratings, **settings):
    """The fit of this process, with its certificates."""
    expected = quiet_fit(ratings, **settings)
    assert_same_fit(fit, expected)
    bounds = {item["name"]: item["bound"] for item in expected.certificate["certificates"]}
    assert fit.bounds == pytest.approx(bounds, rel=1e-3)  # a score next to 0 may change sides


@pytest.mark.parametrize("exchange", DEATHS)
def test_deaths_in_every_phase(cluster, make_fit, ratings, exchange):
    flags, settings, deaths = DEATHS[exchange]
    fit = make_fit("fit", exchange, *flags)
    fit.disturbed({phase: getattr(cluster, victim) for phase, victim in deaths.items()})
    print(f"lost: {fit.log.lost_executors()}")
    assert not [phase for phase in deaths if not fit.log.lost_tasks(phase)], (
        "no process died in a task of these"
    )
    assert "seeger" in fit.bounds or exchange == "broadcast"
    assert_undisturbed(fit, ratings, **settings)


def test_the_driver_dies_and_the_fit_is_resumed(cluster, make_fit, ratings, tmp_path):
    """The driver dies in the first fit, and in two that resume it.

    The next one goes on to the end.
    """
    checkpoints = (
        "--checkpoint-dir",
        tmp_path / "checkpoints",
        "--checkpoint-interval",
        3,
        "--resume",
    )
    for number, phase in enumerate((COLUMNS_STEP, CHECKPOINT, WRITING)):
        killed = make_fit(f"killed-{number}", "shuffle", *checkpoints)
        with killed.started() as process:
            killed.reaches(phase, process)
            killed.kill_driver(process)
        assert not killed.model.exists()
        assert [
            place.name
            for place in (tmp_path / "checkpoints").iterdir()
            if not place.name.startswith(".")
        ]
        cluster.make_whole()
    resumed = make_fit("resumed", "shuffle", *checkpoints).run()
    assert len(resumed.objectives) == ITERATIONS
    assert_undisturbed(resumed, ratings)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_straggler_is_overtaken(make_fit, ratings):
    """Speculative execution: while the Python processes of an executor stand still, another does
    their task.
    """
    eager = {
        "enabled": "true",
        "interval": "50ms",
        "multiplier": 1.1,
        "quantile": 0.1,
        "minTaskRuntime": "100ms",
    }
    settings = {
        f"spark.speculation.{name}".replace(".enabled", ""): value for name, value in eager.items()
    }
    fit = make_fit("fit", "shuffle", settings=settings)
    with fit.started() as process:
        for (
            step
        ) in STRAGGLING:  # a short task can end before it is stopped: then the next step is tried
            job = fit.reaches(step, process)
            executor = fit.stopped_executor(step)
            stopped = descendants(executor)
            send(signal.SIGSTOP, stopped)
            send(signal.SIGCONT, [executor])  # it goes on, its Python processes stand still
            try:
                wait_for(
                    partial(fit.log.ended, job),
                    60,
                    "the end of a half step without its straggler",
                    every=0.01,
                )
            finally:
                send(signal.SIGCONT, stopped)
            if overtaken(fit, step):
                break
        fit.ends_well(process)
    assert any(overtaken(fit, step) for step in STRAGGLING)
    assert_undisturbed(fit, ratings)


def overtaken(fit, step):
    """Whether a second attempt at a task of this step has succeeded."""
    attempts = [event["Task Info"] | event["Task End Reason"] for event in fit.log.tasks_of(step)]
    return any(task["Speculative"] and task["Reason"] == "Success" for task in attempts)
