"""Precision, recall, NDCG and MAP of lists, against plain loops over sets; ``ranking`` against
sorted probabilities.
"""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onebit_spark
from onebit_spark import RequestError
from onebit_spark.__main__ import main
from onebit_spark.predict.metrics import ranking_figures

N = 5


def by_loops(lists, relevant, n):
    """The mean figures of lists of items, given the set of relevant items of each user."""
    sums = dict.fromkeys(("precisionAtK", "recallAtK", "ndcgAtK", "meanAveragePrecisionAtK"), 0.0)
    for listed, wanted in zip(lists, relevant, strict=True):
        found = 0
        gain = 0.0
        precisions = 0.0
        for place, item in enumerate(listed[:n], 1):
            if item in wanted:
                found += 1
                gain += 1 / math.log2(place + 1)
                precisions += found / place
        ideal = sum(1 / math.log2(place + 1) for place in range(1, min(n, len(wanted)) + 1))
        sums["precisionAtK"] += found / n
        sums["recallAtK"] += found / len(wanted)
        sums["ndcgAtK"] += gain / ideal
        sums["meanAveragePrecisionAtK"] += precisions / min(n, len(wanted))
    return {name: total / len(lists) for name, total in sums.items()}


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 8), users=st.integers(1, 6))
def test_the_figures_of_lists(seed, n, users):
    rng = np.random.default_rng(seed)
    # Some are shorter
    lists = [rng.permutation(12)[: rng.integers(0, n + 1)].tolist() for _ in range(users)]
    relevant = [set(rng.permutation(15)[: rng.integers(1, 10)].tolist()) for _ in range(users)]
    hits = np.array(
        [
            [p < len(own) and own[p] in wanted for p in range(n)]
            for own, wanted in zip(lists, relevant, strict=True)
        ]
    )
    found = ranking_figures(hits, np.array([len(wanted) for wanted in relevant]))
    assert found == pytest.approx(by_loops(lists, relevant, n))
    assert all(0 <= value <= 1 for value in found.values())


# ---- a model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rated():
    """Ratings of a model of 28 × 18 ids: seen and held out, with repeats, an unknown item and
    unknown users.
    """
    rng = np.random.default_rng(5)
    users = [f"u{i:02}" for i in rng.integers(0, 28, 330)] + [
        "new",
        "new",
        "newer",
        "u03",
        "u03",
        "u04",
    ]
    items = [*(10 * rng.integers(0, 18, 330)).tolist(), 10, 20, 10, 999, 999, 998]
    labels = [*rng.choice([-1, 1], 330).tolist(), 1, 1, 1, 1, 1, -1]
    cut = 180  # the first ones were seen
    return [
        list(zip(users[part], items[part], labels[part], strict=True))
        for part in (slice(cut), slice(cut, None))
    ]


def as_table(lines):
    return pa.table(
        dict(zip(("user", "item", "label"), map(list, zip(*lines, strict=True)), strict=True))
    )


def expected(model, held_out, seen, n=N):
    """The figures of the model and of popularity, by sorting all items for each user."""
    taken = {(user, item) for user, item, _ in seen}
    relevant = {}
    for user, item, label in held_out:
        if label > 0 and user.startswith("u") and (user, item) not in taken:
            relevant.setdefault(user, set()).add(item)
    items = model.items.ids.to_pylist()
    popularity = {
        item: sum(label > 0 for _, other, label in seen if other == item) for item in items
    }
    lists = {"model": [], "popularity": []}
    for user in relevant:
        fresh = [item for item in items if (user, item) not in taken]
        chance = dict(zip(fresh, model.probability(user, fresh), strict=True))
        lists["model"].append(sorted(fresh, key=lambda item, chance=chance: -chance[item]))
        # The first of equals
        lists["popularity"].append(sorted(fresh, key=lambda item: -popularity[item]))
    return len(relevant), {
        name: by_loops(each, list(relevant.values()), n) for name, each in lists.items()
    }


