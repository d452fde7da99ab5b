"""fit_table: the fit of fit_arrays, by ids of every type, as the class that load gives; folders,
certificates.
"""

import importlib
import json
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from support import idtypes

import onebit_spark
from onebit_spark import (
    FitConfig,
    FitFailed,
    FittedModel,
    RequestError,
    Terms,
    fit_arrays,
    fit_table,
    in_process,
)
from onebit_spark import settings as core_config
from onebit_spark.__main__ import main
from onebit_spark.certify.certificates import KEPT_CELLS, KNOWN, NEW_CELLS
from onebit_spark.core.setup import form_of
from onebit_spark.data.files import ArrowTable
from onebit_spark.data.hashes import CellSketch, cell_hashes, coin_drawn
from onebit_spark.data.ratings import ArrowRatings, Columns
from onebit_spark.engines.threads import ThreadEngine
from onebit_spark.fit import fit_model
from onebit_spark.fitting.checkpoints import OWNER, clear_checkpoints
from onebit_spark.fitting.task import FitTask
from onebit_spark.in_process import LocalModels, driver_state
from onebit_spark.model_info import feature_effects
from onebit_spark.predict.sides import asked_ids
from onebit_spark.settings import Execution

QUICK = FitConfig(rank=2, max_iter=6, tol=0.0, likelihood_weight=1.0)


def names(prefix, numbers):
    """In the order of the numbers."""
    return pa.array([f"{prefix}{number:02}" for number in numbers])


@pytest.fixture(scope="module")
def likes(ratings):
    users, items, labels = ratings
    return pa.table({"user": names("u", users), "item": names("i", items), "label": labels})


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_fit_is_that_of_the_arrays(ratings, likes, loss):
    config = FitConfig(rank=2, max_iter=6, tol=0.0, loss=loss, implicit_features=False)
    by_ids = fit_table(likes, config, certify=Terms())
    by_numbers = fit_arrays(*ratings, config, certify=Terms())
    assert by_ids.info.objective_history == by_numbers.objective_history
    assert by_ids.info.parameters == by_numbers.info.parameters
    for side, posterior in ((by_ids.users, by_numbers.rows), (by_ids.items, by_numbers.cols)):
        rated = posterior.take(slice(len(side.ids)))
        np.testing.assert_array_equal(side.known.location, rated.location)
        np.testing.assert_array_equal(side.known.scale, rated.scale)
    assert [item["bound"] for item in by_ids.certificate["certificates"]] == [
        item.bound for item in by_numbers.certificates
    ]
    assert by_ids.users.ids.to_pylist() == sorted(set(likes["user"].to_pylist()))


class Device(ThreadEngine):
    """A stand-in for a GPU.

    Lines that are fetched are turned round, and those that are sent are turned back.
    """

    @classmethod
    def of_block(cls, block, form):
        assert form == form_of(QUICK)
        return cls(block)

    def start(self, config, loss):
        return ThreadEngine(self.ratings["rows"]).start(config, loss)

    def rows_here(self, table):
        return (
            table[::-1]
            if isinstance(table, np.ndarray)
            else table.take(np.arange(table.n_rows)[::-1])
        )

    def table(self, side, lines):
        return self.rows_here(lines)


def test_on_a_device(likes, tmp_path, monkeypatch):
    """What a model holds was fetched from there. A checkpoint that goes on was sent there again."""
    monkeypatch.setattr(core_config, "no_device", lambda: None)
    monkeypatch.setattr(in_process, "CudaEngine", Device)
    expected = fit_table(likes, QUICK)
    model = fit_table(likes, QUICK, device="cuda")
    assert model.info.objective_history == expected.info.objective_history
    np.testing.assert_array_equal(model.users.known.location, expected.users.known.location[::-1])
    ratings = ArrowRatings(ArrowTable.of(likes), Columns())
    keep = Execution(device="cuda", checkpoint_dir=str(tmp_path / "c"), checkpoint_interval=2)
    for config, how in ((replace(QUICK, max_iter=3), keep), (QUICK, replace(keep, resume=True))):
        resumed = fitted_by(config, ratings, how)
    np.testing.assert_allclose(
        resumed.info.objective_history, expected.info.objective_history, rtol=1e-7
    )


def test_memory_is_checked_for_the_rank_at_the_start(likes, monkeypatch):
    """As ``fit_arrays`` does, although the rank may grow."""

    def of_block(block, form):
        raise RequestError(f"rank {form.rank}")

    monkeypatch.setattr(core_config, "no_device", lambda: None)
    monkeypatch.setattr(in_process.CudaEngine, "of_block", of_block)
    for max_rank, first in ((64, 10), (4, 4)):
        with pytest.raises(RequestError, match=f"rank {first}$"):
            fit_table(likes, FitConfig(max_rank=max_rank), device="cuda")


def test_a_device_that_is_not_there(likes, monkeypatch):
    monkeypatch.setattr(core_config, "no_device", lambda: "finds no GPU: choose 'cpu'")
    with pytest.raises(RequestError, match="device 'cuda' finds no GPU: choose 'cpu'"):
        fit_table(likes, QUICK, device="cuda")
    with pytest.raises(RequestError, match="device must be one of cpu, cuda, not 'tpu'"):
        fit_table(likes, QUICK, device="tpu")


def test_from_files_frames_and_tables(likes, tmp_path):
    pandas = pytest.importorskip("pandas")
    pacsv.write_csv(likes, tmp_path / "likes.csv")
    expected = fit_table(likes, QUICK)
    for source in (
        str(tmp_path / "likes.csv"),
        tmp_path / "likes.csv",
        pandas.DataFrame(likes.to_pydict()),
    ):
        model = fit_table(source, QUICK)
        np.testing.assert_array_equal(model.users.known.location, expected.users.known.location)
        assert model.info.fingerprint == expected.info.fingerprint


