"""Tables and ratings that Arrow reads: whatever the files, chunks, types and compression, the same
arrays.
"""

import gzip
import json
import re
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.csvdialect import DIALECT, LIKED, written

from onebit_spark.data import ratings as rating_input
from onebit_spark.data.files import (
    ArrowTable,
    Unreadable,
    count_rows,
    ending,
    format_of,
    id_text_bytes,
    inferred,
    n_different,
    open_table,
    option_problems,
    text_to_numbers,
)
from onebit_spark.data.hashes import KEPT
from onebit_spark.data.locations import Location
from onebit_spark.data.ratings import ArrowRatings, Columns, Holdout
from onebit_spark.data.user_tables import spark_name
from onebit_spark.errors import RequestError


def test_a_file(tmp_path):
    there = Location(None, str(tmp_path / "new" / "a.json"))
    assert not there.exists()
    there.write_text("one")
    there.write_text("two")
    assert (there.read_text(), there.is_folder(), there.name, there.scheme) == (
        "two",
        False,
        "a.json",
        "file",
    )
    # Nothing half-written is left
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]
    there.delete()
    there.delete()
    assert not there.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """/dev/full is always full."""
    (tmp_path / ".a.json.writing").symlink_to("/dev/full")
    there = Location(None, str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        there.write_bytes(b"new")
    assert (tmp_path / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_moved_and_deleted(tmp_path):
    for name in ("a", "b"):
        Location(None, f"file:{tmp_path}/old/{name}").write_bytes(b"x")
    old = Location(None, f"{tmp_path}/old")
    new = Location(None, f"{tmp_path}/new")
    assert sorted(place.uri for place in old.children()) == [
        f"file:{tmp_path}/old/a",
        f"file:{tmp_path}/old/b",
    ]
    old.move_to(new)
    assert (old.exists(), new.is_folder(), Location(None, new.uri).uri) == (False, True, new.uri)
    assert (new / "a").parent.uri == new.uri
    assert Location(None, "/model").parent.uri == "file:/"
    new.delete()
    assert not new.exists()


def test_the_same_uri_for_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {
        Location(None, path).uri
        for path in ("m", "./m", f"{tmp_path}/m", f"file:{tmp_path}/m", f"file://{tmp_path}/m")
    } == {f"file:{tmp_path}/m"}


@pytest.mark.parametrize(
    ("path", "reason"), [("", "empty"), ("nosuch://a/b", "Unrecognized filesystem")]
)
def test_what_is_no_path(path, reason):
    with pytest.raises(RequestError, match=reason):
        Location(None, path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Protocol not known: nosuch"), "Unrecognized filesystem"),
        (ImportError("Install it"), "Install it"),
    ],
)
def test_a_path_that_fsspec_does_not_open(monkeypatch, error, reason):
    core = types.ModuleType("fsspec.core")
    core.url_to_fs = Mock(side_effect=error)
    monkeypatch.setitem(sys.modules, "fsspec", types.ModuleType("fsspec"))
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    with pytest.raises(RequestError, match=reason):
        Location(None, "nosuch://a/b")


LIKES = pa.table({"user": ["ann", "bob", "eve"], "item": [7, 8, 9], "label": [1, 0, 1]})
TEXT = LIKES.cast(pa.schema([(name, pa.string()) for name in LIKES.schema.names]))
JSON_LINES = "".join(json.dumps(line) + "\n" for line in LIKES.to_pylist())


def csv(table=LIKES, **options):
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink, pacsv.WriteOptions(**options))
    return sink.getvalue().to_pybytes()


FILES = {
    "likes.csv": csv(),
    "likes.CSV": csv(),
    "likes.csv.gz": gzip.compress(csv()),
    "likes.tsv": csv(delimiter="\t"),
    "likes.json": JSON_LINES.encode(),
    "likes.jsonl.gz": gzip.compress(JSON_LINES.encode()),
    "likes.ndjson": JSON_LINES.encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_formats_by_their_ending(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    table = open_table(str(tmp_path / name))
    # As Spark orders JSON
    expected = TEXT if "sv" in name.lower() else LIKES.select(sorted(LIKES.schema.names))
    assert table.table() == expected
    assert open_table(f"file:{tmp_path}/{name}").table() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "csv"),
        ("a.b.parquet", "parquet"),
        ("x/a.JSONL.bz2", "jsonl"),
        ("a.gz", None),
        ("ratings", None),
        ("a.txt", None),
        (".csv", "csv"),
    ],
)
def test_endings(name, expected):
    assert ending(name.rpartition("/")[2]) == expected


