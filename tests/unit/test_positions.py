"""Positions: the curvature of their error bars, their axes, and what users call."""

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from html import unescape

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from scipy.special import entr, expit
from support.fitting import image

from onebit_spark import FitConfig, RequestError, fit_arrays, fit_table, load
from onebit_spark.__main__ import main
from onebit_spark.cli.flags import parse
from onebit_spark.cli.requests import PositionsRequest
from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.losses import LOSSES, HalfStep, RowPrior
from onebit_spark.core.positions import Axes
from onebit_spark.core.posterior import RowMap, RowPosterior
from onebit_spark.predict.questions import information
from onebit_spark.report.map import coloured, drawing, page

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
SHAPE = (150, 30)


def responses(n, m, share, seed, dims=1):
    """Abilities, and the answers of n persons to m questions that a share of them was asked."""
    rng = np.random.default_rng(seed)
    ability = rng.standard_normal((n, dims))
    slope = np.stack([rng.lognormal(0, 0.3, m) * 1.2, rng.standard_normal(m) * 0.8][:dims], axis=1)
    i, j = np.nonzero(rng.random((n, m)) < share)
    score = (ability @ slope.T + rng.standard_normal(m))[i, j]
    return ability, i, j, rng.random(len(i)) < 1 / (1 + np.exp(-score))


@pytest.fixture(scope="module")
def fit():
    return fit_arrays(
        *responses(*SHAPE, 0.6, 0, 2)[1:],
        FitConfig(rank=2, likelihood_weight=1.0, tol=1e-9, max_iter=400),
    )


# ---- the curvature -----------------------------------------------------------------------------


@pytest.mark.parametrize("intercepts", [False, True])
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_covariance_is_that_of_the_expected_curvature(structure, intercepts):
    """Against a quadrature with 60 points.

    The kernel takes the derivative of the moderated sigmoid for E σ'(u).
    """
    rng = np.random.default_rng(0)
    n = 6
    m = 9
    size = 3
    loss = LOSSES["logistic"].from_options("mm", structure)
    sides = []
    for rows in (n, m):
        location = rng.normal(size=(rows, size))
        root = rng.normal(size=(rows, size, size)) * 0.4
        covariance = root @ root.transpose(0, 2, 1)
        a, b = np.tril_indices(size)
        scale = (
            covariance[:, a, b]
            if structure == "full"
            else np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        )
        sides.append(RowPosterior(location, scale, loss.kind, intercepts))
    rows, cols = sides
    i, j = np.nonzero(rng.random((n, m)) < 0.8)
    weights = rng.uniform(0.5, 2, len(i)).astype(np.float32)
    block = RatingBlock.from_coordinates(i, j, rng.random(len(i)) < 0.5, (n, m), weights)
    prior = RowPrior(rng.normal(size=(1, size)), rng.uniform(0.5, 2, (1, size)))
    after = rows.copy()
    step = HalfStep("rows", 0, 1.0, prior, 1.0, relaxation=0.0, curvature=True)
    loss.update_rows(block, 0, n, loss.other_lines(cols), after, step)
    np.testing.assert_array_equal(after.location, rows.location)
    f = int(intercepts)
    for row in range(n):
        mine = slice(*block.row_pointers[row : row + 2])
        codes = block.codes
        x = np.concatenate([np.ones(f), rows.location[row]])
        v = np.zeros((size + f, size + f))
        v[f:, f:] = rows.covariance[row]
        precision = np.diag(prior.precision[0])
        for code, weight in zip(codes[mine], block.weights[mine], strict=True):
            z = np.insert(cols.location[code >> 1], 1, [1] * f)
            c = np.zeros((size + f, size + f))
            free = np.delete(np.arange(size + f), 1) if f else np.arange(size)
            c[np.ix_(free, free)] = cols.covariance[code >> 1]
            second = np.outer(z, z) + c
            std = np.sqrt(z @ v @ z + x @ c @ x + np.sum(v * c))
            u = x @ z + NODES * std
            curvature = WEIGHTS @ (0.25 / np.cosh(u / 2) ** 2) / WEIGHTS.sum()
            precision += weight * curvature * second[f:, f:]
        if structure == "full":
            np.testing.assert_allclose(
                after.covariance[row], np.linalg.inv(precision), rtol=0.05, atol=0.01
            )
        else:
            np.testing.assert_allclose(after.scale[row], np.diag(precision) ** -0.5, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "m", "share", "dims"), [(500, 60, 0.5, 1), (2000, 40, 1.0, 2), (300, 500, 0.3, 2)]
)
@pytest.mark.parametrize(
    "settings", [{}, {"likelihood_weight": 1.0}], ids=["defaults", "given rank"]
)
def test_error_bars_cover(n, m, share, dims, settings):
    """95% intervals of the true positions, after the linear map that aligns the axes."""
    covered = []
    for seed in range(6):
        ability, i, j, positive = responses(n, m, share, seed, dims)
        config = FitConfig(
            implicit_features=False, **({"rank": dims, **settings} if settings else {})
        )
        fit = fit_arrays(i, j, positive, config, shape=(n, m))
        covered.append(coverage(fit, ability, dims))
    assert 0.93 <= np.mean(covered) <= 0.97