def test_it_predicts_recommends_and_saves(likes, tmp_path):
    model = fit_table(likes, QUICK)
    pairs = pa.table({"user": ["u03", "unseen"], "item": ["i01", "i02"], "more": [1.5, 2.5]})
    predicted = model.transform(pairs)
    assert predicted.column_names == [
        "user",
        "item",
        "more",
        "score",
        "std",
        "probability",
        "prediction",
    ]
    np.testing.assert_array_equal(
        predicted["score"].to_numpy(), model.score(pairs["user"], pairs["item"])
    )
    with pytest.raises(RequestError, match="the pairs have no column 'item'"):
        model.transform(pairs.drop_columns(["item"]))
    assert model.recommend("u03", 2)["rank"].to_pylist() == [1, 2]
    model.save(tmp_path / "model")
    loaded = onebit_spark.load(tmp_path / "model")
    assert loaded.transform(pairs) == predicted
    assert type(loaded) is type(model)
    assert loaded.info.id_types == {"user": "string", "item": "string"}
    np.testing.assert_array_equal(loaded.fitted.hashes, model.fitted.hashes)


def test_its_own_ratings_certify_nothing(likes, tmp_path):
    held_out = likes.slice(0, 100)
    fitted = likes.slice(100)
    model = fit_table(fitted, QUICK)
    model.save(tmp_path / "model")
    columns = [fitted[name] for name in ("user", "item", "label")]
    with pytest.raises(
        RequestError, match=r"100.0% of them are of cells that the model was fitted on"
    ):
        onebit_spark.load(tmp_path / "model").certify(*columns)
    seen = set(zip(fitted["user"].to_pylist(), fitted["item"].to_pylist(), strict=True))
    fresh = [row for row in held_out.to_pylist() if (row["user"], row["item"]) not in seen]
    (limit, *others) = model.certify(
        *([row[name] for row in fresh] for name in ("user", "item", "label")), max_error=[0.4]
    )
    wrong = sum(model.predict(row["user"], row["item"])[0] != row["label"] for row in fresh)
    assert (limit.name, limit.n, limit.inputs["errors"]) == ("holdout", len(fresh), wrong)
    assert limit.bound > wrong / len(fresh)
    assert [item.name for item in others] == ["selective"]
    certified = model.with_certificates([limit, *others])
    assert model.headline != certified.headline
    assert certified.headline.startswith(limit.statement)
    assert certified.with_certificates([limit], instead_of=["selective"]).certificates == [
        limit,
        limit,
    ]
    table = certified.transform(held_out)
    assert (
        table["answered"].to_pylist()
        == certified.answered(held_out["user"], held_out["item"]).tolist()
    )


@pytest.fixture(scope="module")
def strangers(likes):
    """A model, ratings of cells that it was not fitted on, and ratings of items that it does not
    know.
    """
    model = fit_table(likes.slice(0, 300), QUICK)
    fitted = set(zip(*(likes[name].to_pylist()[:300] for name in ("user", "item")), strict=True))
    rows = [row for row in likes.slice(300).to_pylist() if (row["user"], row["item"]) not in fitted]
    known = {name: [row[name] for row in rows] for name in likes.column_names}
    others = {
        "user": ["u03"] * 200,
        "item": [f"new{k}" for k in range(200)],
        "label": [1] * 150 + [-1] * 50,
    }
    return model, known, others


@pytest.mark.parametrize("rule", ["drop", "nan"])
def test_what_is_not_predicted_is_not_certified(strangers, rule):
    """Unknown pairs count as not answered, and as not found; the sentences name them. No threshold
    depends on them.
    """
    model, known, others = strangers
    both = {name: known[name] + others[name] for name in known}
    n = len(known["user"])
    total = len(both["user"])
    asked = {"max_error": [0.45], "min_precision": [0.3], "groups": ["known"] * n + ["new"] * 200}
    certificates = replace(model, cold_start=rule).certify(both, **asked)
    holdout, selective, precision = (item for item in certificates if not item.inputs.get("group"))
    alone = model.certify(known, max_error=[0.45], min_precision=[0.3])
    assert (holdout.n, holdout.bound, holdout.inputs["errors"]) == (
        n,
        alone[0].bound,
        alone[0].inputs["errors"],
    )
    assert holdout.over == KNOWN
    assert (
        "of ratings like those that were kept out, of users and items that the model knows; "
        in holdout.statement
    )
    for item, before in zip((selective, precision), alone[1:], strict=True):
        assert item.inputs["threshold"] == before.inputs["threshold"] is not None
        assert item.inputs["errors"] == before.inputs["errors"]
        assert (item.n, item.inputs["n_answered"]) == (total, before.inputs["n_answered"])
        assert item.inputs["answered_share"] == before.inputs["n_answered"] / total
    assert precision.inputs["n_class"] == alone[2].inputs["n_class"] + 150
    assert precision.inputs["found_share"] < alone[2].inputs["found_share"]
    hows = "", " and count as not answered", " and count as not called"
    for item, how in zip((holdout, selective, precision), hows, strict=True):
        note = (
            "Pairs with a user or an item that the model does not know are not "
            f"predicted{how}: 200 of the {total}"
        )
        assert note in item.statement
        assert item.inputs["unknown_left_out"] == 200
        assert "not predicted" not in alone[0].statement
    groups = {
        item.inputs["group"]["value"]: item for item in certificates if item.inputs.get("group")
    }
    assert "0 held-out ratings are too few" in groups["new"].statement
    assert groups["known"].inputs["unknown_left_out"] == 0
    everything = model.certify(both)[0]
    assert (everything.n, "unknown_left_out" in everything.inputs) == (total, False)
    with pytest.raises(
        RequestError, match="certify nothing: each is of a user or an item that the model does"
    ):
        replace(model, cold_start=rule).certify(others)


def test_calls_are_those_that_were_certified(strangers):
    """Pairs that did not take part in the certificate are not called, also where they are predicted
    later.
    """
    model, known, others = strangers
    asked = {"max_error": [0.45], "min_precision": [0.3]}
    for rule, called in (("prior", True), ("drop", False)):
        certificates = replace(model, cold_start=rule).certify(known, **asked)
        found = model.with_certificates(certificates).predictions("u03", others["item"])
        assert not found["prediction"].null_count
        calls = [
            model.answered("u03", others["item"], certificates[1]),
            found["answered"],
            found["positive"],
        ]
        assert [bool(np.any(np.asarray(each))) for each in calls] == [called] * 3