def test_a_model_and_popularity_by_sorting_all_items(make_model, rated):
    model = make_model()
    (seen, held_out) = rated
    n_users, figures = expected(model, held_out, seen)
    found = model.ranking(as_table(held_out), n=N, seen=as_table(seen))
    assert {name: found.pop(name) for name in ("n", "n_users", "n_unknown_user")} == {
        "n": N,
        "n_users": n_users,
        "n_unknown_user": 2,
    }
    assert found == {name: pytest.approx(each) for name, each in figures.items()}
    columns = [[line[at] for line in held_out] for at in range(3)]
    assert (
        model.ranking(*columns, n=N, seen=tuple(map(list, zip(*seen, strict=True))))["model"]
        == found["model"]
    )


def test_without_the_seen_ratings_nothing_is_left_out(make_model, rated):
    model = make_model()
    (_, held_out) = rated
    found = model.ranking(as_table(held_out), n=N)
    assert "popularity" not in found
    assert found["model"] == pytest.approx(expected(model, held_out, [])[1]["model"])


def test_the_seen_ratings_may_be_pairs(make_model, rated):
    """As those of ``recommend``. Pairs have no positive ratings, so there is no popularity."""
    model = make_model()
    (seen, held_out) = rated
    users, items, labels = map(list, zip(*seen, strict=True))
    whole = model.ranking(as_table(held_out), n=N, seen=(users, items, labels))
    del whole["popularity"]
    for pairs in ((users, items), [np.array(users), np.array(items)]):
        assert model.ranking(as_table(held_out), n=N, seen=pairs) == whole


def test_what_is_refused(make_model, rated):
    model = make_model()
    (seen, held_out) = rated
    for nothing in (as_table(seen).slice(0, 0), ([], []), ([], [], [])):
        with pytest.raises(
            RequestError,
            match="seen has no rating: leave it out, or give the ratings that were fitted",
        ):
            model.ranking(as_table(held_out), seen=nothing)
    with pytest.raises(
        RequestError, match=r"seen must be \(users, items\), \(users, items, labels\) or a table"
    ):
        model.ranking(as_table(held_out), seen=(["u01"],))
    with pytest.raises(RequestError, match="must be an integer of at least 1, not 0"):
        model.ranking(as_table(held_out), n=0)
    with pytest.raises(
        RequestError, match="no user that the model knows has a positive rating that was not seen"
    ):
        model.ranking(as_table(held_out), seen=as_table(held_out))
    with pytest.raises(RequestError, match="no column 'label'"):
        model.ranking(as_table(held_out), seen=as_table(seen).select(["user", "item"]))


def test_the_job_evaluates_lists(make_folder, rated, tmp_path, capsys):
    (seen, held_out), folder = rated, make_folder()
    for name, lines in (("seen", seen), ("held_out", held_out)):
        pq.write_table(as_table(lines), tmp_path / f"{name}.parquet")
    asked = [
        "evaluate",
        "--model",
        str(folder),
        "--ratings",
        str(tmp_path / "held_out.parquet"),
        "--ranking",
        str(N),
    ]
    out = ["--output", str(tmp_path / "metrics.json"), "--overwrite"]
    assert main([*asked, *out, "--exclude-seen", str(tmp_path / "seen.parquet")]) == 0
    model = onebit_spark.load(folder)
    found = json.loads((tmp_path / "metrics.json").read_text())["ranking"]
    assert found == model.ranking(as_table(held_out), n=N, seen=as_table(seen))
    text = capsys.readouterr().out
    assert f"popularity precisionAtK {found['popularity']['precisionAtK']:.4f}, recallAtK" in text
    assert "2 users that the model has never seen left out" in text
    assert main([*asked, *out]) == 0
    assert "give the fitted ratings as --exclude-seen" in capsys.readouterr().out
    assert main([*asked[:-2], "--exclude-seen", str(tmp_path / "seen.parquet")]) == 2
    assert "--exclude-seen belongs to --ranking N" in capsys.readouterr().err
    pq.write_table(as_table(seen).slice(0, 0), tmp_path / "empty.parquet")
    assert main([*asked, "--exclude-seen", str(tmp_path / "empty.parquet")]) == 2
    line = "empty.parquet has no rating: leave it out, or give the ratings that were fitted\n"
    assert capsys.readouterr().err.endswith(line)
