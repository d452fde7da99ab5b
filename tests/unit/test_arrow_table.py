"""Tables that Arrow reads: formats by ending, folders, partitions and compression give the same columns as Spark."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from csvdialect import DIALECT, LIKED, written

from onebit_spark.core.user_data import spark_name
from onebit_spark.errors import RequestError
from onebit_spark.input import tables
from onebit_spark.input.tables import (
    ArrowTable,
    Unreadable,
    count_rows,
    ending,
    format_of,
    inferred,
    open_table,
    option_problems,
    text_to_numbers,
)

LIKES = pa.table({"user": ["ann", "bob", "eve"], "item": [7, 8, 9], "label": [1, 0, 1]})
TEXT = LIKES.cast(pa.schema([(name, pa.string()) for name in LIKES.schema.names]))
LINES = "".join(json.dumps(line) + "\n" for line in LIKES.to_pylist())


def csv(table=LIKES, **options):
    sink = pa.BufferOutputStream()
    pacsv.write_csv(table, sink, pacsv.WriteOptions(**options))
    return sink.getvalue().to_pybytes()


FILES = {
    "likes.csv": csv(),
    "likes.CSV": csv(),
    "likes.csv.gz": gzip.compress(csv()),
    "likes.tsv": csv(delimiter="\t"),
    "likes.json": LINES.encode(),
    "likes.jsonl.gz": gzip.compress(LINES.encode()),
    "likes.ndjson": LINES.encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_formats_by_their_ending(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    table = open_table(str(tmp_path / name))
    expected = TEXT if "sv" in name.lower() else LIKES.select(sorted(LIKES.schema.names))  # as Spark orders JSON
    assert table.table() == expected
    assert open_table(f"file:{tmp_path}/{name}").table() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.csv", "csv"), ("a.b.parquet", "parquet"), ("x/a.JSONL.bz2", "jsonl"), ("a.gz", None), ("ratings", None),
     ("a.txt", None), (".csv", "csv")],
)  # fmt: skip
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
        folder = tmp_path / f"day={day}" / ("kind=a%20b" if kind else "kind=__HIVE_DEFAULT_PARTITION__")
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
    assert ArrowTable.of(tmp_path / "a.txt", {"format": "csv", "sep": ";"}).schema.names == ["user", "item", "label"]


def test_inferred_types(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "small,large,huge,real,day,yes,word,none\n1,1,1,1,2020-01-01,True,1,\n"
        "2,5000000000,99999999999999999999,2.5,2020-01-02,false,true,\n"
    )
    types = {
        field.name: spark_name(field.type) for field in open_table(str(path), None, {"inferSchema": "true"}).schema
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
    text = ["1", " -1 ", "+0.5", "1e3", "2d", "NaN", "-inf", "Infinity", "yes", "", "1_0", "0x1", None]
    numbers = text_to_numbers(pa.chunked_array([text])).to_pylist()
    assert [str(value) for value in numbers] == [
        "1.0", "-1.0", "0.5", "1000.0", "2.0", "nan", "-inf", "inf", "None", "None", "None", "None", "None",
    ]  # fmt: skip


def test_types_are_those_of_spark():
    given = pa.table(
        {
            "a": pa.array(["x"]).dictionary_encode(), "b": pa.array([1], pa.uint32()), "c": pa.array([1], pa.uint64()),
            "d": pa.array(["x"], pa.large_string()), "e": pa.array([0], pa.timestamp("ns", "Europe/Vienna")),
            "f": pa.array([0], pa.timestamp("ms")), "g": pa.array([[1]]), "h": pa.array([{"id": 1}]),
            "i": pa.array([None]),
        }
    )  # fmt: skip
    table = ArrowTable.of(given)
    assert [spark_name(field.type) for field in table.schema] == [
        "string", "bigint", "decimal(20,0)", "string", "timestamp", "timestamp_ntz", "array<bigint>",
        "struct<id:bigint>", "void",
    ]  # fmt: skip
    assert table.table().schema == table.schema


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    assert ArrowTable.of(pandas.DataFrame(LIKES.to_pydict())).table() == LIKES
    with pytest.raises(RequestError, match="must be an Arrow table, or a DataFrame of pandas or polars, not a list"):
        ArrowTable.of([1, 2])


def test_names_without_regard_to_case():
    table = ArrowTable.of(pa.table({"User": [1], "USER": [2], "item": [3]}))
    assert table.matching("user") == ["User", "USER"]
    assert table.matching("Item") == ["item"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"no Parquet", r"cannot be read as parquet \(check the format and its options\)"),
        ("a.json", b'{"a": 1}\n{"a":\n', "has lines that are no JSON objects"),
        ("a.json", b'{"a": 1}\n{"a": "x"}\n', "cannot be read as json"),
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
    with pytest.raises(RequestError, match=f"the file file:{tmp_path}/b.parquet cannot be read, is it damaged"):
        open_table(str(tmp_path)).table()
    (tmp_path / "c.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(RequestError, match=r"c\.csv has a line with more or fewer fields than its header: '3'"):
        open_table(str(tmp_path / "c.csv")).table()


def test_text_that_is_not_utf8(tmp_path):
    """At the beginning, and after some megabytes."""
    line = "né,7,1\n"
    for name, text in (("short", line), ("long", "ann,7,1\n" * 10**6 + line)):
        (tmp_path / f"{name}.csv").write_bytes(f"user,item,label\n{text}".encode("latin-1"))
        with pytest.raises(
            RequestError, match="invalid UTF8 data: name its encoding by an option, such as encoding=latin1"
        ):
            open_table(str(tmp_path / f"{name}.csv")).table()
    table = open_table(str(tmp_path / "short.csv"), options={"encoding": "latin1"}).table()
    assert table["user"].to_pylist() == ["né"]


JSON_ENDS = {  # whether a file can be read in batches that ends so
    "like the others": ('{"user": 5, "when": "2020-01-01", "w": 1.5}', True),
    "a column is missing": ('{"user": 5}', True),
    "null": ('{"user": null, "w": null}', True),
    "another type": ('{"user": 5.5}', False),
    "another column": ('{"user": 5, "more": [1]}', False),
}


@pytest.mark.parametrize("name", JSON_ENDS)
def test_large_files_of_json_are_read_in_batches(tmp_path, monkeypatch, name):
    """To the same table as all at once."""
    end, in_batches = JSON_ENDS[name]
    text = '{"user": 1, "when": "2020-02-03", "w": 0.5}\n' * 50 + end
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "b.json").write_text('{"user": 7, "last": true}\n')
    monkeypatch.setattr("onebit_spark.input.tables.BLOCK", 200)
    whole = open_table(str(tmp_path))
    monkeypatch.setattr("onebit_spark.input.tables.LARGE", 1000)
    if in_batches:
        monkeypatch.setattr("onebit_spark.input.tables._json", small_only)
    table = open_table(str(tmp_path))
    assert table.schema == whole.schema
    for names in (whole.schema.names, ["user"], ["last", "w"]):
        assert pa.Table.from_batches(table.batches(names)) == pa.Table.from_batches(whole.batches(names))


def small_only(file, read=tables._json):
    assert file.path.endswith("b.json"), "the large file was read at once"
    return read(file)


def test_an_array_in_json_is_no_line(tmp_path):
    (tmp_path / "a.json").write_text('[{"user": 1}, {"user": 2}]')
    with pytest.raises(Unreadable, match="has lines that are no JSON objects: write one object per line"):
        open_table(str(tmp_path / "a.json"))


def test_rows_are_estimated(tmp_path):
    pq.write_table(LIKES, tmp_path / "a.parquet")
    assert count_rows(str(tmp_path / "a.parquet"), None, {}) == 3
    (tmp_path / "a.csv").write_bytes(csv(pa.concat_tables([LIKES] * 100)))
    assert count_rows(str(tmp_path / "a.csv"), None, {}) == pytest.approx(300, rel=0.05)


def test_options_that_only_spark_knows():
    assert option_problems("csv", {"sep": ";", "Header": "false"}) == []
    assert option_problems("csv", {"sep": "::"}) == ["Arrow's reader of csv takes one character for sep"]
    assert option_problems("parquet", {"mergeSchema": "true"}) == [
        "Arrow's reader of parquet has no option mergeSchema"
    ]
    assert option_problems("delta", {}) == ["Arrow does not read the format delta"]