def coverage(fit, ability, dims):
    table = fit.positions(dimensions=dims)
    t, std = (
        np.stack([table[f"dim{d + 1}{end}"].to_numpy() for d in range(dims)], axis=1)
        for end in ("", "_std")
    )
    to_truth = np.linalg.lstsq(np.c_[t, np.ones(len(t))], ability, rcond=None)[0]
    error = ability - np.c_[t, np.ones(len(t))] @ to_truth
    return np.mean(np.abs(error) < 1.96 * np.sqrt(std**2 @ to_truth[:dims] ** 2))


def packed(rng, n, size):
    """The lower triangles of n covariances."""
    root = rng.normal(size=(n, size, size)) * 0.4
    a, b = np.tril_indices(size)
    return (root @ root.transpose(0, 2, 1))[:, a, b]


# ---- the axes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("intercepts", [False, True])
def test_axes_give_the_scores_and_no_gauge_moves_them(intercepts):
    rng = np.random.default_rng(1)
    size = 4
    rank = 4 - intercepts
    rows, cols = (
        RowPosterior(rng.normal(size=(n, size)) + 1, packed(rng, n, size), "covariance", intercepts)
        for n in (50, 40)
    )
    axes = Axes.of_posteriors(rows, cols)
    t = axes.values("rows", rows.location)
    slopes = axes.values("cols", cols.location)
    score = rows.mean @ cols.mean.T
    if intercepts:
        score = score + rows.intercept[:, None] + cols.intercept
    np.testing.assert_allclose(t @ slopes[:, 1:].T + slopes[:, 0], score, atol=1e-9)
    np.testing.assert_allclose(np.cov(t.T, bias=True), np.eye(size), atol=1e-9)
    second = slopes[:, 1:].T @ slopes[:, 1:]
    np.testing.assert_allclose(second, np.diag(np.diag(second)), atol=1e-8)
    assert np.all(np.diff(axes.shares) <= 0)
    assert axes.shares.sum() == pytest.approx(1)
    assert np.all((t**3).sum(axis=0) >= 0)
    own = np.eye(size)
    theirs = np.eye(size)
    a = rng.normal(size=(rank, rank))
    own[-rank:, -rank:], theirs[-rank:, -rank:] = a, np.linalg.inv(a).T
    moved = [image(RowMap.linear(by), side) for by, side in ((own, rows), (theirs, cols))]
    other = Axes.of_posteriors(*moved)
    for side, before, after in zip(("rows", "cols"), (rows, cols), moved, strict=True):
        np.testing.assert_allclose(
            other.values(side, after.location), axes.values(side, before.location), atol=1e-6
        )
        np.testing.assert_allclose(
            other.spreads(side, after), axes.spreads(side, before), rtol=1e-4, atol=1e-5
        )


