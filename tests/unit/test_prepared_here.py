"""Prepared ratings without Spark: the same fit from a folder as from the source, which is not read."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onebit_spark import RequestError
from onebit_spark.input import packing
from onebit_spark.input.arrow_ratings import ArrowRatings, Holdout
from onebit_spark.input.arrow_table import ArrowTable
from onebit_spark.input.prepared_folder import PreparedHere
from onebit_spark.input.rating_checks import Columns
from onebit_spark.simulate import power_law_ratings

PLAIN, WEIGHTED = Columns(), Columns(weight="weight")


@pytest.fixture
def source(tmp_path):
    """Two files of ratings; some cells are rated more than once, with other labels and weights."""
    rows, cols, labels = power_law_ratings(60, 30, 900, seed=3)
    weights = np.random.default_rng(3).uniform(0.1, 2, 900).round(1)
    at = pa.array(cols).cast(pa.timestamp("us", "Europe/Berlin"))
    table = pa.table({"user": [f"u{i:03}" for i in rows], "item": cols, "label": labels, "weight": weights, "at": at})
    (tmp_path / "ratings").mkdir()
    for part in range(2):
        pq.write_table(table.slice(450 * part, 450), tmp_path / "ratings" / f"{part}.parquet")
    return tmp_path / "ratings"


def read(source, columns=PLAIN, holdout=None):
    """What a fit has to do with the ratings: their source, and the folder for them."""
    ratings = ArrowRatings(ArrowTable.of(source), columns)
    path = str(source.parent / "prepared")
    return ratings, PreparedHere.of(path, columns, ratings.id_types, ratings.origin(holdout))


def spoil(source):
    """Make the ratings unreadable. Only the names, lengths and times of the files are left."""
    for path in source.glob("*.parquet"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("columns", [PLAIN, WEIGHTED, Columns(item="at")], ids=["plain", "weights", "times"])
def test_the_same_ratings_without_the_source(source, columns, monkeypatch):
    monkeypatch.setattr(packing, "BUNDLE", 100)
    monkeypatch.setattr(packing, "SEGMENT", 250)
    ratings, folder = read(source, columns)
    assert folder.ratings() is None
    expected = ratings.divided().to_fit
    folder.keep(expected)
    lines = pq.ParquetFile(source.parent / "prepared" / "bundles" / "part-00000.parquet")
    assert lines.metadata.num_row_groups == lines.metadata.num_rows == 9 + 5  # five segments, each with its counts
    schema = lines.schema_arrow
    _, again = read(source, columns)
    spoil(source)
    found = again.ratings()
    assert schema.equals(packing.LINES)
    assert found.users.equals(expected.users)
    assert found.items.equals(expected.items)
    np.testing.assert_array_equal(found.ratings.codes, expected.ratings.codes)
    np.testing.assert_array_equal(found.ratings.row_pointers, expected.ratings.row_pointers)
    if columns.weight is not None:
        np.testing.assert_array_equal(found.ratings.weights, expected.ratings.weights)
    assert found.tally == expected.tally
    one, two = (each.sketch() for each in (found, expected))
    np.testing.assert_array_equal(one.hashes, two.hashes)
    np.testing.assert_array_equal(one.ratings, two.ratings)


def test_ids_are_counted(source):
    ratings, folder = read(source)
    fit = ratings.divided().to_fit
    folder.keep(fit)
    ids = pq.read_table(source.parent / "prepared" / "ids").to_pylist()
    users = {line["__onebit_user"]: (line["n"], line["above"]) for line in ids if line["side"] == 1}
    table = ArrowTable.of(source).table().to_pylist()
    mine = [line["label"] > 0 for line in table if line["user"] == "u001"]
    assert users["u001"] == (len(mine), sum(mine))
    assert len(users) == fit.n_users
    assert sum(line["n"] for line in ids if line["side"] == 2) == 900


def test_other_ratings_are_refused(source):
    ratings, folder = read(source)
    folder.keep(ratings.divided().to_fit)
    with pytest.raises(RequestError, match=r"are others: threshold was None and is 0\.5: name another folder"):
        read(source, Columns(threshold=0.5))
    with pytest.raises(RequestError, match="are others: the weight column was None and is weight"):
        read(source, WEIGHTED)
    with pytest.raises(RequestError, match="the query that makes the ratings of the source's files is another"):
        read(source, holdout=Holdout(0.5, 0))[1].ratings()
    os.utime(source / "1.parquet", ns=(10**18, 10**18))
    with pytest.raises(RequestError, match=r"a file of the source is changed, .*1\.parquet"):
        read(source)[1].ratings()
    (source / "1.parquet").unlink()
    fewer, same = read(source)
    with pytest.raises(RequestError, match="900 ratings were prepared, and 450 are to be fitted"):
        same.keep(fewer.divided().to_fit)


def test_a_folder_of_spark_is_compared_by_its_content(source):
    """Its query is told in other words."""
    ratings, folder = read(source)
    fit = ratings.divided().to_fit
    folder.keep(fit)
    facts = source.parent / "prepared" / "prepared.json"
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps({**told, "origin": {**told["origin"], "query": "0123abcd"}}))
    _, again = read(source)
    assert again.ratings() is None
    again.keep(fit)
    facts.write_text(json.dumps({**told, "origin": None, "tally": {**told["tally"], "fingerprint": "0-0"}}))
    _, again = read(source)
    assert again.ratings() is None
    with pytest.raises(RequestError, match="of the 900 ratings some are others"):
        again.keep(fit)
    facts.unlink()
    with pytest.raises(RequestError, match="exists and holds no prepared ratings"):
        read(source)
