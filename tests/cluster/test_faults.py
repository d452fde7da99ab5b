"""Executors, workers and the driver die while a fit runs on a standalone cluster; the model is that of a quiet run."""

import signal
from functools import partial

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
def quiet_run(session_cluster, package_zip, tmp_path_factory, ratings, exchange):
    """Fits that nobody disturbs."""

    def run(*arguments):
        session_cluster.make_whole()
        folder, flags = tmp_path_factory.mktemp("undisturbed"), exchange_flags(exchange)
        return ClusterFit(session_cluster, package_zip, folder, ratings, "--holdout", 0.1, *flags, *arguments).run()

    return run


@pytest.fixture(scope="module")
def undisturbed(quiet_run):
    return quiet_run()


@pytest.fixture(scope="module")
def undisturbed_draws(quiet_run):
    return quiet_run(DRAWS)


@pytest.fixture
def make_fit(cluster, package_zip, tmp_path, ratings, exchange):
    def make(name, *arguments, settings=None):
        arguments = ("--holdout", 0.1, *exchange_flags(exchange), *arguments)
        return ClusterFit(cluster, package_zip, tmp_path / name, ratings, *arguments, settings=settings)

    return make


def assert_undisturbed(fit, undisturbed):
    assert_same_fit(fit, undisturbed.objectives, undisturbed.scores)
    assert fit.bounds == pytest.approx(undisturbed.bounds, rel=1e-3)  # a score next to 0 may change sides


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_a_death_in_the_cluster(cluster, undisturbed, make_fit, victim, phase):
    kill = {"executor": cluster.kill_executor, "worker": cluster.kill_worker}[victim]
    fit = make_fit("fit").disturbed(phase, kill)
    print(f"lost: {fit.log.lost_executors()}")
    assert fit.log.lost_tasks(phase), f"nobody died in a task of {phase}"
    assert_undisturbed(fit, undisturbed)


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_a_death_while_draws_are_counted(cluster, undisturbed_draws, make_fit, victim):
    kill = {"executor": cluster.kill_executor, "worker": cluster.kill_worker}[victim]
    fit = make_fit("fit", DRAWS).disturbed(CERTIFICATE, kill)
    assert fit.log.lost_tasks(CERTIFICATE)
    assert "seeger" in fit.bounds
    assert_undisturbed(fit, undisturbed_draws)


def test_a_worker_dies_while_ratings_are_split(cluster, make_fit):
    """A learnt prior is fitted to blocks that were made from blocks."""
    split = ("--certificate-prior-split", 0.5)
    undisturbed = make_fit("undisturbed", *split).run()
    cluster.make_whole()
    fit = make_fit("fit", *split).disturbed(PRIOR_SPLIT, cluster.kill_worker)
    assert fit.log.lost_tasks(PRIOR_SPLIT)
    assert_undisturbed(fit, undisturbed)


@pytest.mark.parametrize("phase", [COLUMNS_STEP, CHECKPOINT, WRITING])
def test_the_driver_dies_and_the_fit_is_resumed(cluster, undisturbed, make_fit, tmp_path, phase):
    checkpoints = ("--checkpoint-dir", tmp_path / "checkpoints", "--checkpoint-interval", 3)
    killed = make_fit("killed", *checkpoints)
    with killed.started() as process:
        killed.reaches(phase, process)
        killed.kill_driver(process)
    assert not killed.model.exists()
    assert [place.name for place in (tmp_path / "checkpoints").iterdir() if not place.name.startswith(".")]
    cluster.make_whole()
    resumed = make_fit("resumed", *checkpoints, "--resume").run()
    assert len(resumed.objectives) == ITERATIONS
    assert_undisturbed(resumed, undisturbed)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_straggler_is_overtaken(cluster, undisturbed, make_fit):
    """Speculative execution: while the Python processes of an executor stand still, another does their task."""
    eager = {"enabled": "true", "interval": "50ms", "multiplier": 1.1, "quantile": 0.1, "minTaskRuntime": "100ms"}
    settings = {f"spark.speculation.{name}".replace(".enabled", ""): value for name, value in eager.items()}
    fit = make_fit("fit", settings=settings)
    with fit.started() as process:
        for step in STRAGGLING:  # a short task can end before it is stopped: then the next step is tried
            job = fit.reaches(step, process)
            stopped = descendants(fit.busy_executor(step))
            send(signal.SIGSTOP, stopped)
            try:
                wait_for(partial(fit.log.ended, job), 60, "the end of a half step without its straggler", every=0.01)
            finally:
                send(signal.SIGCONT, stopped)
            if overtaken(fit, step):
                break
        fit.ends_well(process)
    assert any(overtaken(fit, step) for step in STRAGGLING)
    assert_undisturbed(fit, undisturbed)


def overtaken(fit, step):
    """Whether a second attempt at a task of this step has succeeded."""
    attempts = [event["Task Info"] | event["Task End Reason"] for event in fit.log.tasks_of(step)]
    return any(task["Speculative"] and task["Reason"] == "Success" for task in attempts)