def test_the_difficulty_is_where_the_answer_is_open(fit):
    """Its standard deviation against draws of intercept and slope."""
    table = fit.positions("item", 1)
    rng = np.random.default_rng(0)
    c, a, c_std, a_std, difficulty, std = (
        table[name].to_numpy()
        for name in (
            "intercept",
            "slope1",
            "intercept_std",
            "slope1_std",
            "difficulty",
            "difficulty_std",
        )
    )
    np.testing.assert_allclose((c + a * difficulty)[~np.isnan(difficulty)], 0, atol=1e-12)
    both = fit.items.measured[:, -1]
    for k in np.argsort(-np.abs(a) / a_std)[:5]:
        drawn = rng.multivariate_normal(
            [c[k], a[k]], [[c_std[k] ** 2, both[k]], [both[k], a_std[k] ** 2]], 200_000
        )
        assert np.std(-drawn[:, 0] / drawn[:, 1]) == pytest.approx(std[k], rel=0.15)


def test_an_item_without_a_slope_has_no_difficulty():
    """Its answers do not depend on the user: it would be far from everybody, with an error bar that
    has no end.
    """
    i, j, positive = responses(600, 8, 1.0, 0)[1:]
    positive[j < 4] = np.random.default_rng(1).random(np.count_nonzero(j < 4)) < 0.7
    fit = fit_arrays(
        i, j, positive, FitConfig(rank=1, likelihood_weight=1.0, implicit_features=False)
    )
    lines = fit.positions("item", 1).to_pylist()
    figures = [(line["difficulty"], line["difficulty_std"]) for line in lines]
    assert None in [difficulty for difficulty, _ in figures[:4]]
    assert None not in [difficulty for difficulty, _ in figures[4:]]
    for line, (difficulty, std) in zip(lines, figures, strict=True):
        assert (difficulty is None) == (std is None)
        assert difficulty is None or (abs(difficulty) <= 10 and std <= 10)
        assert difficulty is not None or abs(line["slope1"]) < 2 * line["slope1_std"]


def test_anchors_turn_users_and_items(fit):
    plain = fit.positions()
    items = fit.positions("item")
    user = plain["user"][int(np.argmax(plain["dim1"].to_numpy()))].as_py()
    turned = fit.positions(anchors={user: -1})
    slopes = fit.positions("item", anchors={user: -1})
    for before, after, name, sign in (
        (plain, turned, "dim1", -1),
        (plain, turned, "dim2", 1),
        (plain, turned, "dim1_std", 1),
        (items, slopes, "slope1", -1),
        (items, slopes, "slope2", 1),
        (items, slopes, "intercept", 1),
    ):
        np.testing.assert_array_equal(after[name].to_numpy(), sign * before[name].to_numpy())
    assert fit.positions(anchors={user: 1}).equals(plain)


def test_the_seed_does_not_move_them(fit):
    i, j, positive = responses(*SHAPE, 0.6, 0, 2)[1:]
    other = fit_arrays(i, j, positive, replace(fit.config, seed=5, alpha=None, beta=None))
    for who in ("user", "item"):
        one, two = (each.positions(who) for each in (fit, other))
        for name in one.column_names:
            np.testing.assert_allclose(two[name].to_numpy(), one[name].to_numpy(), atol=2e-3)


# ---- models that change ------------------------------------------------------------------------


def test_they_survive_a_folder(fit, tmp_path):
    fit.save(tmp_path / "m")
    for who in ("user", "item"):
        here = fit.positions(who)
        there = load(tmp_path / "m").positions(who)
        assert here.column_names == there.column_names
        for name in here.column_names:
            np.testing.assert_allclose(
                there[name].to_numpy(), here[name].to_numpy(), rtol=1e-5, atol=1e-5
            )
    shares = json.loads(fit.positions().schema.metadata[b"shares"])
    assert 0 < shares[1] < shares[0] < 1


def test_a_folded_in_user_has_the_position_of_the_fit(fit, caplog):
    i, j, positive = responses(*SHAPE, 0.6, 0, 2)[1:]
    mine = i == 7
    folded = fit.fold_in(i[mine] + 1000, j[mine], positive[mine])
    table = folded.positions().to_pylist()
    new = next(line for line in table if line["user"] == 1007)
    old = table[7]
    assert new["n_ratings"] == old["n_ratings"] == mine.sum()
    for name in ("dim1_std", "dim2_std"):
        assert new[name] == pytest.approx(old[name], rel=0.02)
    assert abs(new["dim1"] - old["dim1"]) < 0.05
    assert not caplog.records
    table = folded.update([7], [0], [1]).positions()
    assert "too small" in caplog.text
    assert np.isnan(table["n_ratings"].to_numpy(zero_copy_only=False)).all()


