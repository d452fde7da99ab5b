"""Ratings that Arrow reads: whatever the chunks, types, files and compression, the same arrays; and what is wrong."""

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit_spark.core.hashes import KEPT
from onebit_spark.errors import RequestError
from onebit_spark.input import ratings as arrow_ratings
from onebit_spark.input.ratings import ArrowRatings, Columns, Holdout
from onebit_spark.input.tables import ArrowTable, open_table


def table_of(users, items, labels, **more):
    return pa.table({"user": users, "item": items, "label": labels, **more})


def read(source, columns=None, **choices):
    table = source if isinstance(source, ArrowTable) else ArrowTable.of(source)
    return ArrowRatings(table, columns or Columns()).divided(**choices)


def in_words(ratings):
    """The gathered ratings in a form that can be compared."""
    block = ratings.ratings
    weights = None if block.weights is None else block.weights.tolist()
    return {
        "users": ratings.users.to_pylist(),
        "items": ratings.items.to_pylist(),
        "rows": block.row_pointers.tolist(),
        "codes": block.codes.tolist(),
        "weights": weights,
        "counts": ratings.counts,
        "sketch": [ratings.sketch().hashes.tolist(), ratings.sketch().ratings.tolist()],
    }


def by_hand(lines):
    """The same from the lines (user, item, label), by sorting."""
    users, items = (sorted({line[place] for line in lines}) for place in (0, 1))
    cells = sorted((users.index(u), items.index(i) << 1 | (label > 0)) for u, i, label in lines)
    rows = np.searchsorted([row for row, _ in cells], range(len(users) + 1)).tolist()
    return {"users": users, "items": items, "rows": rows, "codes": [code for _, code in cells]}


LINES = st.lists(
    st.tuples(st.integers(-3, 40), st.integers(0, 10**6), st.sampled_from([-1, 1])), min_size=2, max_size=30
).filter(lambda lines: len({label for *_, label in lines}) == 2)

ID_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.decimal128(12, 0))


@given(LINES, st.integers(1, 9), st.sampled_from(ID_TYPES), st.booleans())
def test_any_chunks_and_types_give_the_same_ratings(lines, size, kind, as_dictionary):
    users, items, labels = (pa.array(column) for column in zip(*lines, strict=True))
    expected = by_hand(lines)
    whole = read(table_of(users, items, labels)).to_fit
    assert {name: in_words(whole)[name] for name in expected} == expected
    ids = (users.cast(pa.decimal128(19, 0)) if pa.types.is_decimal(kind) else users).cast(kind)
    cut = table_of(ids.dictionary_encode() if as_dictionary else ids, items, labels.cast(pa.float32()))
    batches = cut.to_batches(max_chunksize=size)
    parts = pa.Table.from_batches(batches)
    found = in_words(read(parts).to_fit)
    assert [found["rows"], found["codes"]] == [expected["rows"], expected["codes"]]
    assert [int(user) for user in found["users"]] == expected["users"]
    if pa.types.is_integer(kind):  # of which all widths are the same ids
        assert found["counts"] == whole.counts
        assert found["sketch"] == in_words(whole)["sketch"]


@settings(max_examples=15)
@given(LINES, st.sampled_from(["csv", "csv.gz", "parquet", "partitions", "two files"]), st.integers(0, 4))
def test_any_files_give_the_same_ratings(lines, form, seed):
    """As text, for CSV is text; and the same ones are held out."""
    users, items, labels = (pa.array(column) for column in zip(*lines, strict=True))
    table = table_of(users.cast(pa.string()), items.cast(pa.string()), labels)
    with tempfile.TemporaryDirectory() as folder:
        path = written(table, Path(folder), form)
        expected, found = read(table).to_fit, read(open_table(str(path))).to_fit
        assert in_words(found) == {**in_words(expected), "counts": found.counts}
        assert found.counts.fingerprint == expected.counts.fingerprint
        try:
            expected = read(table, holdout=Holdout(0.4, seed))
        except RequestError as error:
            with pytest.raises(RequestError, match=str(error)[:20]):
                read(open_table(str(path)), holdout=Holdout(0.4, seed))
            return
        found = read(open_table(str(path)), holdout=Holdout(0.4, seed))
        assert in_words(found.to_fit) == in_words(expected.to_fit)
        assert sorted(zip(found.kept.users.to_pylist(), found.kept.cells, strict=True)) == sorted(
            zip(expected.kept.users.to_pylist(), expected.kept.cells, strict=True)
        )
        assert found.kept.counts == expected.kept.counts


