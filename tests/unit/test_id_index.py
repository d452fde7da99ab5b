"""Positions of ids, prepared once, against a dictionary."""

from datetime import date

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebit_spark.input import id_index
from onebit_spark.input.id_index import finder

whole = st.integers(-(2**63), 2**63 - 1)
KINDS = {
    "integers": (st.integers(-40, 40), pa.int64()),
    "at the ends of 64 bits": (st.sampled_from([-(2**63), 1 - 2**63, 0, 2**63 - 2, 2**63 - 1]), pa.int64()),
    "wide integers": (whole | st.integers(-3, 3), pa.int64()),
    "short integers": (st.integers(-(2**15), 2**15 - 1), pa.int16()),
    "text": (st.text(max_size=3), pa.string()),
    "bytes": (st.binary(max_size=3), pa.binary()),
    "fractions": (st.floats(allow_nan=False), pa.float64()),
    "dates": (st.dates(date(2020, 1, 1), date(2020, 3, 1)), pa.date32()),
    "decimals": (st.decimals(-9, 9, places=1), pa.decimal128(4, 1)),
}


def check(values, asked, kind):
    ascending = sorted(values)
    place = {value: i for i, value in enumerate(ascending)}
    found = finder(pa.array(ascending, kind))(pa.array(asked, kind))
    assert found.dtype == np.int32
    assert found.tolist() == [place.get(value, -1) for value in asked]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dense", [0, 1 << 24])
@settings(max_examples=40)
@given(data=st.data())
def test_every_id_is_found_and_no_other(name, dense, data):
    of, kind = KINDS[name]
    values, others = data.draw(st.sets(of, max_size=40)), data.draw(st.lists(of, max_size=20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index, "DENSE", dense)
        check(values, data.draw(st.permutations([*values, *others])), kind)


def test_two_ids_with_one_hash(monkeypatch):
    monkeypatch.setattr(id_index, "hashes_of", lambda ids: np.array([len(str(i)) for i in ids], np.uint64))
    check({"a", "b", "cc", "dd"}, ["dd", "e", "a", "cc", "b", "fff"], pa.string())
