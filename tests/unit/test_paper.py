"""The paper's experiments, its explicit bounds, and the baselines, against brute force and
optimality conditions.
"""

import hashlib
import http.server
import math
import threading
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from paper import experiments as paper
from paper import figures
from paper import reproduction_page as page
from paper.baselines import davenport
from paper.baselines.davenport import _Projection, fit_davenport
from paper.baselines.simple import fit_logistic
from paper.comparison import paired_comparison
from paper.job import reproduce
from paper.methods import METHODS
from paper.movielens import download_movielens, read_movielens
from paper.planning import Setup, corollary1, corollary2, plan, theorem2
from paper.published import PUBLISHED_ERRORS
from paper.samples import Sample, split
from scipy.special import expit, gammaln

from onebit_spark import RequestError
from onebit_spark.cli import running as jobrun
from onebit_spark.simulate import simulate

META = {
    "date": "2024-01-01",
    "commit": "abc",
    "machine": "m, 2 cores",
    "versions": "v",
    "draws": 2,
    "seeds": "0 to 1",
    "tuning_seeds": "7",
    "fits": 5,
    "task_seconds": 60.0,
    "slots": 2,
    "wall_seconds": 30.0,
}


class Recorder:
    """Runs tasks by a plain function, and keeps them."""

    def __init__(self, work):
        self.work = work
        self.tasks = []

    def __call__(self, tasks):
        self.tasks += tasks
        return [self.work(task) for task in tasks]


def test_the_setting_with_the_fewest_errors_is_reported_and_tuned_on_other_draws():
    grid = METHODS["freq. Logit"].grid
    best = grid[3]

    def work(task):
        if task["do"] == "draw":
            return {"error": 0.25}
        return {
            "errors": [5, 4] if task["setting"] == best else [5, 5 + task["seed"] % 2],
            "sizes": [50, 50],
        }

    cases = tuple(paper.Case.of({"kind": kind}, "freq. Logit") for kind in ("A1", "B1"))
    experiment = paper.Experiment("x", cases, (0, 1, 2), (11, 12))
    recorder = Recorder(work)
    records = experiment.run(recorder)
    assert len(recorder.tasks) == experiment.n_tasks == 2 * (2 * len(grid) + 3)
    assert {task["seed"] for task in recorder.tasks if task["do"] == "tune"} == {11, 12}
    assert [(record["kind"], record["seed"]) for record in records] == [
        (k, s) for k in ("A1", "B1") for s in range(3)
    ]
    assert all(record["setting"] == best and record["error"] == 0.25 for record in records)


def test_the_tables_hold_every_cell_of_the_paper():
    cases = paper.tables(1).cases
    cells = {(case.data["rank"], case.data["kind"], case.method) for case in cases}
    assert set(PUBLISHED_ERRORS) <= cells
    assert cells - set(PUBLISHED_ERRORS) == {
        (rank, "B3", f"known prior, K = {rank}") for rank in (3, 5)
    }


def test_a_simulation_task_measures_all_cells_and_cross_validates_the_observed_ones():
    cell = {"kind": "A1", "rank": 2, "switch": 0.1, "size": 60, "method": "HL-IG", "seed": 3}
    setting = {"kappa": 2.0, "alpha": 0.25, "beta": 0.00025}
    drawn = paper.simulation_task({"do": "draw", **cell, "setting": setting})
    assert drawn["error"] < 0.1
    tuned = paper.simulation_task({"do": "tune", **cell, "setting": setting})
    assert sum(tuned["sizes"]) == 720  # 20% of 60 × 60
    assert sum(tuned["errors"]) < 0.15 * 720


# ---- MovieLens ---------------------------------------------------------------------------------

LINES = "196\t242\t3\t881250949\n186\t302\t4\t891717742\n196\t302\t5\t878887116\n"


def test_u_data_is_read_and_so_is_the_archive(tmp_path):
    (tmp_path / "u.data").write_text(LINES)
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", LINES)
    for name in ("u.data", "ml-100k.zip"):
        sample = read_movielens(tmp_path / name)
        assert sample.shape == (2, 2)
        assert [part.tolist() for part in (sample.rows, sample.cols, sample.labels)] == [
            [1, 0, 1],
            [0, 1, 1],
            [-1, 1, 1],
        ]