def test_the_jobs_certify_what_the_saved_model_predicts(strangers, tmp_path, capsys):
    model, known, others = strangers
    both = pa.table({name: known[name] + others[name] for name in known})
    model = replace(model, cold_start="drop")
    certified = model.with_certificates(model.certify(both, max_error=[0.45]))
    paths = {
        name: str(tmp_path / name) for name in ("model", "both.parquet", "found.json", "predicted")
    }
    certified.save(paths["model"])
    pq.write_table(both, paths["both.parquet"])
    evaluated = ["--ratings", paths["both.parquet"], "--certify", "--output", paths["found.json"]]
    assert main(["evaluate", "--model", paths["model"], *evaluated, "--max-error", "0.45"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [item["statement"] for item in found["certificates"]] == [
        item.statement for item in certified.certificates
    ]
    assert "200 of the" in capsys.readouterr().out
    given = ["--pairs", paths["both.parquet"], "--output", paths["predicted"]]
    assert main(["predict", "--model", paths["model"], *given]) == 0
    predicted = pq.read_table(paths["predicted"])
    new = pc.starts_with(predicted["item"], "new").to_numpy()
    answered = predicted["answered"].to_numpy()
    assert (len(predicted), new.sum()) == (len(both), 200)
    assert answered[~new].any()
    assert not answered[new].any()


def test_side_features(likes, caplog):
    """Ids without ratings are known by their features; other ids can be folded in by theirs."""
    ages = pa.table({"user": names("u", range(40)), "age": [float(n % 7) for n in range(40)]})
    model = fit_table(likes, QUICK, user_features=ages)
    assert list(model.feature_weights().to_pylist()[0].values()) == list(
        feature_effects(model.info, "user")[0]
    )
    assert model.feature_weights()["feature"].to_pylist() == ["age"]
    with pytest.raises(RequestError, match="without item features"):
        model.feature_weights("item")
    assert model.info.n_users == 40
    assert model.info.side_features["user"]["newcomers"] == 40 - len(set(likes["user"].to_pylist()))
    more = model.fold_in_features(pa.table({"User": ["new", "u01"], "AGE": [3.0, None]}))
    assert caplog.messages == [
        "user features: age: 1 of 2 values are null, NaN or infinite and count as the mean"
    ]
    assert (more.info.n_users, more.info.side_features["user"]["newcomers"]) == (41, 13)
    same_age = "u38"  # without ratings, of the age 3
    np.testing.assert_allclose(more.score("new", "i01"), model.score(same_age, "i01"), rtol=1e-6)
    assert more.score("u01", "i01") == model.score("u01", "i01")
    with pytest.raises(RequestError, match="the model was fitted with age, which is not there"):
        model.fold_in_features(pa.table({"user": ["new"]}))
    with pytest.raises(
        RequestError, match="user features: 1 id with several lines, such as new: keep one each"
    ):
        model.fold_in_features(pa.table({"user": ["new", "new"], "age": [1.0, 2.0]}))
    with pytest.raises(RequestError, match="the model was fitted without item features"):
        model.fold_in_features(ages, "item")
    with pytest.raises(RequestError, match="2 ids with several lines, such as u00, u01"):
        fit_table(likes, QUICK, user_features=pa.concat_tables([ages, ages.slice(0, 2)]))
    with pytest.raises(
        RequestError, match="column 'user' is of type bigint, but user ids are of type string"
    ):
        fit_table(likes, QUICK, user_features=pa.table({"user": [1], "age": [1]}))


def test_features_of_known_ids_keep_the_certificates_and_new_ids_drop_them_in_one_line(
    likes, tmp_path, caplog
):
    ages = pa.table({"user": names("u", range(30)), "age": [float(n % 7) for n in range(30)]})
    model = fit_table(likes, QUICK, user_features=ages)
    given = {"user": ["u01"] * 60, "item": ["i99"] * 60, "label": [1] * 59 + [-1]}
    model = model.with_certificates(model.certify(given, max_error=[0.3], min_precision=[0.6]))
    assert model.fold_in_features(ages) is model
    new = pa.table({"user": ["new", "u01", "newer"], "age": [3.0, 1.0, 2.0]})
    n_said = len(caplog.messages)
    grown = model.fold_in_features(new)
    dropped = (
        "the model predicts 2 more users from features. Its certificates were about predictions "
        "without these "
        "features, so it drops them (holdout, selective, precision) and the columns answered, "
        "positive: certify it on "
        "fresh ratings"
    )
    assert caplog.messages[n_said:] == [dropped]
    assert grown.certificates == []
    grown.fold_in_features(pa.table({"user": ["newest"], "age": [3.0]}))
    assert caplog.messages[n_said:] == [dropped]

    model.save(tmp_path / "model")
    for name, table in {
        "pairs": likes.select(["user", "item"]).slice(0, 5),
        "known": ages,
        "new": new,
    }.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for name, calls, said in (("known", ["answered", "positive"], 1), ("new", [], 2)):
        flags = (
            f"--model {{0}}/model --pairs {{0}}/pairs.parquet --user-features {{0}}/{name}.parquet"
        )
        assert (
            main(f"predict {flags} --output {{0}}/{name}.csv --quiet".format(tmp_path).split()) == 0
        )
        assert pacsv.read_csv(tmp_path / f"{name}.csv").column_names[6:] == calls
        assert caplog.messages.count(dropped) == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": FitConfig(rank=0)}, "rank must be"),
        ({"threshold": float("nan")}, "threshold must be a finite number"),
        ({"label_col": "stars"}, "there is no column 'stars' for the label"),
        ({"certify": Terms(delta=2)}, "delta must"),
    ],
)
def test_bad_requests(likes, arguments, message):
    with pytest.raises(RequestError, match=message):
        fit_table(likes, **arguments)
    with pytest.raises(RequestError, match=r"the ratings: nowhere.csv does not exist"):
        fit_table("nowhere.csv")


# ---- checkpoints -------------------------------------------------------------------------------


def fitted(likes, execution, terms=None, on_iteration=None, **settings):
    source = ArrowRatings(ArrowTable.of(likes), Columns())
    config = FitConfig(**{"rank": 2, "tol": 0.0, "likelihood_weight": 1.0, **settings})
    return fitted_by(config, source, execution, terms, on_iteration)


