"""Which exchange is chosen, from counts and limits alone."""

from dataclasses import replace

import pytest

from onebit_spark import FitConfig, RequestError
from onebit_spark.core.setup import form_of
from onebit_spark.data.ratings import SizeEstimate
from onebit_spark.engines.decide import (
    ON_EXECUTORS,
    ClusterLimits,
    Exchange,
    decide,
    driver_exchange,
    takes_slice,
)
from onebit_spark.engines.spark.sessions import DriverLimits

DRIVER = DriverLimits(result=2**30, heap=4 * 2**30, memory=8 * 2**30, local=False)
LAPTOP = replace(DRIVER, heap=2**30, local=True)
SMALL = replace(LAPTOP, memory=2**30)
FORM = form_of(FitConfig(rank=10))


def asked(wanted="auto", n=1_000, ids=None, driver=DRIVER, cores=2, form=FORM, **limits):
    """The choice for n ratings (None: not counted), and for so many users and items (None: not
    counted).
    """
    counted = None if n is None else SizeEstimate(n, 20.0)
    return decide(wanted, counted, ids, form, ClusterLimits(driver, cores, **limits))


def on_driver(n, ids=2000, wanted="auto", limits=LAPTOP, most=None, **size):
    return driver_exchange(wanted, SizeEstimate(n, 20.0, **size), ids, FORM, limits, most)


def test_few_ratings_go_to_the_driver_before_and_after_their_ids_are_counted():
    assert asked().exchange == asked(ids=(100, 50)).exchange == "driver"


def test_the_limit_follows_from_the_memory():
    assert on_driver(10**6) == Exchange(
        "driver",
        "1,000,000 ratings and their factors take about 107 MB of the driver's memory (it takes "
        "up to 100,000,000 "
        "ratings on one machine)",
    )
    small = replace(SMALL, heap=2**29)
    refused = on_driver(3 * 10**7, limits=small)
    assert "half of the 1,024 MB that are free hold 18," in refused
    assert isinstance(on_driver(8 * 10**6, limits=small), Exchange)


def test_beside_a_cluster_it_is_lower_and_the_users_limit_comes_first():
    cluster = replace(DRIVER, heap=2**30, memory=2**36)
    assert isinstance(on_driver(2 * 10**7, limits=cluster), Exchange)
    assert "beside a cluster" in on_driver(2 * 10**7 + 1, limits=cluster)
    assert "driverRatings = 999" in on_driver(1000, most=999)
    assert isinstance(on_driver(1000, most=1000), Exchange)


def test_slices_of_fits_on_executors_go_to_the_driver_by_the_same_rule():
    few = replace(DRIVER, result=10**7)
    for n, driver, most, taken in (
        (2 * 10**7, DRIVER, None, True),
        (2 * 10**7 + 1, DRIVER, None, False),
        (1000, DRIVER, 999, False),
        (1000, DRIVER, 0, False),
        (2 * 10**6, few, None, True),
        (2 * 10**6 + 1, few, None, False),
    ):
        assert takes_slice(False, FORM, driver, most, n, 2000) == taken
    # The weights are collected as well
    assert not takes_slice(True, FORM, few, None, 2 * 10**6, 2000)
    assert not takes_slice(False, FORM, DRIVER, None, 10**6, 4 * 10**6)


def test_the_text_of_the_ids_and_the_factors_count():
    text = 36.0 * 10**7
    assert "half of the 8,192 MB" in on_driver(9 * 10**7, 0, id_bytes=text)
    assert isinstance(on_driver(10**7, 0, "driver", SMALL), Exchange)
    with pytest.raises(RequestError, match="exchange=driver cannot work"):
        on_driver(10**7, 0, "driver", SMALL, id_bytes=text)
    assert "the factors of 4,000,000 ids" in on_driver(10**7, 4 * 10**6)


def test_a_request_beyond_the_memory_is_refused_with_the_numbers():
    with pytest.raises(
        RequestError, match=r"1,000,000,000 ratings .* 22 GB, and .* can take 8,192 MB: choose"
    ):
        on_driver(10**9, wanted="driver")


def test_none_on_the_driver():
    assert asked(n=None, driver_ratings=0).exchange == ON_EXECUTORS
    assert asked("driver", driver_ratings=0).exchange == "driver"  # it binds auto alone


def test_many_ratings_need_their_ids_counted():
    first = asked(n=10**9)
    assert first.exchange == ON_EXECUTORS
    then = asked(n=10**9, ids=(10**5, 10**4))
    assert then.exchange == "broadcast"
    assert then.reason.startswith(first.reason)  # why not the driver, then why this


@pytest.mark.parametrize(
    ("ids", "exchange", "words"),
    [
        ((1000, 1000), "broadcast", "few enough"),
        ((10**7, 1000), "mixed", "those of the items 1 MB, few enough"),
        ((1000, 10**7), "mixed", "those of the users 1 MB, few enough"),
        ((10**7, 10**7), "shuffle", "more than"),
    ],
)
def test_the_size_of_the_factors_decides(ids, exchange, words):
    found = asked(n=10**9, ids=ids)
    assert found.exchange == exchange
    assert words in found.reason
    assert FORM.row_bytes == (11 + 66 + 60) * 4


def test_one_machine_sends_what_its_memory_holds():
    """10⁹ ratings of 10⁷ users on 10⁶ items: by shuffle they would fill its disk."""
    form = form_of(FitConfig(rank=10, loss="hinge"))
    machine = DriverLimits(result=2**40, heap=16 * 2**30, memory=28 * 2**30, local=True)

    def pick(cores=2, **other):
        return asked(
            n=10**9, ids=(10**7, 10**6), driver=replace(machine, **other), cores=cores, form=form
        )

    assert pick().exchange == "broadcast"
    for refused in (pick(cores=4), pick(local=False), pick(heap=8 * 2**30), pick(memory=2**34)):
        assert refused.exchange == "mixed"
        assert "maxResultSize" not in refused.reason
    assert pick(result=2**30).exchange == "mixed"
    assert (
        "; broadcast would need a spark.driver.maxResultSize of 3,441 MB"
        in pick(result=2**30).reason
    )


def test_nothing_is_broadcast_on_connect():
    assert asked(broadcasts=False).exchange == "driver"
    assert asked(n=10**9, broadcasts=False).exchange == "shuffle"
    for wanted in ("broadcast", "mixed"):
        with pytest.raises(
            RequestError, match="not Spark Connect: choose exchange=driver or exchange=shuffle"
        ):
            asked(wanted, n=None, broadcasts=False)


def test_what_was_wanted_is_kept_or_refused():
    for wanted in ("broadcast", "mixed", "shuffle"):
        assert (
            asked(wanted, n=None).exchange
            == asked(wanted, n=None, ids=(100, 50)).exchange
            == wanted
        )
    little = replace(DRIVER, result=1000)
    assert asked(n=10**9, ids=(1000, 1000), driver=little).exchange == "shuffle"
    assert "maxResultSize" in asked(n=10**9, ids=(1000, 1000), driver=little).reason
    for wanted in ("broadcast", "mixed"):
        with pytest.raises(
            RequestError, match=f"exchange={wanted} collects the factors of one side"
        ):
            asked(wanted, n=None, ids=(1000, 1000), driver=little)
    with pytest.raises(RequestError, match="exchange=driver cannot work"):
        asked("driver", n=10**10)