def test_a_folder_is_of_the_format_of_its_files(tmp_path):
    assert format_of("data", ["data/_SUCCESS", "data/part-0.csv.gz"]).name == "csv"
    assert format_of("data", ["data/one", "data/two"]).name == "parquet"
    for name in ("b.csv", "a.csv", "_old.csv", ".c.csv"):
        (tmp_path / name).write_bytes(csv(LIKES.slice(0, 1) if name == "a.csv" else LIKES.slice(1)))
    (tmp_path / "below").mkdir()  # Spark does not look into it
    (tmp_path / "below" / "d.csv").write_bytes(csv())
    assert open_table(str(tmp_path)).table() == TEXT
    assert open_table(f"{tmp_path}/[b-z].csv").table() == TEXT.slice(1)


def test_hive_partitions(tmp_path):
    for day, kind in ((1, "a b"), (20, None)):
        folder = (
            tmp_path / f"day={day}" / ("kind=a%20b" if kind else "kind=__HIVE_DEFAULT_PARTITION__")
        )
        folder.mkdir(parents=True)
        pq.write_table(LIKES, folder / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    table = open_table(str(tmp_path))
    assert table.schema.names == ["user", "item", "label", "day", "kind"]
    assert table.table()["day"].to_pylist() == [1, 1, 1, 20, 20, 20]
    assert table.table()["kind"].to_pylist() == ["a b"] * 3 + [None] * 3
    assert spark_name(table.schema.field("day").type) == "int"
    only = table.named({"d": "day"})
    assert pa.Table.from_batches(only.batches(["d"]))["d"].to_pylist() == [1, 1, 1, 20, 20, 20]


def test_csv_as_spark_reads_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a;b;c\n1;"";x\n  \n\n;"q;r";NA\n')
    options = {"SEP": ";", "nullValue": "NA"}
    assert open_table(str(path), options=options).table().to_pylist() == [
        {"a": "1", "b": None, "c": "x"},
        {"a": None, "b": "q;r", "c": None},
    ]
    bare = open_table(str(path), options={"sep": ";", "header": "false"})
    assert bare.schema.names == ["_c0", "_c1", "_c2"]
    assert bare.table().num_rows == 3


@pytest.mark.parametrize("name", DIALECT)
def test_the_dialect_of_csv(tmp_path, name):
    path, options = written(tmp_path, name)
    expected = DIALECT[name][2]
    if isinstance(expected, list):
        assert open_table(path, options=options).table()["user"].to_pylist() == expected
        return
    with pytest.raises(RequestError, match=re.escape(expected)):
        open_table(path, options=options).table()


def test_a_pattern_leaves_other_files_out(tmp_path):
    path, _ = written(tmp_path, "another file")
    assert open_table(f"{path}/*.csv").table().num_rows == 1


def test_the_format_as_an_option(tmp_path):
    (tmp_path / "a.txt").write_text(LIKED.replace(",", ";"))
    assert ArrowTable.of(tmp_path / "a.txt", {"format": "csv", "sep": ";"}).schema.names == [
        "user",
        "item",
        "label",
    ]


def test_inferred_types(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "small,large,huge,real,day,yes,word,none\n1,1,1,1,2020-01-01,True,1,\n"
        "2,5000000000,99999999999999999999,2.5,2020-01-02,false,true,\n"
    )
    types = {
        field.name: spark_name(field.type)
        for field in open_table(str(path), None, {"inferSchema": "true"}).schema
    }
    assert types == {
        "small": "int",
        "large": "bigint",
        "huge": "decimal(20,0)",
        "real": "double",
        "day": "date",
        "yes": "boolean",
        "word": "string",
        "none": "string",
    }
    assert inferred(pa.chunked_array([["True", None, "false"]])).to_pylist() == [True, None, False]


def test_text_as_numbers():
    text = [
        "1",
        " -1 ",
        "+0.5",
        "1e3",
        "2d",
        "NaN",
        "-inf",
        "Infinity",
        "yes",
        "",
        "1_0",
        "0x1",
        None,
    ]
    numbers = text_to_numbers(pa.chunked_array([text])).to_pylist()
    assert [str(value) for value in numbers] == [
        "1.0",
        "-1.0",
        "0.5",
        "1000.0",
        "2.0",
        "nan",
        "-inf",
        "inf",
        "None",
        "None",
        "None",
        "None",
        "None",
    ]


def test_types_are_those_of_spark():
    given = pa.table(
        {
            "a": pa.array(["x"]).dictionary_encode(),
            "b": pa.array([1], pa.uint32()),
            "c": pa.array([1], pa.uint64()),
            "d": pa.array(["x"], pa.large_string()),
            "e": pa.array([0], pa.timestamp("ns", "Europe/Vienna")),
            "f": pa.array([0], pa.timestamp("ms")),
            "g": pa.array([[1]]),
            "h": pa.array([{"id": 1}]),
            "i": pa.array([None]),
        }
    )
    table = ArrowTable.of(given)
    assert [spark_name(field.type) for field in table.schema] == [
        "string",
        "bigint",
        "decimal(20,0)",
        "string",
        "timestamp",
        "timestamp_ntz",
        "array<bigint>",
        "struct<id:bigint>",
        "void",
    ]
    assert table.table().schema == table.schema


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(LIKES.to_pydict())
    assert ArrowTable.of(frame).table() == LIKES
    # The numbers of the lines are no column
    assert ArrowTable.of(frame[frame.index > 0]).table() == LIKES[1:]
    with pytest.raises(
        RequestError, match="must be an Arrow table, or a DataFrame of pandas or polars, not a list"
    ):
        ArrowTable.of([1, 2])


def test_names_without_regard_to_case():
    table = ArrowTable.of(pa.table({"User": [1], "USER": [2], "item": [3]}))
    assert table.matching("user") == ["User", "USER"]
    assert table.matching("Item") == ["item"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.parquet",
            b"no Parquet",
            r"cannot be read as parquet \(check the format and its options\)",
        ),
        ("a.json", b'{"a": 1}\n{"a":\n', "has lines that are no JSON objects"),
        ("a.json", b'{"a": 1}\n{"a": "x"}\n', "cannot be read as json"),
        (
            "a.json",
            b'[{"a": 1}, {"a": 2}]',
            "has lines that are no JSON objects: write one object per line",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Unreadable, match=message):
        open_table(str(tmp_path / name))


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_table(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        open_table(str(tmp_path / "*.csv"))
    with pytest.raises(Unreadable, match="holds no parquet file"):
        open_table(str(tmp_path))
    with pytest.raises(Unreadable, match="foo"):
        open_table("foo://a/b")


def test_a_damaged_file_is_named(tmp_path):
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": list(range(999))}), tmp_path / f"{name}.parquet")
    content = bytearray((tmp_path / "b.parquet").read_bytes())
    content[10:3000] = bytes(2990)
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(
        RequestError, match=f"the file file:{tmp_path}/b.parquet cannot be read, is it damaged"
    ):
        open_table(str(tmp_path)).table()
    (tmp_path / "c.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(
        RequestError, match=r"c\.csv has a line with more or fewer fields than its header: '3'"
    ):
        open_table(str(tmp_path / "c.csv")).table()


def test_text_that_is_not_utf8(tmp_path):
    """At the beginning, and after some megabytes."""
    line = "né,7,1\n"
    for name, text in (("short", line), ("long", "ann,7,1\n" * 10**6 + line)):
        (tmp_path / f"{name}.csv").write_bytes(f"user,item,label\n{text}".encode("latin-1"))
        with pytest.raises(
            RequestError,
            match="invalid UTF8 data: name its encoding by an option, such as encoding=latin1",
        ):
            open_table(str(tmp_path / f"{name}.csv")).table()
    table = open_table(str(tmp_path / "short.csv"), options={"encoding": "latin1"}).table()
    assert table["user"].to_pylist() == ["né"]


def test_files_of_json_with_different_columns(tmp_path):
    """Every column is there, in the widest of its types; times are text, as in Spark."""
    (tmp_path / "a.json").write_text('{"user": 1, "when": "2020-02-03", "w": 0.5}\n{"user": 5.5}\n')
    (tmp_path / "b.json").write_text('{"user": 7, "last": true}\n')
    table = open_table(str(tmp_path)).table()
    columns = {"last": [None, None, True], "user": [1.0, 5.5, 7.0], "w": [0.5, None, None]}
    assert table.to_pydict() == {**columns, "when": ["2020-02-03", None, None]}
    assert table.column_names == ["last", "user", "w", "when"]


def test_rows_are_estimated(tmp_path):
    pq.write_table(LIKES, tmp_path / "a.parquet")
    assert count_rows(str(tmp_path / "a.parquet"), None, {}) == 3
    (tmp_path / "a.csv").write_bytes(csv(pa.concat_tables([LIKES] * 100)))
    assert count_rows(str(tmp_path / "a.csv"), None, {}) == pytest.approx(300, rel=0.05)


def test_options_that_only_spark_knows():
    assert option_problems("csv", {"sep": ";", "Header": "false"}) == []
    assert option_problems("csv", {"sep": "::"}) == [
        "Arrow's reader of csv takes one character for sep"
    ]
    assert option_problems("parquet", {"mergeSchema": "true"}) == [
        "Arrow's reader of parquet has no option mergeSchema"
    ]
    assert option_problems("delta", {}) == ["Arrow does not read the format delta"]


def first(ids, n=1000):
    return pa.array([f"id-{number:06}" for number in ids[:n]])


ROWS = 100_000
IDS = {  # of all rows: what they are, and how far off the estimate may be
    "new": (np.arange(ROWS), 1.01),
    "sorted": (np.arange(ROWS) // 20, 1.2),
    "few": (np.random.default_rng(0).integers(0, 50, ROWS), 1.01),
    "many": (np.random.default_rng(1).integers(0, 30_000, ROWS), 3.5),
    "uneven": ((30_000 * np.random.default_rng(2).random(ROWS) ** 4).astype(int), 3.5),
}


@pytest.mark.parametrize("name", IDS)
def test_how_many_differ(name):
    ids, factor = IDS[name]
    expected = len(np.unique(ids))
    found = n_different(first(ids), ROWS)
    assert expected / factor <= found <= expected * factor


def test_only_text_counts():
    table = pa.table(
        {"User": first(np.arange(1000)), "item": np.arange(1000), "label": ["1"] * 1000}
    )
    opened = ArrowTable.of(table)
    assert id_text_bytes(opened, ("user", "item"), 1000) == pytest.approx(1000 * (9 + 4), rel=0.01)
    assert id_text_bytes(opened, ("user", "item"), 10**6) == pytest.approx(
        10**6 * (9 + 4), rel=0.01
    )
    assert (
        id_text_bytes(opened, ("item",), 10**6) == id_text_bytes(opened, ("nothing",), 10**6) == 0
    )
    assert id_text_bytes(ArrowTable.of(table.slice(0, 1)), ("user",), 10**6) == 0


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
    st.tuples(st.integers(-3, 40), st.integers(0, 10**6), st.sampled_from([-1, 1])),
    min_size=2,
    max_size=30,
).filter(lambda lines: len({label for *_, label in lines}) == 2)

ID_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.decimal128(12, 0))


@given(LINES, st.integers(1, 9), st.sampled_from(ID_TYPES), st.booleans())
def test_any_chunks_and_types_give_the_same_ratings(lines, size, kind, as_dictionary):
    users, items, labels = (pa.array(column) for column in zip(*lines, strict=True))
    expected = by_hand(lines)
    whole = read(table_of(users, items, labels)).to_fit
    assert {name: in_words(whole)[name] for name in expected} == expected
    ids = (users.cast(pa.decimal128(19, 0)) if pa.types.is_decimal(kind) else users).cast(kind)
    cut = table_of(
        ids.dictionary_encode() if as_dictionary else ids, items, labels.cast(pa.float32())
    )
    batches = cut.to_batches(max_chunksize=size)
    parts = pa.Table.from_batches(batches)
    found = in_words(read(parts).to_fit)
    assert [found["rows"], found["codes"]] == [expected["rows"], expected["codes"]]
    assert [int(user) for user in found["users"]] == expected["users"]
    if pa.types.is_integer(kind):  # of which all widths are the same ids
        assert found["counts"] == whole.counts
        assert found["sketch"] == in_words(whole)["sketch"]


@settings(max_examples=15)
@given(
    LINES,
    st.sampled_from(["csv", "csv.gz", "parquet", "partitions", "two files"]),
    st.integers(0, 4),
)
def test_any_files_give_the_same_ratings(lines, form, seed):
    """As text, for CSV is text; and the same ones are held out."""
    users, items, labels = (pa.array(column) for column in zip(*lines, strict=True))
    table = table_of(users.cast(pa.string()), items.cast(pa.string()), labels)
    with tempfile.TemporaryDirectory() as folder:
        path = table_file(table, Path(folder), form)
        expected = read(table).to_fit
        found = read(open_table(str(path))).to_fit
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


def table_file(table, folder, form):
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
    users = rng.integers(0, 40, 4000)
    items = rng.integers(0, 30, 4000)
    ratings = read(
        table_of(users, items, np.where(rng.random(4000) < 0.5, 1, -1)), holdout=Holdout(0.3, 5)
    )
    kept = set(zip(ratings.kept.users.to_pylist(), ratings.kept.items.to_pylist(), strict=True))
    block = ratings.to_fit.ratings
    rows = np.repeat(ratings.to_fit.users.to_numpy(), block.row_counts)
    fitted = set(
        zip(rows.tolist(), ratings.to_fit.items.to_numpy()[block.codes >> 1].tolist(), strict=True)
    )
    assert not kept & fitted
    assert kept | fitted == set(zip(users.tolist(), items.tolist(), strict=True))
    assert block.n_ratings + ratings.kept.counts.n == 4000
    assert 0.2 < len(kept) / 1200 < 0.4


def test_weights(tmp_path):
    """A rating of weight 0 is as if it were not there; text is a number."""
    table = table_of(
        ["a", "a", "b", "c"], ["x", "y", "x", "z"], [1, 0, 0, 1], w=["2", "1.5", "0.25", "0"]
    )
    found = in_words(read(table, Columns(weight="w")).to_fit)
    assert (found["users"], found["items"], found["weights"]) == (
        ["a", "b"],
        ["x", "y"],
        [2.0, 1.5, 0.25],
    )
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
        ([True, False, True], None, "boolean", 2),
        ([1, -1, 1], None, "signed", 2),
        ([0, 1, 0], None, "binary", 1),
        ([5, 3, 4], 3.5, "threshold", 2),
        (["1", " 0", "1.0"], None, "binary", 2),
        (["4.5", "1e0", "2"], 2, "threshold", 1),
    ],
)
def test_codings(labels, threshold, coding, positives):
    counts = read(
        table_of([1, 2, 3], ["x", "y", "z"], labels), Columns(threshold=threshold)
    ).to_fit.counts
    assert (counts.coding, counts.positives, counts.n) == (coding, positives, 3)