@pytest.fixture
def server(tmp_path):
    """An archive at http://…/ml-100k.zip; yields its folder and address."""
    served = tmp_path / "served"
    served.mkdir()
    with zipfile.ZipFile(served / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/u.data", LINES)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=served)
    ) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield served, f"http://127.0.0.1:{running.server_address[1]}/ml-100k.zip"
        running.shutdown()


def test_the_archive_is_fetched_once_and_checked(tmp_path, server):
    served, url = server
    right = hashlib.sha256((served / "ml-100k.zip").read_bytes()).hexdigest()
    data = tmp_path / "data"
    with pytest.raises(RequestError, match=f"its SHA-256 is {right}, expected 0000"):
        download_movielens(data, url, "0000")
    assert list(data.iterdir()) == []  # nothing wrong is left to be found next time
    path = download_movielens(data, url, right)
    assert len(read_movielens(path)) == 3
    (served / "ml-100k.zip").unlink()
    assert download_movielens(data, url, right) == path  # it is there already
    path.write_bytes(b"damaged")
    with pytest.raises(RequestError, match=r"cannot be fetched: HTTP Error 404.*--movielens PATH"):
        download_movielens(data, url, right)


def test_a_movielens_task_tests_on_what_it_did_not_see():
    data = simulate("B1", 2, (60, 50), 0.5, seed=2)
    sample = Sample.of(data.rows, data.cols, data.labels, (60, 50))
    experiment = paper.movielens(sample, 2)
    only = replace(
        experiment,
        cases=tuple(case for case in experiment.cases if case.method == "majority class"),
    )
    records = only.run(Recorder(partial(paper.movielens_task, sample=sample)))
    assert [record["seed"] for record in records] == [1000, 1001]
    for record in records:
        train, test = split(sample, 375, record["seed"])
        share = np.mean(test.labels != (1 if np.mean(train.labels) > 0 else -1))
        assert (record["error"], record["n_test"]) == (share, 375)


# ---- the page ----------------------------------------------------------------------------------


def table_records(errors, draws=(0, 1)):
    """Records of the tables with the given error in % (and ±.1 around it over two draws)."""
    return pd.DataFrame(
        [
            {
                **case.data,
                "method": case.method,
                "setting": "{}",
                "seed": seed,
                "error": (errors(case) + wobble) / 100,
            }
            for case in paper.tables(1).cases
            for seed, wobble in zip(draws, (-0.1, 0.1), strict=True)
        ]
    )


def published(case):
    return PUBLISHED_ERRORS.get((case.data["rank"], case.data["kind"], case.method), 19.0)


def test_the_tables_stand_beside_the_papers():
    text = page.tables_section(table_records(published), META)
    assert "| A3 | 16.00 ± 0.10 (0.14) |" in text
    assert "| *paper* | *16* | *15.9* | *8.5* | *8.5* | *17.3* |" in text
    assert "Above the paper: no cell" in text
    assert "Below the paper: no cell" in text
    assert "in 0 of 12 cells" in text
    assert "has 19.00 ± 0.10 (0.14) on the same draws" in " ".join(text.split())


def test_differences_beyond_two_standard_deviations_are_named():
    def moved(case):
        cell = (case.data["rank"], case.data["kind"], case.method)
        return published(case) + {
            (3, "B3", "Logit-G"): 1.0,
            (5, "A3", "HL-IG"): -1.0,
            (3, "B1", "HL-G"): 0.3,
        }.get(cell, 0)

    text = " ".join(page.tables_section(table_records(moved), META).split())
    assert "Above the paper: Logit-G on B3, rank 3 (17.00; paper 16)." in text
    assert "Below the paper: HL-IG on A3, rank 5 (25.70; paper 26.7)." in text


def test_the_noise_section_and_its_figure():
    records = pd.DataFrame(
        [
            {
                **case.data,
                "method": case.method,
                "setting": "{}",
                "seed": seed,
                "error": case.data["switch"] / 2.4,
            }
            for case in paper.noise(1).cases
            for seed in (0, 1)
        ]
    )
    text = page.noise_section(records, META)
    assert "| 40% | 16.67 ± 0.00 (0.00) |" in text
    assert "less than 10% error at 0%, 5%, 10%, 15%, 20% noise" in text
    assert figures.noise(records).startswith(b"\x89PNG")