def fitted_by(config, source, execution, terms=None, on_iteration=None):
    """The pipeline, with checkpoints."""
    task = FitTask(config, terms, Columns(), source.id_types, execution=execution)
    ratings = source.divided().to_fit
    opening = driver_state(ratings, config, execution.device)
    return fit_model(task, ratings, LocalModels(), opening, on_iteration)


def test_a_fit_goes_on_from_a_checkpoint_and_ends_at_the_same_bits(likes, tmp_path):
    folder = tmp_path / "interrupted"
    keep = Execution(checkpoint_dir=str(folder), checkpoint_interval=2)
    fitted(likes, keep, max_iter=5)
    (checkpoint,) = folder.iterdir()
    assert checkpoint.name == "iteration-000004"
    assert onebit_spark.load(checkpoint).info.iterations == 4
    resumed = fitted(likes, replace(keep, resume=True), max_iter=9)
    whole = fitted(likes, replace(keep, checkpoint_dir=str(tmp_path / "whole")), max_iter=9)
    assert resumed.info.objective_history == whole.info.objective_history
    np.testing.assert_array_equal(resumed.users.known.location, whole.users.known.location)


def test_checkpoints_of_other_fits_are_refused(likes, tmp_path):
    keep = Execution(checkpoint_dir=str(tmp_path), checkpoint_interval=2)
    fitted(likes, keep, max_iter=3)
    with pytest.raises(RequestError, match=r"there is a checkpoint in .*: resume from it"):
        fitted(likes, keep, max_iter=3)
    resume = Execution(checkpoint_dir=str(tmp_path), resume=True)
    with pytest.raises(RequestError, match=r"is of another fit: .*seed was 0 and is 1"):
        fitted(likes, resume, max_iter=3, seed=1)
    with pytest.raises(RequestError, match="is of another fit: ratings was 500 and is 400"):
        fitted(likes.slice(100), resume, max_iter=3)
    content = json.loads(next(tmp_path.glob("*/checkpoint.json")).read_text())
    assert content["subject"]["ratings"] == 500


def test_a_file_with_another_separator(tmp_path):
    (tmp_path / "likes.txt").write_text(
        "user;item;label\n" + "".join(f"u{k % 5};i{k % 7};{k % 2}\n" for k in range(40))
    )
    with pytest.raises(
        RequestError, match=r"fields look separated by ';', set options=\{'sep': ';'\}"
    ):
        fit_table(tmp_path / "likes.txt", options={"format": "csv"})
    assert (
        fit_table(tmp_path / "likes.txt", QUICK, options={"format": "csv", "sep": ";"}).info.n_users
        == 5
    )


def test_two_fits_do_not_share_a_folder_of_checkpoints(likes, tmp_path):
    """The second is refused, unless it resumes. Then the first ends with a line that says so."""
    keep = Execution(checkpoint_dir=str(tmp_path), checkpoint_interval=2)
    second = []

    def start_another(step):
        if step.number == 1:
            with pytest.raises(
                RequestError,
                match=r"another fit writes its checkpoints to .*: choose another folder",
            ):
                fitted(likes, keep)
        if step.number == 3:
            second.append(fitted(likes, replace(keep, resume=True), max_iter=3))
            (tmp_path / OWNER).write_text("the token of a fit that still runs")

    with pytest.raises(FitFailed, match="another fit has resumed from the checkpoints in"):
        fitted(likes, keep, max_iter=9, on_iteration=start_another)
    assert len(second) == 1
    clear_checkpoints(None, str(tmp_path))
    assert not list(tmp_path.iterdir())
    fitted(likes, keep, max_iter=1)
    assert not list(tmp_path.iterdir())  # a fit that has ended leaves no token


def test_a_resumed_fit_pays_for_ranks_only_if_they_were_tried(likes, tmp_path):
    """With few ratings nothing is chosen, and no other rank could have been."""
    keep = Execution(checkpoint_dir=str(tmp_path), checkpoint_interval=2)
    auto = {"rank": "auto", "likelihood_weight": None, "implicit_features": False}
    fitted(likes, keep, max_iter=3, terms=Terms(), **auto)
    resumed = fitted(likes, replace(keep, resume=True), max_iter=5, terms=Terms(), **auto)
    whole = fitted(
        likes,
        Execution(checkpoint_dir=str(tmp_path / "whole"), checkpoint_interval=2),
        max_iter=5,
        terms=Terms(),
        **auto,
    )
    assert resumed.certificate == whole.certificate
    assert whole.certificate["certificates"]


# ---- tables in and out -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(likes):
    return fit_table(likes, QUICK)


def test_seen_pairs_may_be_a_table(model, likes):
    pandas = pytest.importorskip("pandas")
    everything = model.recommend("u03", 20)["item"].to_pylist()
    pair = {"user": ["u03"], "item": everything[:1]}
    for seen in (
        pair,
        pandas.DataFrame(pair),
        pa.table(pair),
        (pair["user"], pair["item"]),
        list(pair.values()),
    ):
        assert model.recommend("u03", 20, seen=seen)["item"].to_pylist() == everything[1:]
    for wrong, reason in (
        (["u03"], "must be an Arrow table"),
        (pa.table({"user": ["u03"]}), "no column 'item'"),
    ):
        with pytest.raises(RequestError, match=f"the seen pairs .*{reason}"):
            model.recommend("u03", 20, seen=wrong)


def test_ratings_may_be_a_table(model):
    pandas = pytest.importorskip("pandas")
    given = {"user": ["new"] * 4, "item": [f"i{j:02}" for j in range(4)], "label": [1, -1, 1, 1]}
    expected = model.fold_in(*given.values())
    for table in (given, pa.table(given), pandas.DataFrame(given)):
        found = model.fold_in(table)
        np.testing.assert_array_equal(
            found.score("new", found.items.ids), expected.score("new", found.items.ids)
        )
        assert model.certify(table)[0].n == 4
    with pytest.raises(RequestError, match="must be users, items and labels, or one table"):
        model.certify(given["user"], given["item"])
    with pytest.raises(RequestError, match="cannot certify: there is no rating"):
        model.certify([], [], [])