def written(table, folder, form):
    if form.startswith("csv"):
        path = folder / f"r.{form}"
        sink = pa.BufferOutputStream()
        pacsv.write_csv(table, sink)
        content = sink.getvalue().to_pybytes()
        path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
        return path
    if form == "parquet":
        pq.write_table(table, folder / "r.parquet", row_group_size=3)
        return folder / "r.parquet"
    if form == "two files":
        half = len(table) // 2
        for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
            pq.write_table(part, folder / f"{name}.parquet")
        return folder
    for label in (-1, 1):
        (folder / f"label={label}").mkdir()
        part = table.filter(pa.compute.equal(table["label"], label)).drop_columns(["label"])
        pq.write_table(part, folder / f"label={label}" / "part-0.parquet")
    return folder


def test_a_coin_for_every_cell():
    """All ratings of a cell go the same way, and none is lost."""
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 40, 4000), rng.integers(0, 30, 4000)
    ratings = read(table_of(users, items, np.where(rng.random(4000) < 0.5, 1, -1)), holdout=Holdout(0.3, 5))
    kept = set(zip(ratings.kept.users.to_pylist(), ratings.kept.items.to_pylist(), strict=True))
    block = ratings.to_fit.ratings
    rows = np.repeat(ratings.to_fit.users.to_numpy(), block.row_counts)
    fitted = set(zip(rows.tolist(), ratings.to_fit.items.to_numpy()[block.codes >> 1].tolist(), strict=True))
    assert not kept & fitted
    assert kept | fitted == set(zip(users.tolist(), items.tolist(), strict=True))
    assert block.n_ratings + ratings.kept.counts.n == 4000
    assert 0.2 < len(kept) / 1200 < 0.4


def test_weights(tmp_path):
    """A rating of weight 0 is as if it were not there; text is a number."""
    table = table_of(["a", "a", "b", "c"], ["x", "y", "x", "z"], [1, 0, 0, 1], w=["2", "1.5", "0.25", "0"])
    found = in_words(read(table, Columns(weight="w")).to_fit)
    assert (found["users"], found["items"], found["weights"]) == (["a", "b"], ["x", "y"], [2.0, 1.5, 0.25])
    assert found["counts"].n == 3
    with pytest.raises(RequestError, match="there is no rating of positive weight"):
        read(table.slice(3), Columns(weight="w"))


def test_minus_zero_is_zero():
    found = in_words(read(table_of([0.0, -0.0, 1.0], ["x", "y", "x"], [1, 0, 0])).to_fit)
    assert found["users"] == [0.0, 1.0]
    assert found["rows"] == [0, 2, 3]


@pytest.mark.parametrize(
    ("labels", "threshold", "coding", "positives"),
    [
        ([True, False, True], None, "boolean", 2), ([1, -1, 1], None, "signed", 2), ([0, 1, 0], None, "binary", 1),
        ([5, 3, 4], 3.5, "threshold", 2), (["1", " 0", "1.0"], None, "binary", 2),
        (["4.5", "1e0", "2"], 2, "threshold", 1),
    ],
)  # fmt: skip
def test_codings(labels, threshold, coding, positives):
    counts = read(table_of([1, 2, 3], ["x", "y", "z"], labels), Columns(threshold=threshold)).to_fit.counts
    assert (counts.coding, counts.positives, counts.n) == (coding, positives, 3)