def test_the_corrected_comparison():
    """By hand: J = 4, s² = 5/3·1e−4, variance of the mean (1/4 + 1/9)·s²; t with 3 degrees of
    freedom.
    """
    found = paired_comparison([0.01, 0.02, 0.03, 0.04], 1 / 9)
    error = np.sqrt((1 / 4 + 1 / 9) * 5 / 3 * 1e-4)
    assert found.mean == pytest.approx(0.025)
    assert found.high - found.mean == pytest.approx(3.182446 * error, rel=1e-6)
    assert found.low == pytest.approx(2 * found.mean - found.high)
    assert 0.04 < found.p_value < 0.06
    assert paired_comparison([0.0, 0.0], 0.1).p_value == 1.0


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
        (
            ["movielens", "--output", "x", "--movielens", "nowhere"],
            "--movielens nowhere does not exist",
        ),
        (
            ["--output", "x"],
            "name the experiment first, tables, noise or movielens, not '--output'",
        ),
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


def test_experiments_need_a_classic_session(capsys, tmp_path):
    arguments = ["noise", "--output", str(tmp_path / "out"), "--remote", "sc://host"]
    assert "this job needs a classic session" in refusal(capsys, arguments)


PROBLEM = {"m1": 100, "m2": 60, "rank": 3, "max_entry": 1.5, "budget": 5}
N = 50_000
LAM = 9000.0


def complexity(prior, alpha, beta):
    """E in the paper's letters, by hand."""
    m = 160
    r = 3
    K = 5
    ell = 1.5
    q = K - r
    d = r / (K * N)
    first = (2 / math.pi * (r / N + q) + math.sqrt(8 / math.pi) * r * ell) / N
    second = m / (2 * LAM) * (r * (1 / N**2 + ell**2 + d + 2 * math.log(N) - 1) + q * r / K)
    T = {
        "inverse-gamma": r * ((alpha + 1) * d + beta)
        + q * ((alpha + 1) * (r / K - math.log(N)) + N * beta),
        "gamma": r * beta * (1 + d) + q * ((alpha - 1) * math.log(N) + beta * (1 / N + d))
        if alpha >= 1
        else r * ((1 - alpha) * d + beta * (1 + d))
        + q * ((1 - alpha) * (r / K - math.log(N)) + beta * (1 / N + d)),
    }[prior]
    return (
        first
        + second
        + (K * (math.log(K * N / r) + gammaln(alpha) - alpha * math.log(beta)) + T) / LAM
    )


@pytest.mark.parametrize(
    ("prior", "alpha", "beta"),
    [("inverse-gamma", 2.0, 1e-4), ("gamma", 2.0, 1.0), ("gamma", 0.5, 2.0)],
)
def test_the_bounds_by_hand(prior, alpha, beta):
    problem = Setup(**PROBLEM, prior=prior, alpha=alpha, beta=beta)
    e = complexity(prior, alpha, beta)
    assert problem.complexity(N, LAM) == pytest.approx(e, rel=1e-12)
    expected = 0.1 + e + LAM / (2 * N) + math.log(20) / LAM
    assert corollary1(problem, N, LAM, 0.1, 0.05) == pytest.approx(expected)
    assert corollary2(problem, N, LAM, 0.05) == pytest.approx(
        (e + math.log(20) / LAM) / (1 - LAM / (2 * N))
    )
    margin = 1 / (1 - 2 * 0.1)
    s = LAM * margin / N
    expected = 0.1 * (1 + (1 + s) / (1 - s / 2)) + (e + (1 + margin) * math.log(40) / (s * N)) / (
        1 - s / 2
    )
    assert theorem2(problem, N, s, margin, 0.1, 0.05) == pytest.approx(expected)


@pytest.mark.parametrize("prior", ["gamma", "inverse-gamma"])
@pytest.mark.parametrize(
    ("which", "noise"),
    [
        ("corollary1", {"best_risk": 0.1}),
        ("corollary2", {}),
        ("theorem2", {"best_risk": 0.05, "switch_noise": 0.05}),
    ],
)
def test_the_number_of_ratings_is_the_least_that_does(prior, which, noise):
    options = {"which": which, "prior": prior, "budget": 10, **noise}
    found = plan(200, 100, 3, 1.0, 0.4, **options)
    assert found.bound <= 0.4 < plan(200, 100, 3, 1.0, n=found.n - 1, **options).bound
    assert found.lam <= found.n
    given = plan(200, 100, 3, 1.0, n=found.n, lam=found.lam, **options)
    assert given.bound == pytest.approx(found.bound)


