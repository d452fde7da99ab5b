"""decide: which exchange a fit uses, from counts and limits alone."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.posterior import Form
from onebit_spark.data.ratings import TABLE_BYTES, SizeEstimate
from onebit_spark.engines.spark.sessions import NOT_ON_CONNECT, DriverLimits
from onebit_spark.errors import RequestError

# Bytes of factors that the driver and every Python worker of a cluster hold a copy of.
BROADCAST_BYTES = 512 * 2**20
DRIVER_COPIES = 2
WORKER_COPIES = 2.5  # of the broadcast factors: held, updated; held, taken by a block
BYTES_PER_RATING = 24  # at the peak of a fit on the driver, beside the table that is on its way
BYTES_PER_WEIGHT = 12  # as it came, in the order of the columns and in that of the rows
TABLE_COPIES = 5  # of that table: as it came, as columns, as positions
ID_COPIES = 6  # of the different ids that are text, while their dictionaries are merged and sorted
FACTOR_COPIES = (
    4  # of the factor table then: posterior, rows of the other side, the start's, the model's
)
MOST_RATINGS = 100_000_000  # on the driver of a local session
MOST_RATINGS_BESIDE_CLUSTER = 20_000_000  # more are faster on the executors

ON_EXECUTORS = "executors"  # broadcast, mixed or shuffle: it depends on the number of ids


@dataclass(frozen=True)
class Exchange:
    exchange: str
    reason: str


@dataclass(frozen=True)
class ClusterLimits:
    driver: DriverLimits  # of the driver
    cores: int  # of the executors
    broadcasts: bool = True  # Whether anything can be broadcast. On Spark Connect nothing can.
    # The most ratings that ``auto`` fits on the driver. None: by the memory that is free.
    driver_ratings: int | None = None


def driver_exchange(
    wanted: str,
    counted: SizeEstimate,
    ids: int,
    form: Form,
    limits: DriverLimits,
    most_ratings: int | None,
) -> Exchange | str:
    """``driver`` if the ratings are fitted there, as wanted or by their number and the free memory;
    else why not.

    ``driver`` is refused where the memory is too small; ``most_ratings`` bounds ``auto`` alone.
    ``ids`` counts users and items, 0 if that is not known yet. The bytes of their text are known
    before, by an estimate of how many differ.
    """
    n = counted.n
    factors = FACTOR_COPIES * ids * form.row_bytes
    in_transfer = TABLE_COPIES * min(TABLE_BYTES, n * counted.bytes_per_rating)
    per_rating = BYTES_PER_RATING + (BYTES_PER_WEIGHT if counted.weighted else 0)
    ids_text = ID_COPIES * counted.id_bytes
    needed = per_rating * n + in_transfer + ids_text + factors
    needs = f"{n:,} rating{'s' if n != 1 else ''} and their factors take about {_size(needed)}"
    if wanted == "driver":
        if needed > limits.memory:
            raise RequestError(
                f"exchange=driver cannot work: {needs}, and the driver's Python can take "
                f"{_size(limits.memory)}: "
                "choose exchange=auto, or give the driver more memory"
            )
        return Exchange("driver", f"as requested; {needs} of the driver's memory")
    table = ids * form.row_bytes
    largest = min(BROADCAST_BYTES, limits.heap // 4)
    if table > largest:
        large = f"the factors of {ids:,} ids take {_size(table)}"
        return f"{large}, and the driver sends up to {_size(largest)}"
    if most_ratings is not None:
        limit = most_ratings
        why = f"driverRatings = {most_ratings:,}"
    else:
        room = int(max(0, limits.memory // 2 - factors - in_transfer - ids_text) // per_rating)
        cap = MOST_RATINGS if limits.local else MOST_RATINGS_BESIDE_CLUSTER
        limit = min(room, cap)
        of_memory = f"half of the {_size(limits.memory)} that are free hold {room:,} ratings"
        of_place = (
            f"it takes up to {cap:,} ratings "
            f"{'on one machine' if limits.local else 'beside a cluster'}"
        )
        why = of_memory if room < cap else of_place
    if n > limit:
        return f"{n:,} ratings are more than the driver takes ({why})"
    return Exchange("driver", f"{needs} of the driver's memory ({why})")


def takes_slice(
    weighted: bool, form: Form, limits: DriverLimits, most_ratings: int | None, n: int, ids: int
) -> bool:
    """Whether the driver takes so many packed ratings while a fit on executors chooses its
    settings.
    """
    counted = SizeEstimate(n, 8.0 if weighted else 4.0, weighted=weighted)
    here = driver_exchange("auto", counted, ids, form, limits, most_ratings)
    return isinstance(here, Exchange) and n * counted.bytes_per_rating <= 0.8 * limits.result


def executor_exchange(
    wanted: str, ids: tuple[int, int], form: Form, limits: DriverLimits, cores: int
) -> Exchange:
    """Broadcast, mixed or shuffle, as wanted or by the size of the factors.

    What cannot work is refused.
    """
    n_users, n_items = ids
    sizes = {"users": n_users * form.row_bytes, "items": n_items * form.row_bytes}
    needs = (
        f"the factors of {n_users:,} users and {n_items:,} items take {_size(sum(sizes.values()))}"
    )
    fewer = "users" if n_users < n_items else "items"  # whose factors ``mixed`` keeps on the driver
    collected = {"broadcast": max(sizes.values()), "mixed": sizes[fewer], "shuffle": 0}
    if 1.1 * collected.get(wanted, 0) > limits.result:
        raise RequestError(
            f"exchange={wanted} collects the factors of one side, {_size(collected[wanted])}, "
            "more than "
            f"spark.driver.maxResultSize ({_size(limits.result)}): choose exchange=auto, or raise "
            "that setting "
            "(0 is no limit)"
        )
    if wanted != "auto":
        return Exchange(wanted, f"as requested; {needs}")
    # Bytes of factors that every Python worker may be sent: on one machine, as many as its memory
    # holds for the driver and all workers. A shuffle would send each row once for each block that
    # refers to it, through one disk.
    whole = (
        int(limits.memory / (DRIVER_COPIES + WORKER_COPIES * cores))
        if limits.local
        else BROADCAST_BYTES
    )
    limit = min(whole, limits.heap // 4)
    sent = {"broadcast": sum(sizes.values()), "mixed": sizes[fewer]}
    lacking = ""
    for exchange, size in sent.items():
        if size > limit:
            continue
        if 1.1 * collected[exchange] > limits.result:
            lacking = (
                f"; {exchange} would need a spark.driver.maxResultSize of "
                f"{_size(1.1 * collected[exchange])}"
            )
            continue
        few = needs if exchange == "broadcast" else f"{needs}, those of the {fewer} {_size(size)}"
        return Exchange(
            exchange, f"{few}, few enough to send to every worker (up to {_size(limit)}){lacking}"
        )
    many = lacking or f", more than the {_size(limit)} that every worker may be sent"
    return Exchange("shuffle", needs + many)


def decide(
    wanted: str,
    ratings: SizeEstimate | None,
    ids: tuple[int, int] | None,
    form: Form,
    limits: ClusterLimits,
) -> Exchange:
    """The exchange: as wanted, or by the number of ratings and ids.

    ``ids`` are the numbers of users and items. ``ratings`` and ``ids`` are None if they are not
    counted yet. If the ids decide, the result is ``ON_EXECUTORS``: count them, then call this
    again. What cannot work is refused with a RequestError.
    """
    if not limits.broadcasts and wanted in ("broadcast", "mixed"):
        raise RequestError(
            f"exchange={wanted} {NOT_ON_CONNECT}: choose exchange=driver or exchange=shuffle"
        )
    before = ""
    if wanted == "auto" and limits.driver_ratings == 0:
        before = "driverRatings = 0; "
    elif wanted in ("auto", "driver"):
        assert ratings is not None
        n_ids = 0 if ids is None else sum(ids)
        answer = driver_exchange(wanted, ratings, n_ids, form, limits.driver, limits.driver_ratings)
        if isinstance(answer, Exchange):
            return answer
        before = f"{answer}; "
    if not limits.broadcasts and wanted == "auto":
        return Exchange("shuffle", f"{before}nothing can be broadcast on Spark Connect")
    if ids is None:
        return Exchange(ON_EXECUTORS if wanted == "auto" else wanted, before)
    found = executor_exchange(wanted, ids, form, limits.driver, limits.cores)
    return Exchange(found.exchange, before + found.reason)


def _size(n_bytes: float) -> str:
    """A size in MB, or in GB if it is large."""
    mb = n_bytes / 2**20
    return f"{mb:,.0f} MB" if mb < 10_000 else f"{mb / 1024:,.0f} GB"