@pytest.mark.parametrize(
    "grown", [FittedModel.fold_in, partial(FittedModel.fold_in, only_new=True), FittedModel.update]
)
def test_ratings_that_a_model_has_taken_in_do_not_certify_it(model, grown):
    new = (
        [f"n{i}" for i in range(10) for _ in range(18)],
        [f"i{j:02}" for j in range(18)] * 10,
        [1, -1] * 90,
    )
    with pytest.raises(
        RequestError, match=r"100.0% of them are of cells that the model was fitted on"
    ):
        grown(model, *new).certify(*new)
    assert model.certify(*new)[0].inputs["freshness"]["checked"]


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_transform_gives_the_kind_of_table_that_it_got(model, library):
    package = importlib.import_module(library)
    make = package.table if library == "pyarrow" else package.DataFrame
    pairs = {"user": ["u03", "nobody"], "item": ["i01", "i02"], "more": [1.5, 2.5]}
    found = model.transform(make(pairs))
    expected = model.predictions(pairs["user"], pairs["item"])
    assert type(found) is type(make(pairs))
    assert list(found["score"]) == list(
        expected["score"] if library == "pyarrow" else expected["score"].to_pylist()
    )
    assert len(replace(model, cold_start="drop").transform(make(pairs))) == 1
    with pytest.raises(
        RequestError, match="output column 'std' is already there: drop or rename it"
    ):
        model.transform(make({**pairs, "std": [1, 2]}))


def test_scores_and_labels_need_no_variances(model, monkeypatch):
    expected = model.predictions("u03", model.items.ids)
    monkeypatch.setattr("onebit_spark.core.scores.compute_variances", None)
    for name, values in (("score", model.score), ("prediction", model.predict)):
        np.testing.assert_array_equal(values("u03", model.items.ids), expected[name])


def test_unknown_ids_get_no_recommendations_and_a_warning(model, caplog):
    assert len(model.recommend(["u03", "nobody"], 2)) == 2
    assert "1 of 2 users are unknown to the model and get no recommendations" in caplog.text


def test_ratings_that_are_held_out_certify(likes):
    model = fit_table(likes, QUICK, holdout=0.2, certify=Terms(delta=0.1))
    (limit,) = [item for item in model.certificates if item.name == "holdout"]
    assert model.info.n_ratings + limit.n == len(likes)
    assert (limit.delta, model.certificate["headline"]) == (0.1, "holdout")
    assert limit.inputs["freshness"]["checked"]
    assert limit.over == KEPT_CELLS
    assert (
        "Cells are rated repeatedly here: this is about the cells that were kept out"
        in limit.statement
    )
    cells = np.unique(cell_hashes(likes["user"], likes["item"]), return_index=True)[1]
    (once,) = fit_table(likes.take(pa.array(cells)), QUICK, holdout=0.2).certificates
    assert once.over == KEPT_CELLS
    assert "Cells are rated repeatedly" not in once.statement
    with pytest.raises(RequestError, match="holdout must be a number between 0 and 1, not 2"):
        fit_table(likes, QUICK, holdout=2)


def test_later_certificates_replace_earlier_ones(likes):
    """As on Spark: those of the predictions. The certificates of draws are about the fit, and
    remain.
    """
    config = replace(QUICK, implicit_features=False)
    model = fit_table(likes.slice(100), config, holdout=0.2, certify=Terms(delta=0.1))
    of_fit = [item.name for item in model.certificates if item.name != "holdout"]
    assert "seeger" in of_fit
    fresh = {
        "user": ["new"] * 60,
        "item": names("i", range(18)).to_pylist() * 3 + ["i00"] * 6,
        "label": [1] * 60,
    }
    given = model.certify(fresh, max_error=[0.3])
    first = model.with_certificates(given)
    assert [item.name for item in first.certificates] == [*of_fit, "holdout", "selective"]
    assert first.headline == given[0].statement
    later = first.with_certificates(first.certify(fresh, terms=Terms(delta=0.5), max_error=[0.4]))
    assert [item.name for item in later.certificates] == [*of_fit, "holdout", "selective"]
    (answering,) = [item for item in later.certificates if item.name == "selective"]
    assert answering.inputs["request"] == 0.4
    pairs = fresh["user"], fresh["item"]
    np.testing.assert_array_equal(later.answered(*pairs), later.answered(*pairs, answering))
    plain = later.with_certificates(first.certify(fresh))
    assert "answered" not in plain.predictions(*pairs).column_names


def test_one_error_rate_may_be_a_number_and_groups_have_one_value_per_rating(model):
    fresh = {"user": ["new"] * 60, "item": ["i00"] * 60, "label": [1] * 60}
    expected = model.certify(fresh, max_error=[0.2], min_precision=[0.9])
    for rate in (0.2, np.float64(0.2), (0.2,)):
        assert model.certify(fresh, max_error=rate, min_precision=0.9) == expected
    json.dumps(model.certify(fresh, max_error=np.float32(0.2))[1].as_dict())
    for given, message in (
        (
            {"max_error": "0.2"},
            r"max_error must hold error rates strictly between 0 and 0.5, not '0.2'",
        ),
        ({"max_error": None}, r"max_error must hold error rates .*, not None"),
        ({"groups": ["a"]}, r"groups must be 60 values, one per rating, not of shape \(1,\)"),
        ({"groups": "a"}, r"groups must be 60 values, one per rating, not of shape \(\)"),
        ({"terms": 0.1}, r"terms must be Terms, such as Terms\(delta=0.1\), not 0.1"),
    ):
        with pytest.raises(RequestError, match=message):
            model.certify(fresh, **given)


def test_the_job_says_where_the_certificates_of_further_groups_are(model, tmp_path, capsys):
    model.save(tmp_path / "model")
    pq.write_table(
        pa.table({"user": ["new"] * 45, "item": names("x", range(45)), "label": [1] * 45}),
        tmp_path / "r.parquet",
    )
    job = (
        f"evaluate --model {tmp_path}/model --ratings {tmp_path}/r.parquet --certify "
        "--certify-by item"
    ).split()
    assert main(job) == 0
    assert (
        "5 more certificates of groups, which --output metrics.json writes to a file"
        in capsys.readouterr().out
    )
    assert main([*job, "--output", str(tmp_path / "metrics.json")]) == 0
    assert "5 more certificates of groups, in the file of --output" in capsys.readouterr().out