WRONG_PLANS = [
    {},
    {"risk": 0.3, "n": 10},
    {"risk": -1.0},
    {"n": 1},
    {"risk": 0.3, "lam": float("inf")},
    *(
        {"n": 100, name: value}
        for name, value in (
            ("delta", 1.0),
            ("budget", 2),
            ("prior", "beta"),
            ("alpha", 0.0),
            ("lam", -1.0),
            ("switch_noise", 0.5),
            ("which", "lemma"),
            ("best_risk", -0.1),
        )
    ),
    {"n": 100, "which": "corollary2", "best_risk": 0.1},
]


@pytest.mark.parametrize("wrong", WRONG_PLANS, ids=str)
def test_wrong_plans_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|give either|corollary2|budget"):
        plan(10, 10, 3, 1.0, **wrong)


def nuclear(x):
    return np.linalg.svd(x, compute_uv=False).sum()


def ratings(seed=0, shape=(7, 5), n=60):
    """More ratings than cells: some cells are rated several times, with both labels."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, shape[0], n)
    cols = rng.integers(0, shape[1], n)
    return rows, cols, rng.choice([-1, 1], n)


def gradient(x, rows, cols, labels):
    slopes = np.zeros_like(x)
    np.add.at(slopes, (rows, cols), -labels * expit(-labels * x[rows, cols]))
    return slopes


@pytest.mark.parametrize("radius", [0.05, 0.8, 1e9])
def test_the_truncated_svd_projects_like_the_whole_one(monkeypatch, radius):
    """From a rank that is far too small on to all singular values, with the radius a share of the
    nuclear norm.
    """
    x = np.random.default_rng(2).normal(size=(60, 50))
    radius *= nuclear(x)
    whole = _Projection(radius)(x)
    monkeypatch.setattr(davenport, "DENSE_SIDE", 0)
    truncated = _Projection(radius)
    truncated.rank = 1
    np.testing.assert_allclose(truncated(x), whole, atol=1e-8)


@pytest.mark.parametrize("radius", [1.0, 6.0])
def test_davenport_reaches_the_optimum(radius):
    """f is convex, so its linearisation bounds f(x) − min f by ⟨∇f, x⟩ + τ‖∇f‖₂ (the gap of Frank
    and Wolfe).
    """
    rows, cols, labels = ratings()
    fit = fit_davenport(rows, cols, labels, (7, 5), radius, tol=1e-7)
    slopes = gradient(fit.matrix, rows, cols, labels)
    assert fit.converged
    assert fit.stationarity <= 1e-7
    assert nuclear(fit.matrix) <= radius * (1 + 1e-9)
    assert np.vdot(slopes, fit.matrix) + radius * np.linalg.norm(slopes, 2) <= 1e-5
    assert fit.objective == pytest.approx(np.logaddexp(0, -labels * fit.matrix[rows, cols]).sum())


@pytest.mark.parametrize("rank", [0, 2])
def test_the_ridge_logistic_gradient_vanishes_where_it_stops(rank):
    """The gradient by differences of the objective written down anew."""
    rows, cols, labels = ratings(4)
    fit = fit_logistic(rows, cols, labels, (7, 5), rank=rank, ridge=0.5)
    assert fit.converged
    assert fit.row_factors.shape == (7, rank)

    def objective(z):
        c, b, d, left, right = np.split(z, np.cumsum([1, 7, 5, 7 * rank]))
        u = (
            c
            + b[rows]
            + d[cols]
            + np.sum(left.reshape(7, rank)[rows] * right.reshape(5, rank)[cols], axis=1)
        )
        return np.logaddexp(0, -labels * u).sum() + 0.25 * np.sum(z[1:] ** 2)

    parts = (
        fit.row_intercepts,
        fit.col_intercepts,
        fit.row_factors.ravel(),
        fit.col_factors.ravel(),
    )
    z = np.concatenate([[fit.offset], *parts])
    assert fit.objective == pytest.approx(objective(z))
    steps = 1e-5 * np.eye(len(z))
    slopes = [(objective(z + step) - objective(z - step)) / 2e-5 for step in steps]
    assert np.abs(slopes).max() < 1e-2
    u = fit.score(rows, cols)
    assert np.logaddexp(0, -labels * u).sum() + 0.25 * np.sum(z[1:] ** 2) == pytest.approx(
        fit.objective
    )
    if rank:
        assert fit.objective < fit_logistic(rows, cols, labels, (7, 5), ridge=0.5).objective