BAD = {  # beside those of tests/jobs/test_bad_data.py
    "words": (
        table_of([1, 2, 3, 4, 5], ["x"] * 5, ["1", "yes", "no", None, "maybe"]),
        [
            "1 rating with null or NaN in column 'label', such as (4, x, None)",
            "3 ratings with no number in column 'label', such as (2, x, yes), (3, x, no), (5, x, "
            "maybe): labels are",
        ],
    ),
    "label type": (
        table_of([1], ["x"], [b"1"]),
        ["column 'label' is of type binary, not a number or a boolean"],
    ),
    "two columns": (
        table_of([1], ["x"], [1], USER=[2]),
        ["there are 2 columns named 'user' for the user (columns: user, item"],
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("size", [1, 100])
def test_what_is_wrong_is_counted_with_examples(name, size, monkeypatch):
    """However the ratings are cut into tables."""
    monkeypatch.setattr(rating_input, "TABLE_BYTES", 1)
    table, words = BAD[name]
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=size), table.schema)
    with pytest.raises(RequestError) as caught:
        read(chunked)
    for word in words:
        assert word in str(caught.value)


def test_a_holdout_that_keeps_nothing():
    with pytest.raises(
        RequestError,
        match="holdout holds no rating out: give more ratings, or choose a larger share",
    ):
        read(table_of([1, 2], ["x", "y"], [1, 0]), holdout=Holdout(1e-9, 0))


def test_many_ratings_have_a_sketch_of_bounded_size(monkeypatch):
    """The number of ratings is not known before they have come."""
    monkeypatch.setattr("onebit_spark.data.hashes.KEPT", 500)
    monkeypatch.setattr(rating_input, "TABLE_BYTES", 10_000)
    rng = np.random.default_rng(0)
    table = table_of(
        rng.integers(0, 300, 20_000), rng.integers(0, 300, 20_000), rng.integers(0, 2, 20_000)
    )
    sketch = read(table).to_fit.sketch()
    assert 350 < sketch.n_ratings < 650
    assert KEPT > 500  # the patch was one
    assert (sketch.hashes <= sketch.limit).all()
