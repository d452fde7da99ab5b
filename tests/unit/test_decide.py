"""Which exchange is chosen, from counts and limits alone."""

from types import SimpleNamespace

import pytest

from onebit_spark import FitConfig, RequestError
from onebit_spark.engines.decide import ON_EXECUTORS, ClusterLimits, decide
from onebit_spark.input.collect import SizeEstimate
from onebit_spark.platform.sessions import DriverLimits

DRIVER = DriverLimits(result=2**30, heap=4 * 2**30, memory=8 * 2**30, local=False)
FORM = FitConfig(rank=10).form


def asked(wanted="auto", n=1_000, ids=None, **limits):
    """The choice for n ratings (None: not counted), and for so many users and items (None: not counted)."""
    counted = None if n is None else SizeEstimate(n, 20.0)
    sizes = None if ids is None else SimpleNamespace(n_users=ids[0], n_items=ids[1])
    return decide(wanted, counted, sizes, FORM, ClusterLimits(DRIVER, 2, **limits))


def test_few_ratings_go_to_the_driver_before_and_after_their_ids_are_counted():
    assert asked().exchange == asked(ids=(100, 50)).exchange == "driver"


def test_many_ratings_need_their_ids_counted():
    first = asked(n=10**9)
    assert first.exchange == ON_EXECUTORS
    then = asked(n=10**9, ids=(10**5, 10**4))
    assert then.exchange == "broadcast"
    assert then.reason.startswith(first.reason)  # why not the driver, then why this


def test_ids_may_be_too_many_for_the_driver():
    assert asked(ids=(10**7, 10**7)).exchange == "shuffle"
    assert asked(ids=(10**7, 1_000)).exchange == "mixed"


def test_none_on_the_driver():
    assert asked(n=None, driver_ratings=0).exchange == ON_EXECUTORS
    assert asked("driver", driver_ratings=0).exchange == "driver"  # it binds auto alone


def test_nothing_is_broadcast_on_connect():
    assert asked(broadcasts=False).exchange == "driver"
    assert asked(n=10**9, broadcasts=False).exchange == "shuffle"
    for wanted in ("broadcast", "mixed"):
        with pytest.raises(RequestError, match="not Spark Connect: choose exchange=driver or exchange=shuffle"):
            asked(wanted, n=None, broadcasts=False)


def test_what_was_wanted_is_kept_or_refused():
    for wanted in ("broadcast", "mixed", "shuffle"):
        assert asked(wanted, n=None).exchange == asked(wanted, n=None, ids=(100, 50)).exchange == wanted
    with pytest.raises(RequestError, match="exchange=broadcast collects the factors of one side"):
        asked("broadcast", n=None, ids=(10**7, 10**7))
    with pytest.raises(RequestError, match="exchange=driver cannot work"):
        asked("driver", n=10**10)