BAD = {
    "ids": (
        table_of([1, None, None, 2], ["x", "y", None, "z"], [1, 0, 1, 0]),
        ["2 ratings with null or NaN in column 'user', such as (None, y, 0), (None, None, 1): drop them",
         "1 ratings with null or NaN in column 'item', such as (None, None, 1)"],
    ),
    "NaN": (table_of([1.0, float("nan")], ["x", "y"], [1, 0]), ["1 ratings with null or NaN in column 'user'"]),
    "labels": (
        table_of([1, 2, 3, 4], ["x"] * 4, [1.0, None, float("nan"), 0.0]),
        ["2 ratings with null or NaN in column 'label', such as (2, x, None), (3, x, nan)"],
    ),
    "words": (
        table_of([1, 2, 3, 4, 5], ["x"] * 5, ["1", "yes", "no", None, "maybe"]),
        ["1 ratings with null or NaN in column 'label', such as (4, x, None)",
         "3 ratings with no number in column 'label', such as (2, x, yes), (3, x, no), (5, x, maybe): labels are"],
    ),
    "outside": (table_of([1, 2, 3], ["x"] * 3, [1, 2, 0]), ["1 ratings with label outside {−1, 1}", "(2, x, 2)"]),
    "mixed": (table_of([1, 2, 3], ["x"] * 3, [1, -1, 0]), ["labels mix −1 (1) and 0 (1)"]),
    "one class": (table_of([1, 2], ["x"] * 2, [1, 1]), ["all 2 labels in column 'label' are positive: both classes"]),
    "empty": (table_of([1], ["x"], [1]).slice(1), ["there is no rating: the input is empty"]),
    "nested": (table_of([[1], [2]], ["x", "y"], [1, 0]), ["'user' is of type array<bigint>, which cannot be an id"]),
    "label type": (table_of([1], ["x"], [b"1"]), ["column 'label' is of type binary, not a number or a boolean"]),
    "two columns": (
        table_of([1], ["x"], [1], USER=[2]), ["there are 2 columns named 'user' for the user (columns: user, item"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("size", [1, 100])
def test_what_is_wrong_is_counted_with_examples(name, size, monkeypatch):
    """However the ratings are cut into tables."""
    monkeypatch.setattr(arrow_ratings, "TABLE_BYTES", 1)
    table, words = BAD[name]
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=size), table.schema)
    with pytest.raises(RequestError) as caught:
        read(chunked)
    for word in words:
        assert word in str(caught.value)


def test_bad_ratings_are_refused_also_with_a_holdout():
    with pytest.raises(RequestError, match="2 ratings with null or NaN in column 'user'"):
        read(BAD["ids"][0], holdout=Holdout(0.5, 0))
    with pytest.raises(RequestError, match="nothing is kept"):
        read(table_of([1, 2], ["x", "y"], [1, 0]), holdout=Holdout(1e-9, 0), nothing="nothing is kept")


def test_a_threshold_on_booleans_is_refused():
    with pytest.raises(RequestError, match="boolean already: drop the threshold"):
        read(table_of([1, 2], ["x", "y"], [True, False]), Columns(threshold=0.5))


def test_many_ratings_have_a_sketch_of_bounded_size(monkeypatch):
    """The number of ratings is not known before they have come."""
    monkeypatch.setattr("onebit_spark.core.hashes.KEPT", 500)
    monkeypatch.setattr(arrow_ratings, "TABLE_BYTES", 10_000)
    rng = np.random.default_rng(0)
    table = table_of(rng.integers(0, 300, 20_000), rng.integers(0, 300, 20_000), rng.integers(0, 2, 20_000))
    sketch = read(table).to_fit.sketch()
    assert 350 < sketch.n_ratings < 650
    assert KEPT > 500  # the patch was one
    assert (sketch.hashes <= sketch.limit).all()