def test_what_was_not_certified_is_named_by_the_words_of_python(model):
    for ask, message in (
        (
            lambda: model.recommend("u03", answered_only=True),
            r"certify\(…, max_error=0.1\) to with_certificates first",
        ),
        (
            lambda: model.called("positive", "u03", "i01"),
            r"certify\(…, min_precision=0.9\) to with_certificates first",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            ask()


def test_a_share_that_leaves_nothing_to_fit(likes):
    with pytest.raises(
        RequestError, match=r"^holdout=0.9999 holds all 500 ratings out: choose a smaller share$"
    ):
        fit_table(likes, QUICK, holdout=0.9999)
    labels = pa.array([1, *[-1] * 499])
    with pytest.raises(
        RequestError,
        match=r"^holdout=0.9 leaves \d+ negative ratings to fit, and both classes are need",
    ):
        fit_table(likes.set_column(2, "label", labels), QUICK, holdout=0.9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": {"rank": 3}},
            r"config must be a FitConfig, such as FitConfig\(rank=3\), not {'rank': 3}",
        ),
        ({"certify": 0.1}, r"certify must be Terms, such as Terms\(delta=0.1\), not 0.1"),
    ],
)
def test_settings_of_another_type(likes, ratings, given, message):
    for fit in (partial(fit_table, likes), partial(fit_arrays, *ratings)):
        with pytest.raises(RequestError, match=message):
            fit(**given)


@pytest.mark.parametrize(
    ("weight", "message"),
    [(3e38, r"1e\+30"), (1e-300, r"there is no rating of positive weight.* below 7e-46")],
)
def test_weights_that_no_sum_can_hold(likes, ratings, weight, message):
    weights = np.full(len(likes), weight)
    with pytest.raises(RequestError, match=message):
        fit_table(likes.append_column("w", pa.array(weights)), QUICK, weight_col="w")
    with pytest.raises(RequestError, match=message):
        fit_arrays(*ratings, QUICK, weights=weights)


def test_the_largest_weight_can_be_fitted(likes):
    model = fit_table(
        likes.append_column("w", pa.array(np.full(len(likes), 1e30))), QUICK, weight_col="w"
    )
    assert np.isfinite(model.probability("u03", model.items.ids)).all()


def test_numbers_of_numpy_are_numbers(model):
    two = np.int64(2)
    assert model.recommend("u03", two).equals(model.recommend("u03", 2))
    assert model.next_questions("u03", two).equals(model.next_questions("u03", 2))
    given = {"user": ["u03"] * 3, "item": ["i01", "i02", "i03"], "label": [1, 1, 1]}
    assert json.dumps(model.ranking(given, n=two)) == json.dumps(model.ranking(given, n=2))


@pytest.mark.parametrize("large", [2**63, 2**64 - 9])
def test_ids_of_unsigned_integers_may_be_those_of_python(likes, large):
    codes = likes["user"].combine_chunks().dictionary_encode().indices.to_numpy()
    ids = np.arange(codes.max() + 1, dtype=np.uint64) + np.uint64(large - 20)
    model = fit_table(likes.set_column(0, "user", pa.array(ids[codes])), QUICK)
    plain = [int(each) for each in ids]  # some of them are below 2⁶³
    assert (plain[0] < 2**63 <= plain[-1]) or large > 2**63
    np.testing.assert_array_equal(model.score(plain, "i01"), model.score(ids, "i01"))
    np.testing.assert_array_equal(model.score(plain[-1], "i01"), model.score(ids[-1:], "i01"))
    assert model.recommend(plain[-1], 3).equals(model.recommend(ids[-1:], 3))
    new = {"user": [large + 8] * 2, "item": ["i01", "i02"], "label": [1, -1]}
    np.testing.assert_array_equal(
        model.fold_in(new).score(large + 8, "i01"),
        model.fold_in(*new.values()).score([large + 8], "i01"),
    )
    with pytest.raises(
        RequestError, match="user ids cannot be read: the integers have no common type of 64 bits"
    ):
        model.score(2**64, "i01")
    with pytest.raises(
        RequestError,
        match="the ratings cannot be read: the integers have no common type of 64 bits",
    ):
        model.fold_in({**new, "user": [-1, 2**63]})


def test_a_calibrated_model(model, likes):
    calibrated = model.calibrate(likes)
    assert calibrated.info.calibration is not None
    ids = likes["user"], likes["item"]
    assert np.abs(calibrated.probability(*ids) - model.probability(*ids)).max() > 1e-3
    np.testing.assert_array_equal(calibrated.score(*ids), model.score(*ids))


# ---- a fitted model goes on --------------------------------------------------------------------


def test_a_fit_starts_from_a_model(model, likes):
    """It goes on where the model ended, also with an id that is new to it; it keeps what both were
    fitted on.
    """
    later = pa.concat_tables(
        [likes, pa.table({"user": ["new"] * 3, "item": ["i01", "i02", "i03"], "label": [1, -1, 1]})]
    )
    warm = fit_table(later, replace(QUICK, max_iter=1), initial_model=model)
    cold = fit_table(later, replace(QUICK, max_iter=1))
    assert warm.objective_history[0] < cold.objective_history[0]
    assert len(warm.users.ids) == len(model.users.ids) + 1
    few = fit_table(likes.slice(0, 200), QUICK, initial_model=model)
    with pytest.raises(RequestError, match="certify nothing"):
        few.certify(likes.slice(200))