def test_a_user_without_ratings_has_the_position_of_its_features_and_a_wide_interval():
    ability, i, j, positive = responses(*SHAPE, 0.6, 0)
    kind = np.append(np.sign(ability[:, 0]), [-1.0, 1.0])  # of two more users
    table = pa.table({"user": i, "item": j, "label": positive})
    features = {"user": np.arange(152), "kind": kind}
    config = FitConfig(rank=1, likelihood_weight=1.0, implicit_features=False, max_iter=20)
    fit = fit_table(table, config, user_features=pa.table(features))
    later = fit.fold_in_features(pa.table({"user": [300, 301], "kind": [-1.0, 1.0]}))
    top = int(ability.argmax())
    lines = {
        line["user"]: line for line in later.positions(dimensions=1, anchors={top: 1}).to_pylist()
    }
    for low, high in ((150, 151), (300, 301)):
        assert lines[low]["dim1"] < -0.3 < 0.3 < lines[high]["dim1"]
        for line in (lines[low], lines[high]):
            assert line["n_ratings"] == 0
            assert line["dim1_std"] > max(lines[user]["dim1_std"] for user in range(150))


def test_a_checkpoint_says_that_its_spreads_are_those_of_the_fit(make_model, caplog):
    """It has neither axes nor spreads of positions, like the folder of this fixture."""
    table = make_model().positions(dimensions=1)
    assert "the model is a checkpoint" in caplog.text
    assert table["dim1_std"].to_numpy().min() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimensions": 9}, "dimensions must be an integer from 1 to 2, not 9"),
        ({"who": "users"}, "who must be 'user' or 'item'"),
        ({"anchors": {0: 2}}, "anchors must map ids to 1 or -1, not to 2"),
        ({"anchors": {-5: 1}}, "anchors: the model does not know -5"),
        ({"anchors": [3]}, r"anchors must map ids to 1 or -1, such as {'ann': 1}, not be \[3\]"),
    ],
)
def test_wrong_requests(fit, arguments, message):
    with pytest.raises(RequestError, match=message):
        fit.positions(**arguments)


@pytest.fixture(scope="module")
def flat():
    """A model of one dimension."""
    i, j, positive = responses(*SHAPE, 0.6, 0)[1:]
    return fit_arrays(
        i, j, positive, FitConfig(rank=1, intercepts=False, max_iter=3, likelihood_weight=1.0)
    )


