"""From columns of side features to numbers: every kind of column, gaps, and what is left out."""

import json

import numpy as np
import pyarrow as pa
import pytest

from onebit_spark.core.features import (
    MOST_VALUES,
    FeatureCoding,
    SideFeatures,
    learn_coding,
    warn_of_unknown_values,
)


def coded(**columns):
    table = pa.table({"id": list(range(len(next(iter(columns.values()))))), **columns})
    coding, told = learn_coding(table, "id")
    return coding, coding.coded(table), told


def test_a_number_is_standardised():
    coding, lines, told = coded(age=[20, 30, 40])
    assert coding.names == ["age"]
    np.testing.assert_allclose(lines[:, 0], np.array([-10, 0, 10]) / np.std([20, 30, 40]), rtol=1e-6)
    assert told == []


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float32(), pa.decimal128(5, 2)])
def test_kinds_of_numbers_are_the_same_feature(kind):
    _, plain, _ = coded(flag=[0, 1, 1])
    values = pa.array([False, True, True]) if kind == pa.bool_() else pa.array([0, 1, 1]).cast(pa.float64()).cast(kind)
    _, lines, _ = coded(flag=values)
    np.testing.assert_allclose(lines, plain)


def test_a_string_is_a_feature_per_value():
    coding, lines, _ = coded(sex=["f", "m", "m", None])
    assert coding.names == ["sex=f", "sex=m"]
    assert lines[0, 0] > 0 > lines[1, 0]
    assert not lines[3].any()  # missing: the mean
    np.testing.assert_allclose(lines.sum(axis=0), 0, atol=1e-6)


def test_arrays_of_numbers_and_of_strings():
    coding, lines, told = coded(where=[[1.0, 2.0], [3.0, 5.0], [4.0]], genres=[["a", "b"], [], None])
    assert coding.names == ["where[0]", "where[1]", "genres=a", "genres=b"]
    assert lines[2, 1] == 0  # the second element of the third array is missing
    assert lines[0, 2] > 0 > lines[1, 2]
    assert not lines[2, 2:].any()
    assert told == ["where: 1 of 3 values are null, NaN or infinite and count as the mean",
                    "genres: 1 of 3 values are null, NaN or infinite and count as the mean"]  # fmt: skip


def test_columns_share_the_weight_evenly():
    rng = np.random.default_rng(0)
    _, lines, _ = coded(a=rng.normal(size=500), b=rng.choice(list("uvwxyz"), size=500))
    np.testing.assert_allclose(np.sum(lines[:, :1] ** 2), np.sum(lines[:, 1:] ** 2), rtol=1e-4)
    assert np.mean(np.sum(lines**2, axis=1)) == pytest.approx(1.0, rel=1e-4)


def test_columns_that_say_nothing_are_left_out_with_a_reason():
    n = MOST_VALUES + 1
    coding, lines, told = coded(
        same=[1] * n, gone=pa.nulls(n, pa.float64()), name=[f"n{i}" for i in range(n)],
        day=pa.array([1] * n, pa.date32()), good=list(range(n)),
    )  # fmt: skip
    assert coding.names == ["good"]
    assert lines.shape == (n, 1)
    assert told == [
        "same is left out: it has only one value",
        "gone is left out: all its values are missing",
        f"name is left out: it has {n:,} different values, and at most {MOST_VALUES:,} are used",
        "day is left out: a column of type date32[day] cannot be a feature; take numbers, booleans, strings or arrays "
        "of them",
    ]


def test_gaps_count_as_the_mean_and_are_told():
    _, lines, told = coded(age=[1.0, float("nan"), 3.0, None, float("inf")])
    assert lines[1, 0] == lines[3, 0] == lines[4, 0] == 0
    assert told == ["age: 3 of 5 values are null, NaN or infinite and count as the mean"]


def test_other_tables_are_coded_alike_and_unknown_values_are_missing():
    table = pa.table({"id": [1, 2, 3], "age": [10, 20, 30], "sex": ["f", "m", "m"]})
    coding, _ = learn_coding(table, "id")
    again = FeatureCoding.from_list(json.loads(json.dumps(coding.as_list())))
    assert again == coding
    np.testing.assert_array_equal(again.coded(table.slice(1, 1)), coding.coded(table)[1:2])
    other = pa.table({"id": [9], "sex": ["x"], "age": [20]})
    lines = coding.coded(other)
    assert lines[0, 0] == 0  # the mean of the ages
    assert lines[0, 1] != 0  # not f
    assert lines.shape == (1, 3)


def test_chunks_and_dictionaries_make_no_difference():
    whole = pa.table({"id": [1, 2, 3], "sex": ["f", "m", "m"]})
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    encoded = whole.set_column(1, "sex", whole["sex"].dictionary_encode())
    expected = learn_coding(whole, "id")[0].coded(whole)
    for table in (parts, encoded):
        np.testing.assert_array_equal(learn_coding(table, "id")[0].coded(table), expected)


def test_arrays_are_coded_by_their_rated_rows():
    rated = np.array([True, True, False])
    numbers = SideFeatures.of_rows([[0.0], [2.0], [100.0]], rated, "row_features")
    np.testing.assert_allclose(numbers.coded[:, 0], [-1, 1, 99])
    assert SideFeatures.over(pa.table({"sex": ["f", "m", "x"]}), rated).coding.names == ["sex=f", "sex=m"]


def test_values_that_the_coding_cannot_use_are_named(caplog):
    """Of new lines: a null, an infinite number, a string that the fit has not seen."""
    coding, _ = learn_coding(pa.table({"id": [1, 2, 3], "age": [1.0, 2.0, 3.0], "town": ["a", "b", "a"]}), "id")
    warn_of_unknown_values(coding, pa.table({"id": [4], "age": [2.0], "town": ["b"]}), "user features")
    assert not caplog.messages
    lines = pa.table({"id": [4, 5, 6], "age": [float("inf"), 1.0, 1.0], "town": ["c", None, "a"]})
    warn_of_unknown_values(coding, lines, "user features")
    assert caplog.messages == [
        "user features: age: 1 of 3 values are null, NaN or infinite and count as the mean",
        "user features: town: 1 of 3 values are null, NaN or infinite and count as the mean",
        "user features: town: 1 of 3 values were not in the fit, such as 'c'",
    ]