def test_what_the_initial_model_was_fitted_on_certifies_nothing(likes, caplog):
    """The held-out ratings of its cells are left out of the certificate and of the figures."""
    certified = {"holdout": 0.3, "certify": Terms(delta=0.1)}
    earlier = fit_table(likes.slice(0, 300), QUICK)
    model = fit_table(likes, replace(QUICK, max_iter=1), initial_model=earlier, **certified)
    limit = model.certificates[-1]
    coin = coin_drawn(likes["user"], likes["item"], QUICK.seed) < np.uint64(round(0.3 * 2**32))
    fitted = set(zip(*(likes[name].to_pylist()[:300] for name in ("user", "item")), strict=True))
    cells = zip(likes["user"].to_pylist(), likes["item"].to_pylist(), strict=True)
    new = coin & np.array([cell not in fitted for cell in cells])
    left_out = int(np.sum(coin & ~new))
    assert 0 < new.sum() < coin.sum()
    assert (limit.name, limit.n) == ("holdout", new.sum())
    held_out = likes.filter(pa.array(new))
    assert limit.inputs["errors"] == np.sum(
        model.predict(held_out["user"], held_out["item"]) != held_out["label"]
    )
    assert model.info.diagnostics["n"] == limit.n
    assert limit.inputs["freshness"]["left_out"] == left_out
    assert limit.over == NEW_CELLS
    assert f"Of the ratings that the coin kept out, {left_out} did not count" in limit.statement
    assert f"{left_out} of {coin.sum()} held-out ratings are left out" in caplog.text
    same = fit_table(
        likes, QUICK, initial_model=fit_table(likes, QUICK, holdout=0.3), **certified
    ).certificates[-1]
    assert (same.n, same.over) == (coin.sum(), KEPT_CELLS)
    assert "did not count" not in same.statement


def test_a_holdout_that_the_initial_model_leaves_nothing_of(ratings, likes, model, monkeypatch):
    """It was fitted on all of the held-out ratings, or on some, and does not know which.

    Nothing is fitted then.
    """
    part = CellSketch.of(cell_hashes(likes["user"], likes["item"]), 0)
    initial = {
        "of all": (model, "the cells of all [0-9]+ held-out"),
        "of some": (
            replace(model, fitted=part),
            "the cells of at least [0-9]+ of the [0-9]+ held-out",
        ),
        "unknown": (
            replace(model, fitted=None),
            "does not record the ratings that it was fitted on",
        ),
    }
    monkeypatch.setattr(in_process, "fit_model", None)
    for given, what in initial.values():
        message = (
            f"holdout does not go with this initial_model, which .*{what}.*: fit it with "
            "the same holdout and seed"
        )
        with pytest.raises(RequestError, match=message):
            fit_table(likes, QUICK, holdout=0.3, initial_model=given)
    monkeypatch.undo()
    other = replace(model, fitted=replace(CellSketch.of(np.arange(5)), complete=False))
    limit = fit_table(likes, QUICK, holdout=0.3, initial_model=other).certificates[-1]
    assert not limit.inputs["freshness"]["checked"]
    assert "could not be checked" in limit.statement


def test_a_fit_of_arrays_starts_from_a_model(ratings):
    first = fit_arrays(*ratings, QUICK)
    one = replace(QUICK, max_iter=1)
    warm = fit_arrays(*ratings, one, initial_model=first)
    assert (
        warm.objective_history[0]
        <= first.objective_history[-1]
        < fit_arrays(*ratings, one).objective_history[0]
    )
    auto = fit_arrays(*ratings, FitConfig(max_rank=4, max_iter=1, tol=0.0), initial_model=first)
    assert (auto.config.rank, auto.config.likelihood_weight) == (2, 1.0)


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        (replace(QUICK, rank=3), {}, "rank is 2 there and 3 here"),
        (FitConfig(max_rank=1), {}, "it has 2 factors, and max_rank is 1 here"),
        (
            QUICK,
            {"initial_model": "folder"},
            "initial_model must be a FittedModel, not str: see onebit_spark.load",
        ),
    ],
)
def test_initial_models_that_are_refused(model, likes, config, more, message):
    with pytest.raises(RequestError, match=message):
        fit_table(likes, config, **{"initial_model": model, **more})


def test_ids_of_another_type_are_not_those_of_the_model(model, ratings):
    with pytest.raises(
        RequestError, match="the initial model's ids are of type string, those of the ratings int64"
    ):
        fit_arrays(*ratings, QUICK, initial_model=model)


def test_an_update_moves_the_rated_ids_and_no_others(model):
    given = {"user": ["u03", "new", "new"], "item": ["i01", "i02", "fresh"], "label": [1, -1, 1]}
    updated = model.update(given)
    for who in ("user", "item"):
        before = model.factors.side(who)
        after = updated.factors.side(who)
        moved = after.at(after.positions(before.ids)).location != before.known.location
        assert set(before.ids.filter(pa.array(moved.any(axis=1))).to_pylist()) == set(
            given[who]
        ) - {"new", "fresh"}
        assert len(after.ids) == updated.info.count(who) == len(before.ids) + 1
    assert updated.score("new", "fresh") > 0
    assert updated.certificates == []
    assert model.update([], [], []) is model
    with pytest.raises(RequestError, match="fitted without user features"):
        model.update(given, user_features=pa.table({"user": ["new"], "age": [3.0]}))