@pytest.fixture(scope="module")
def constant():
    """A model whose scores do not depend on the user: each user answers each item once in both
    ways.
    """
    i, j = np.divmod(np.arange(600) // 2, 15)
    config = FitConfig(rank=2, implicit_features=False, max_iter=6, likelihood_weight=1.0)
    return fit_arrays(i, j, np.arange(600) % 2, config)


def test_by_default_there_are_as_many_dimensions_as_the_model_has_up_to_two(
    fit, flat, constant, tmp_path, capsys
):
    assert fit.positions().equals(fit.positions(dimensions=np.int64(2)))
    assert flat.positions().equals(flat.positions(dimensions=1))
    assert flat.positions("item").column_names[-1] == "difficulty_std"
    assert constant.positions("item").column_names == [
        "item",
        "n_ratings",
        "intercept",
        "intercept_std",
    ]
    for who, dimensions in (("user", None), ("item", 1)):
        with pytest.raises(RequestError, match="this model has no dimensions"):
            constant.positions(who, dimensions)
    for model, name, code in ((flat, "flat", 0), (constant, "constant", 2)):
        model.save(tmp_path / name)
        job = [
            "positions",
            "--model",
            str(tmp_path / name),
            "--output",
            str(tmp_path / f"{name}.csv"),
        ]
        assert main([*job, "--runtime", "local"]) == code
    told = capsys.readouterr()
    assert "The dimension explains 100% of the variance of the scores." in told.out
    assert "this model has no dimensions" in told.err
    assert main([*job, "--runtime", "local", "--who", "item"]) == 0
    assert "explain" not in capsys.readouterr().out


def test_whole_numbers_of_numpy(fit):
    n = np.int64(3)
    for of in (fit.next_questions, fit.recommend):
        assert of([3], n).equals(of([3], 3))


def test_the_job_writes_them(fit, tmp_path, capsys):
    fit.save(tmp_path / "m")
    job = ["positions", "--model", str(tmp_path / "m"), "--runtime", "local"]
    assert main([*job, "--output", str(tmp_path / "p"), "--anchor", "7=-1"]) == 0
    assert "of the variance of the scores" in capsys.readouterr().out
    written = pq.read_table(tmp_path / "p")
    assert written["dim1"][7].as_py() < 0
    assert written.column_names == ["user", "n_ratings", "dim1", "dim1_std", "dim2", "dim2_std"]
    assert (
        main([*job, "--output", str(tmp_path / "i.csv"), "--who", "item", "--dimensions", "1"]) == 0
    )
    assert pacsv.read_csv(tmp_path / "i.csv").column_names[-1] == "difficulty_std"
    assert main([*job, "--output", str(tmp_path / "p"), "--overwrite"]) == 0
    other = tmp_path / "other"
    fit.save(other)
    for wrong, line in (
        (["--output", str(other), "--overwrite"], "is not a folder of positions"),
        (
            ["--output", str(tmp_path / "q"), "--anchor", "7=2"],
            "--anchor must be ID=1 or ID=-1, not 7=2",
        ),
        (["--output", str(tmp_path / "q"), "--anchor", "x=1"], "--anchor: "),
    ):
        assert main([*job, *wrong]) == 2
        assert line in capsys.readouterr().err


# ---- what to ask next --------------------------------------------------------------------------


def exact_information(mean, variance):
    """The mutual information, and E σ'(u), by sums over a fine grid."""
    z = np.linspace(-12, 12, 200_001)
    density = np.exp(-(z**2) / 2)
    density /= density.sum()
    u = mean + np.sqrt(variance) * z
    p = expit(u)
    expected = density @ expit(u)
    entropy = np.logaddexp(0, -np.abs(u)) + np.abs(u) * expit(-np.abs(u))
    return entr(expected) + entr(1 - expected) - density @ entropy, density @ (p * expit(-u))


def test_the_information_is_the_mutual_information():
    """At any variance: those of new users of polarised votes are wide."""
    mean, variance = np.meshgrid(
        np.linspace(-8, 8, 17), [0, 1e-6, 1e-2, 0.5, 2.2, 2.3, 5, 10, 20, 40, 100, 400, 1e4]
    )
    mean = mean.ravel()
    variance = variance.ravel()
    exact = np.array([exact_information(m, v) for m, v in zip(mean, variance, strict=True)])
    np.testing.assert_allclose(
        np.transpose(information(mean, variance)), exact, rtol=1e-4, atol=1e-5
    )


def test_the_questions_for_a_new_user_of_polarised_votes():
    """In the order of the exact information, one at a time."""
    rng = np.random.default_rng(0)
    n = 80
    m = 200
    position = rng.choice([-1.0, 1.0], n) + 0.2 * rng.standard_normal(n)
    i, j = np.nonzero(rng.random((n, m)) < 0.9)
    score = (np.outer(position, 6 * rng.standard_normal(m)) + 2 * rng.standard_normal(m))[i, j]
    votes = rng.random(len(i)) < expit(score)
    fit = fit_arrays(i, j, votes, FitConfig(rank=1, likelihood_weight=1.0, max_iter=40))
    new = fit.users.at(np.array([-1]))
    x = np.insert(fit.cols.mean, 0, 1.0, axis=1).astype(float)
    mean = fit.cols.intercept + x @ new.location[0]
    variance = np.einsum("ja,ab,jb->j", x, new.covariance[0].astype(float), x)
    assert np.quantile(variance, 0.9) > 20
    exact = np.array([exact_information(*each)[0] for each in zip(mean, variance, strict=True)])
    first = fit.next_questions(-1, 1).to_pylist()[0]
    assert first["item"] == np.argmax(exact)
    ranked = [
        fit.next_questions(-1, 1, items=[item])["information"][0].as_py() for item in range(m)
    ]
    np.testing.assert_allclose(ranked, exact, atol=1e-5)
    np.testing.assert_array_equal(np.argsort(ranked), np.argsort(exact))


def test_a_list_of_questions_is_greedy(fit):
    """Each is the best one given the covariance after those before it, computed by inverses."""
    table = fit.next_questions([3, -1], 4, seen=([3], [9]), items=np.arange(10))
    lines = table.to_pylist()
    assert [(line["user"], line["rank"]) for line in lines] == [
        (u, r) for u in (3, -1) for r in (1, 2, 3, 4)
    ]
    assert 9 not in [line["item"] for line in lines[:4]]
    assert len({line["item"] for line in lines[:4]}) == 4
    c = fit.rows.covariance[3].astype(float)
    m = fit.rows.location[3]
    x = np.insert(fit.cols.mean, 0, 1.0, axis=1)
    left = list(range(9))
    for line in lines[:4]:
        gains = {
            j: information(fit.cols.intercept[[j]] + x[[j]] @ m, np.array([x[j] @ c @ x[j]]))
            for j in left
        }
        best = max(gains, key=lambda j: gains[j][0][0])
        assert line["item"] == best
        assert line["information"] == pytest.approx(gains[best][0][0], rel=1e-5)
        c = np.linalg.inv(np.linalg.inv(c) + gains[best][1][0] * np.outer(x[best], x[best]))
        left.remove(best)
    with pytest.raises(RequestError, match="n must be an integer of at least 1"):
        fit.next_questions([3], 0)


def test_each_user_gets_one_list_of_questions(fit):
    assert fit.next_questions([5, 3, 5], 2).equals(fit.next_questions([5, 3], 2))
    nobody = fit.next_questions([], 2)
    assert not len(nobody)
    assert nobody.schema == fit.next_questions([5], 2).schema


# ---- the map -----------------------------------------------------------------------------------

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def opened(address):
    """What the page is after its script."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    return subprocess.run(
        [*command, address], capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium is installed, in which the map could be opened"
)
def test_the_map_in_a_browser(fit, tmp_path):
    """It draws all users, finds the one in the address, and cuts by an item.

    Nothing is loaded from elsewhere.
    """
    fit.save(tmp_path / "m")
    out = [str(tmp_path / name) for name in ("m", "p", "map.html")]
    assert (
        main(
            [
                "positions",
                "--model",
                out[0],
                "--output",
                out[1],
                "--map",
                out[2],
                "--runtime",
                "local",
            ]
        )
        == 0
    )
    fit.map(tmp_path / "grouped.html", groups={user: f"<b>{user % 11}</b>" for user in range(150)})
    user = fit.positions().to_pylist()[42]
    for name, more in (("map.html", ""), ("grouped.html", ", ")):
        text = (tmp_path / name).read_text()
        assert not re.findall(r"(?:src|href)=|https?:|@import", text)
        shown = opened(f"file://{tmp_path / name}#user=42")
        assert 'data-points="150"' in shown
        told = re.search(r"<output>(.*?)</output>", shown)[1]
        wanted = (f"{user[d]:.2f} ± {1.96 * user[d + '_std']:.2f}" for d in ("dim1", "dim2"))
        assert told.startswith(f"42: {', '.join(wanted)}, {user['n_ratings']} ratings{more}")
        assert "the score of 3 is positive" in opened(f"file://{tmp_path / name}#item=3")


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium is installed, in which the map could be opened"
)
def test_a_map_can_be_read(tmp_path):
    """Its axes have names, shares and a scale; the positive side of an item; short names; grey
    without a group.
    """
    i, j, positive = responses(*SHAPE, 0.6, 0, 2)[1:]
    names = np.array(
        [f"{user} with a name that is too long for a map of many users" for user in range(150)]
    )
    table = pa.table({"user": names[i], "item": j, "label": positive})
    fit = fit_table(table, FitConfig(rank=2, likelihood_weight=1.0, max_iter=10))
    fit.map(tmp_path / "map.html", groups={name: f"{name[-3:]} {'x' * 50}" for name in names[:100]})
    shown = opened(f"file://{tmp_path / 'map.html'}#item=3")
    shares = json.loads(fit.positions().schema.metadata[b"shares"])
    for axis, (name, share) in zip("xy", zip(("dim1", "dim2"), shares, strict=True), strict=True):
        assert f'id="{axis}">{name}: {share:.0%} of the variance of the scores<' in shown
    for scale in ("across", "up"):
        marks = np.array(re.search(f'data-{scale}="([^"]*)"', shown)[1].split(), float)
        assert len(marks) > 3
        np.testing.assert_allclose(np.diff(marks), marks[1] - marks[0])
    (line,) = [line for line in fit.positions("item").to_pylist() if line["item"] == 3]
    slopes = np.array([line["slope1"], line["slope2"]])
    side = np.array(re.search('data-positive="([^"]*)"', shown)[1].split(), float)
    np.testing.assert_allclose(side, slopes / np.linalg.norm(slopes), atol=0.01)
    assert "On the shaded side of the line" in shown
    legend = dict(re.findall(r'style="color: ([^;]*);">● ([^<]*)<', shown))
    assert legend["rgb(160, 174, 192)"] == "no group"
    (word,) = set(legend.values()) - {"no group"}
    assert word == f"ers {'x' * 25}…"


def drawn_on(text):
    """What a map shows."""
    return json.loads(re.search(r'application/json">(.*?)</script>', text)[1])


def test_a_map_of_many_shows_the_extremes_and_a_sample():
    rng = np.random.default_rng(0)
    n = 400
    users = pa.table(
        {"user": np.arange(n), "n_ratings": rng.permutation(n)}
        | {name: rng.normal(size=n) for name in ("dim1", "dim1_std", "dim2", "dim2_std")}
    )
    items = pa.table(
        {name: np.arange(60.0) for name in ("item", "n_ratings", "intercept", "slope1", "slope2")}
    )
    data = drawn_on(page(drawing(users, items, np.array([0.6, 0.3]), 50)))
    assert len(data["ids"]) <= 50
    assert data["count"] == n
    assert len(data["items"]) == 50
    assert min(map(float, data["items"])) == 10
    farthest = int(np.argmax(users["dim1"].to_numpy()))
    assert str(farthest) in [data["ids"][i] for i in data["named"]]


def test_a_column_of_the_user_features_colours_the_map(fit, tmp_path, capsys):
    """The first one with few values: every name is another one."""
    fit.save(tmp_path / "m")
    party = ["DRI"[user % 3] for user in range(150)]
    features = pa.table(
        {"user": np.arange(150), "name": [f"name {i}" for i in range(150)], "party": party}
    )
    pq.write_table(features, tmp_path / "users.parquet")
    out = [str(tmp_path / name) for name in ("m", "p", "map.html", "users.parquet")]
    job = ["positions", "--model", out[0], "--output", out[1], "--runtime", "local"]
    assert main([*job, "--map", out[2], "--user-features", out[3]]) == 0
    data = drawn_on((tmp_path / "map.html").read_text())
    assert data["groups"] == ["D", "I", "R"]
    assert [data["groups"][at] for at in data["group"]] == [
        party[int(user)] for user in data["ids"]
    ]
    other = [*job[:4], str(tmp_path / "q"), "--runtime", "local", "--user-features", out[3]]
    assert main(other) == 2
    assert "add --map" in capsys.readouterr().err
    twice = features.slice(0, 1).set_column(2, "party", pa.array(["I"]))
    for wrong, line in (
        (
            features.drop_columns(["party"]),
            "cannot colour the map: no column has from 2 to 9 different values",
        ),
        (pa.concat_tables([features, twice]), "user features: 1 id with several lines, such as 0"),
    ):
        pq.write_table(wrong, tmp_path / "users.parquet")
        assert main([*other, "--map", str(tmp_path / "q.html")]) == 2
        assert line in capsys.readouterr().err
        assert not (tmp_path / "q").exists()


def test_as_many_groups_as_users():
    """They are counted once: with a count of each word this takes minutes."""
    n = 60_000
    began = time.perf_counter()
    drawn = coloured({"ids": [str(i) for i in range(n)]}, {i: f"group {i}" for i in range(n)})
    assert time.perf_counter() - began < 5
    assert drawn["groups"] == sorted(f"group {i}" for i in range(n))[:9]


def test_one_dimension_has_no_map(flat, constant, tmp_path, capsys):
    """The job says so before it writes anything."""
    i, j, positive = responses(*SHAPE, 0.6, 0)[1:]
    flat.save(tmp_path / "m")
    out = [str(tmp_path / name) for name in ("m", "p", "map.html")]
    assert (
        main(
            [
                "positions",
                "--model",
                out[0],
                "--output",
                out[1],
                "--map",
                out[2],
                "--runtime",
                "local",
            ]
        )
        == 2
    )
    assert "a map needs two dimensions, and this model has one" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
    assert "map" not in flat.diagnose(i, j, positive).info.diagnostics
    with pytest.raises(RequestError, match="this model has none"):
        constant.map(tmp_path / "map.html")


def test_pages_make_their_folder_and_replace_only_pages_of_their_kind(fit, tmp_path):
    i, j, positive = responses(*SHAPE, 0.6, 0, 2)[1:]
    known = fit.diagnose(i, j, positive)
    for write, other in ((known.map, known.report), (known.report, known.map)):
        path = tmp_path / "a folder" / write.__name__ / "page.html"
        write(path)
        with pytest.raises(RequestError, match=r"the output .*page.html exists"):
            write(path)
        write(path, overwrite=True)
        with pytest.raises(RequestError, match="and nothing else is overwritten"):
            other(path, overwrite=True)
    with pytest.raises(RequestError, match="cannot write"):
        known.map(path / "map.html")
    with pytest.raises(
        RequestError, match=r"groups must map ids of users to words, such as .*, not be \['D'\]"
    ):
        known.map(tmp_path / "map.html", groups=["D"])


@pytest.mark.parametrize("ending", ["json", "TSV", "csv.gz"])
def test_tables_are_written_as_csv_or_parquet(fit, tmp_path, capsys, ending):
    fit.save(tmp_path / "m")
    output = tmp_path / f"p.{ending}"
    for job in (["positions"], ["predict", "--top", "3"]):
        command = [
            *job,
            "--model",
            str(tmp_path / "m"),
            "--output",
            str(output),
            "--runtime",
            "local",
        ]
        assert main(command) == 2
        assert (
            f"p.{ending} ends in .{ending.rpartition('.')[2]}: name a file PATH.csv"
            in capsys.readouterr().err
        )
        assert not output.exists()


def test_the_report_shows_the_map(fit, tmp_path):
    """In the colours of the side features that the job was given; so does the report of a diagnosed
    model.
    """
    i, j, positive = responses(*SHAPE, 0.6, 0, 2)[1:]
    fit.diagnose(i, j, positive).report(tmp_path / "report.html")
    pq.write_table(
        pa.table({"user": i, "item": j, "label": positive}), tmp_path / "ratings.parquet"
    )
    pq.write_table(
        pa.table({"user": np.arange(150), "kind": ["a", "b", "b"] * 50}), tmp_path / "users.parquet"
    )
    files = [
        "--ratings",
        str(tmp_path / "ratings.parquet"),
        "--user-features",
        str(tmp_path / "users.parquet"),
    ]
    plain = ["--rank", "2", "--likelihood-weight", "1", "--max-iter", "3", "--runtime", "local"]
    assert main(["fit", *files, "--output", str(tmp_path / "m"), *plain]) == 0
    for name, groups in (("report.html", []), ("m/report.html", ["b", "a"])):
        data = drawn_on(
            unescape(re.search(r'<iframe [^>]*srcdoc="([^"]*)"', (tmp_path / name).read_text())[1])
        )
        assert data["count"] == len(data["ids"]) == 150
        assert data["groups"] == groups
        assert len(data["group"]) == (150 if groups else 0)
    loaded = load(tmp_path / "m").positions()
    assert data["dim1"][7] == pytest.approx(loaded["dim1"][7].as_py(), rel=1e-3)


def test_the_id_of_an_anchor_may_contain_an_equals_sign(fit, tmp_path):
    fit.save(tmp_path / "m")
    words = [
        "--model",
        str(tmp_path / "m"),
        "--output",
        "p",
        "--anchor",
        "YQ===-1",
        "--anchor",
        "b=1",
    ]
    assert parse(PositionsRequest, "positions", words).signs == {"YQ==": "-1", "b": "1"}
