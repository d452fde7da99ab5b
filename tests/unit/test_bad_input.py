"""Bad input is refused in one ValueError that names everything that is wrong."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onebit_spark import FitConfig, fit_arrays
from onebit_spark.settings import Terms

GOOD = FitConfig(rank=1, tol=0, max_iter=1)
ROWS = [0, 0, 1, 1]
COLS = [0, 1, 0, 1]
LABELS = [1, 1, 1, 0]

BAD_ARRAYS = {  # what replaces a good array, and words of the answer
    "lengths differ": ({"labels": [1, 0, 1]}, "differ in length: rows 4, cols 4, labels 3"),
    "no rating": ({"rows": [], "cols": [], "labels": []}, "there is no rating"),
    "two dimensions": (
        {"rows": [[0, 0, 1, 1]]},
        r"rows must be one-dimensional, not of shape \(1, 4\)",
    ),
    "labels outside": ({"labels": [1, 2, 5, 0]}, "labels must be ±1 or 0/1: 2 found, such as 2, 5"),
    "labels between": (
        {"labels": [1, 0.5, 1, 0]},
        "labels must be ±1 or 0/1: 1 found, such as 0.5",
    ),
    "labels infinite": (
        {"labels": [1, np.inf, 1, 0]},
        "labels must be ±1 or 0/1: 1 found, such as inf",
    ),
    "labels NaN": ({"labels": [1, np.nan, 1, 0]}, "labels hold 1 NaN"),
    "labels None": ({"labels": [1, None, 1, 0]}, "labels must be numbers or booleans, not object"),
    "labels text": (
        {"labels": ["1", "0", "1", "0"]},
        "not <U1: convert them to ±1, 0/1 or booleans first",
    ),
    "labels mixed": ({"labels": [1, 0, -1, 1]}, "labels mix 0 and −1"),
    "all positive": ({"labels": [1, 1, 1, 1]}, "labels are all positive: both classes are needed"),
    "all negative": ({"labels": [-1, -1, -1, -1]}, "labels are all negative"),
    "all zero": ({"labels": [0, 0, 0, 0]}, "labels are all negative"),
    "all true": ({"labels": [True] * 4}, "labels are all positive"),
    "rows negative": ({"rows": [0, -3, 1, 1]}, "rows holds negative indices: 1 found, such as -3"),
    "cols negative": (
        {"cols": [0, 1, -2, -1]},
        "cols holds negative indices: 2 found, such as -2, -1",
    ),
    "rows fractional": ({"rows": [0, 0.5, 1, 1]}, "rows must hold integers: 1 found, such as 0.5"),
    "cols NaN": ({"cols": [0, np.nan, 1, 1]}, "cols must hold integers: 1 found, such as nan"),
    "rows infinite": ({"rows": [0, np.inf, 1, 1]}, "rows must hold integers: 1 found, such as inf"),
    "rows text": ({"rows": ["a", "b", "a", "b"]}, "rows must hold integers, not <U1"),
    "cols boolean": ({"cols": [True, False, True, False]}, "cols must hold integers, not bool"),
    "shape too small": ({"shape": (1, 2)}, "rows reaches index 1, beyond the declared shape 1"),
    **{
        f"shape {shape!r}": ({"shape": shape}, "shape must be two integers")
        for shape in (
            (2, -1),
            (2,),
            (2, 2, 2),
            (2.5, 2),
            (np.nan, 2),
            (np.inf, 2),
            ("a", 2),
            5,
            "ab",
        )
    },
}
NOT_POSITIVE = [0, 0.0, -1.0, np.nan, np.inf, -np.inf, "1", True]
BAD_CHOICES = [
    *product(
        ("loss", "prior", "solver", "start", "covariance", "precision"),
        ("nothing", None, ["hinge"]),
    ),
    *((field, value) for field in ("alpha", "beta", "likelihood_weight") for value in NOT_POSITIVE),
    *(("rank", value) for value in (0, -1, 2.0, 1.5, np.nan, "3", True, None)),
    *(("max_iter", value) for value in (0, -5, 10.0, None)),
    *(("seed", value) for value in (-1, 0.5, None, True, 2**63, 2**70)),
    *(("tol", value) for value in (-1e-9, np.nan, np.inf, "0", None)),
    *(("intercepts", value) for value in (1, 0, "yes", None)),
]


def fit(config=GOOD, rows=ROWS, cols=COLS, labels=LABELS, shape=None):
    return fit_arrays(rows, cols, labels, config, shape)


def complaints(**arguments):
    """The lines of the one error."""
    with pytest.raises(ValueError, match=r"^cannot fit:\n- ") as caught:
        fit(**arguments)
    return str(caught.value).split("\n- ")[1:]


def test_the_good_input_is_good():
    """What the tests below spoil in one place."""
    assert np.isfinite(fit().objective_history[0])
    assert fit(shape=(2, 5)).cols.n_rows == 5


@pytest.mark.parametrize("defect", BAD_ARRAYS)
def test_bad_arrays(defect):
    arguments, words = BAD_ARRAYS[defect]
    with pytest.raises(ValueError, match=words):
        fit(**arguments)
    assert len(complaints(**arguments)) == 1


@pytest.mark.parametrize("index", [1e300, 2**62, 2**40], ids=repr)
@pytest.mark.parametrize("side", ["rows", "cols"])
def test_an_index_beyond_what_a_block_can_hold(side, index):
    """Refused before anything of that size is allocated: 2³⁰ rows or columns are the limit of the
    format.
    """
    (complaint,) = complaints(**{side: [0, 1, 1, index]})
    assert side in complaint


@pytest.mark.parametrize(("field", "value"), BAD_CHOICES, ids=repr)
def test_bad_choices(field, value):
    """One complaint, that names the field and the value."""
    (complaint,) = complaints(config=replace(GOOD, **{field: value}))
    assert complaint.startswith(field)
    assert complaint.endswith(f"not {value!r}")


@pytest.mark.parametrize("start", ["spectral", "random"])
def test_the_largest_seed_is_used(start):
    """Rank 4 of a 2 × 2 matrix also draws the filler of the surplus columns, from seed + 1; a
    certificate has coins.
    """
    config = replace(GOOD, seed=2**63 - 1, start=start, rank=4)
    done = fit_arrays(ROWS, COLS, LABELS, config, certify=Terms())
    assert np.isfinite(done.objective_history[0])
    (complaint,) = complaints(config=replace(config, seed=2**63))
    assert complaint == "seed must be an integer from 0 to 2^63 − 1, not 9223372036854775808"


def test_allowed_names_are_listed():
    (complaint,) = complaints(config=replace(GOOD, loss="logistic", solver="gradient"))
    assert "gradient" in complaint
    (complaint,) = complaints(config=replace(GOOD, loss="huber"))
    assert complaint == "loss must be one of hinge, logistic, not 'huber'"


def test_everything_wrong_is_told_at_once():
    config = FitConfig(
        loss="x",
        prior="y",
        rank=0,
        alpha=-1.0,
        beta=np.nan,
        likelihood_weight=0.0,
        tol=-1.0,
        max_iter=0,
    )
    found = complaints(
        config=config, rows=[0, -1], cols=[0.5, 1, 2], labels=[1, 2, 0, 1], shape=(0, 1)
    )
    wrong = ("loss", "prior", "rank", "alpha", "beta", "likelihood_weight", "tol", "max_iter")
    for field in wrong:
        assert sum(line.startswith(field) for line in found) == 1
    data = [line for line in found if not line.startswith(wrong)]
    for words in (
        "differ in length",
        "rows holds negative",
        "cols must hold integers",
        "beyond",
        "labels must be ±1",
    ):
        assert sum(words in line for line in data) == 1
    assert len(found) == len(wrong) + 5


numbers = st.one_of(
    st.integers(-3, 3), st.floats(), st.booleans(), st.none(), st.sampled_from(["hinge", "a", "1"])
)


@given(st.lists(numbers, max_size=5), st.lists(numbers, max_size=5), st.lists(numbers, max_size=5))
def test_any_small_arrays_are_fitted_or_refused(rows, cols, labels):
    """Never another exception, and never a fit that is not a number.

    (Larger indices are tested above.)
    """
    assume(not any(isinstance(x, float) and 1e3 < abs(x) < np.inf for x in (*rows, *cols)))
    try:
        result = fit(rows=rows, cols=cols, labels=labels)
    except ValueError as refusal:
        assert str(refusal).startswith("cannot fit:\n- ")  # noqa: PT017
    else:
        assert np.isfinite(result.objective_history).all()
        assert len(rows) == len(cols) == len(labels) > 1
        assert {float(y) for y in labels} in ({0.0, 1.0}, {-1.0, 1.0})