@pytest.mark.parametrize("method", ["update", "fold_in"])
def test_the_weights_of_a_table_count(likes, method):
    model = fit_table(
        likes.append_column("w", pa.array(np.ones(len(likes)))), QUICK, weight_col="w"
    )
    given = {"user": ["new"] * 3, "item": ["i01", "i02", "i03"], "label": [1, -1, 1]}
    scores = [
        getattr(model, method)({**given, **more}).score("new", ["i01", "i02"])
        for more in ({}, {"w": [1.0, 1.0, 1.0]}, {"w": [1.0, 5.0, 0.0]})
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.abs(scores[1] - scores[2]).max() > 1e-3
    with pytest.raises(RequestError, match=r"weights must be numbers from 0 to 1e\+30"):
        getattr(model, method)({**given, "w": [1.0, -1.0, 1.0]})


@pytest.mark.parametrize("who", ["user", "item"])
def test_ratings_of_unknown_partners_alone_change_nothing(model, who, caplog):
    given = ["eve", "eve"], ["nothing", "nowhere"], [1, -1]
    users, items, labels = given if who == "user" else (given[1], given[0], given[2])
    assert model.fold_in(users, items, labels, who) is model
    assert f"1 of 1 {who}s are not folded in: all their ratings are with" in caplog.text
    partners = (model.items if who == "user" else model.users).ids
    pairs = ("eve", partners) if who == "user" else (partners, "eve")
    for ratings in ((users, items, labels), ([], [], [])):
        nobody = model.fold_in(*ratings, who, only_new=True)
        assert len(nobody.factors.side(who).ids) == 0
        # The prior remains
        np.testing.assert_array_equal(nobody.score(*pairs), model.score(*pairs))


def test_features_of_new_ids(likes):
    """Without ratings of its own, or with them, a new id is nearer to those with its features."""
    users = sorted(set(likes["user"].to_pylist()))
    features = pa.table({"user": users, "age": np.arange(len(users), dtype=np.float64)})
    model = fit_table(likes, QUICK, user_features=features)
    given = {"user": ["new"], "item": ["i01"], "label": [1]}
    old = pa.table({"user": ["new"], "age": [50.0]})
    for found, plain in (
        (model.update(given, user_features=old), model.update(given)),
        (model.fold_in(given, features=old), model.fold_in(given)),
    ):
        assert (
            np.abs(found.score("new", model.items.ids) - plain.score("new", model.items.ids)).max()
            > 1e-3
        )


def test_the_report_of_a_model(model, likes, tmp_path):
    pytest.importorskip("matplotlib")
    held_out = fit_table(likes, QUICK, holdout=0.2)
    for each, name in (
        (held_out, "a.html"),
        (model, "b.html"),
        (model.diagnose(likes, fitted=True), "c.html"),
    ):
        each.report(tmp_path / name)
    whole, plain, fitted = ((tmp_path / f"{name}.html").read_text("utf-8") for name in "abc")
    assert "of held-out ratings predicted wrongly" in whole
    assert "predicted wrongly" not in plain
    assert "were measured on fitted ratings" in fitted
    assert "were measured on fitted ratings" not in whole
    assert (whole.count("<svg"), plain.count("<svg")) == (6, 2)
    held_out.save(tmp_path / "model")
    assert (tmp_path / "model" / "report.html").read_text("utf-8") == whole


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_numbers_of_threads(likes, ratings, threads):
    with pytest.raises(RequestError, match="threads must be an integer of at least 1, not"):
        fit_table(likes, QUICK, threads=threads)
    with pytest.raises(RequestError, match="threads must be an integer of at least 1, not"):
        fit_arrays(*ratings, QUICK, threads=threads)
    assert fit_table(likes, QUICK, threads=np.int64(1)).info.iterations == QUICK.max_iter


def polars_categories(values):
    """As polars hands its Categorical and Enum columns to Arrow."""
    return pa.DictionaryArray.from_arrays(
        pa.array(values, pa.uint32()), pa.array(list("abcdefgh"), pa.string_view())
    )


SMALL = [k % 8 for k in range(40)]
ID_COLUMNS = {
    "uint64": pa.array([2**64 - 1 - k for k in SMALL], pa.uint64()),
    "fixed-size binary": pa.array([bytes([k, 1]) for k in SMALL], pa.binary(2)),
    "date64": pa.array([k * 86_400_000 for k in SMALL], pa.date64()),
    "categories": polars_categories(SMALL),
    "string views": pa.array([str(k) for k in SMALL], pa.string_view()),
    "decimals of 38 digits": pa.array([Decimal(10**37 + k) for k in SMALL], pa.decimal128(38, 0)),
    "small decimals": pa.array([Decimal(k) for k in SMALL], pa.decimal256(10, 0)),
}


@pytest.mark.parametrize("name", ID_COLUMNS)
def test_a_table_that_was_fitted_can_be_predicted(name):
    items = [k % 7 for k in range(40)]
    table = pa.table({"user": ID_COLUMNS[name], "item": items, "label": [k % 2 for k in range(40)]})
    model = fit_table(table, QUICK)
    assert model.info.n_users == 8
    predicted = model.transform(table)
    assert predicted["score"].to_pylist() == model.score(table["user"], table["item"]).tolist()
    assert len(model.fitted.hashes) == len(set(zip(SMALL, items, strict=True)))  # one per cell
    assert model.recommend(table["user"].slice(0, 1), 2).num_rows == 2


@pytest.mark.parametrize(("ids", "cell"), idtypes.cells("fit_table"))
def test_the_guide_says_which_ids_a_table_may_have(ids, cell, tmp_path):
    ratings = idtypes.ratings_of(ids)
    if cell == "no":
        with pytest.raises(
            RequestError, match=r"column 'user' is of type .*, which cannot be an id: cast it"
        ):
            fit_table(ratings, QUICK)
        return
    model = fit_table(ratings, QUICK)
    model.save(tmp_path / "model")
    loaded = onebit_spark.load(tmp_path / "model")
    assert model.info.id_types["user"] == idtypes.named(ids, cell)
    assert (loaded.users.positions(asked_ids(ids, loaded.users.ids.type, "the ids")) >= 0).all()
    for asked in (ratings, ratings.to_pandas(), pl.from_arrow(ratings)):
        np.testing.assert_array_equal(
            loaded.transform(asked)["score"], model.transform(ratings)["score"]
        )


def test_ids_that_no_column_can_hold():
    pandas = pytest.importorskip("pandas")
    labels = {"item": [1, 2], "label": [0, 1]}
    for users, words in (
        ([2**70, 1], "a column 'user' with a value of type int that Arrow cannot hold"),
        (
            [1, "a"],
            "a column 'user' with values of types int, str that Arrow cannot hold; convert it, "
            "to text",
        ),
    ):
        with pytest.raises(RequestError, match=words):
            fit_table(pandas.DataFrame({"user": users, **labels}), QUICK)
    times = pa.array([1, 1001], pa.timestamp("ns"))
    with pytest.raises(
        RequestError,
        match="column 'user' cannot be of Spark's type timestamp_ntz: round it to micro",
    ):
        fit_table(pa.table({"user": times, **labels}), QUICK)


@pytest.mark.parametrize(
    "kind", [pl.Categorical, pl.Enum(list("abcdefgh"))], ids=["Categorical", "Enum"]
)
def test_frames_of_polars(kind):
    """A LazyFrame is collected."""
    users = pl.Series(["abcdefgh"[k] for k in SMALL], dtype=kind)
    frame = pl.DataFrame(
        {"user": users, "item": [k % 7 for k in range(40)], "label": [k % 2 for k in range(40)]}
    )
    model = fit_table(frame.lazy(), QUICK)
    found = model.transform(frame)
    assert found["user"].dtype == users.dtype
    assert found["score"].to_list() == model.transform(frame.to_arrow())["score"].to_pylist()
    assert model.recommend(users[:1], 2).num_rows == 2
