"""Executors, workers and the driver die while a fit runs on a standalone cluster; the model is that of a quiet run."""

import signal
from functools import cache, partial

import pytest
from eventlog import BLOCKING, CERTIFICATE, CHECKPOINT, COLUMNS_STEP, PRIOR_SPLIT, ROWS_STEP, START, SURVEY, WRITING
from faultyfit import EXCHANGES, ITERATIONS, ClusterFit, assert_same_fit, exchange_flags, write_ratings
from standalone import descendants, send, wait_for

pytestmark = pytest.mark.cluster

PHASES = (SURVEY, BLOCKING, START, ROWS_STEP, COLUMNS_STEP, WRITING)
STRAGGLING = (ROWS_STEP, "iteration 4, rows", "iteration 5, rows")
DRAWS = "--no-implicit-features"  # only then are draws from the posterior certified


@pytest.fixture(scope="module", params=EXCHANGES)
def exchange(request):
    return request.param


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    path = tmp_path_factory.mktemp("ratings") / "ratings.parquet"
    write_ratings(path)
    return path


@pytest.fixture(scope="module")
def quiet(session_cluster, package_zip, tmp_path_factory, ratings, exchange):
    """Undisturbed fits, one for each list of arguments."""

    @cache
    def run(*arguments):
        session_cluster.make_whole()
        folder, flags = tmp_path_factory.mktemp("quiet"), exchange_flags(exchange)
        return ClusterFit(session_cluster, package_zip, folder, ratings, "--holdout", 0.1, *flags, *arguments).run()

    return run


@pytest.fixture
def make_fit(cluster, package_zip, tmp_path, ratings, exchange):
    def make(name, *arguments, settings=None):
        arguments = ("--holdout", 0.1, *exchange_flags(exchange), *arguments)
        return ClusterFit(cluster, package_zip, tmp_path / name, ratings, *arguments, settings=settings)

    return make


def assert_undisturbed(fit, undisturbed):
    assert_same_fit(fit, undisturbed.objectives, undisturbed.scores)
    assert fit.bounds == pytest.approx(undisturbed.bounds, rel=1e-3)  # a score next to 0 may change sides


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_deaths_in_every_phase(cluster, quiet, make_fit, victim):
    """One dies in each phase of the same fit. Where workers die, draws are counted: without implicit features."""
    kill = {"executor": cluster.kill_executor, "worker": cluster.replace_worker}[victim]
    more, phases = ((), PHASES) if victim == "executor" else ((DRAWS,), (*PHASES[:-1], CERTIFICATE, WRITING))
    fit = make_fit("fit", *more).disturbed(dict.fromkeys(phases, kill))
    print(f"lost: {fit.log.lost_executors()}")
    assert not [phase for phase in phases if not fit.log.lost_tasks(phase)], "no process died in a task of these"
    assert ("seeger" in fit.bounds) == (victim == "worker")
    assert_undisturbed(fit, quiet(*more))


def test_a_worker_dies_while_ratings_are_split(cluster, quiet, make_fit):
    """A learnt prior is fitted to blocks that were made from blocks."""
    split = ("--certificate-prior-split", 0.5)
    fit = make_fit("fit", *split).disturbed({PRIOR_SPLIT: cluster.kill_worker})
    assert fit.log.lost_tasks(PRIOR_SPLIT)
    assert_undisturbed(fit, quiet(*split))


def test_the_driver_dies_and_the_fit_is_resumed(cluster, quiet, make_fit, tmp_path):
    """The driver dies in the first fit, and in two that resume it. The next one goes on to the end."""
    checkpoints = ("--checkpoint-dir", tmp_path / "checkpoints", "--checkpoint-interval", 3, "--resume")
    for number, phase in enumerate((COLUMNS_STEP, CHECKPOINT, WRITING)):
        killed = make_fit(f"killed-{number}", *checkpoints)
        with killed.started() as process:
            killed.reaches(phase, process)
            killed.kill_driver(process)
        assert not killed.model.exists()
        assert [place.name for place in (tmp_path / "checkpoints").iterdir() if not place.name.startswith(".")]
        cluster.make_whole()
    resumed = make_fit("resumed", *checkpoints).run()
    assert len(resumed.objectives) == ITERATIONS
    assert_undisturbed(resumed, quiet())
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_straggler_is_overtaken(cluster, quiet, make_fit):
    """Speculative execution: while the Python processes of an executor stand still, another does their task."""
    eager = {"enabled": "true", "interval": "50ms", "multiplier": 1.1, "quantile": 0.1, "minTaskRuntime": "100ms"}
    settings = {f"spark.speculation.{name}".replace(".enabled", ""): value for name, value in eager.items()}
    fit = make_fit("fit", settings=settings)
    with fit.started() as process:
        for step in STRAGGLING:  # a short task can end before it is stopped: then the next step is tried
            job = fit.reaches(step, process)
            executor = fit.stopped_executor(step)
            stopped = descendants(executor)
            send(signal.SIGSTOP, stopped)
            send(signal.SIGCONT, [executor])  # it goes on, its Python processes stand still
            try:
                wait_for(partial(fit.log.ended, job), 60, "the end of a half step without its straggler", every=0.01)
            finally:
                send(signal.SIGCONT, stopped)
            if overtaken(fit, step):
                break
        fit.ends_well(process)
    assert any(overtaken(fit, step) for step in STRAGGLING)
    assert_undisturbed(fit, quiet())


def overtaken(fit, step):
    """Whether a second attempt at a task of this step has succeeded."""
    attempts = [event["Task Info"] | event["Task End Reason"] for event in fit.log.tasks_of(step)]
    return any(task["Speculative"] and task["Reason"] == "Success" for task in attempts)
