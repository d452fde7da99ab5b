"""The flags of `reproduce.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onebit_spark.cli.requests import SessionRequest, local_path
from onebit_spark.settings import Check, at_least, is_integer, setting
from paper.movielens import URL
from paper.seeds import FIRST_REPORTED, TUNING

REPORTED = Check(
    f"be from 0 to {TUNING[0] - 1:,} (larger seeds are for tuning)",
    lambda value: is_integer(value) and 0 <= value < TUNING[0],
)


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest(SessionRequest):
    """The flags of all experiments.

    All experiments may use one output folder, and then share one page.
    """

    main = ("output", "replicates", "size", "movielens", "download", "url", "seed", "overwrite")

    output: str = setting(
        None, "folder for the page, its tables and its figure; a killed run continues there"
    )
    seed: int = setting(FIRST_REPORTED, "seed of the first draw that is reported", check=REPORTED)
    overwrite: bool = setting(
        False, "delete the results of earlier runs of this experiment in the folder"
    )


@dataclass(frozen=True, kw_only=True)
class SimulationRequest(ReproduceRequest):
    """Repeat the paper's experiments on simulated matrices."""

    replicates: int = setting(10, "draws per cell", check=at_least(1))
    size: int = setting(200, "number of rows, and of columns, of the matrices", check=at_least(20))


@dataclass(frozen=True, kw_only=True)
class MovieLensRequest(ReproduceRequest):
    """Repeat the paper's experiment on MovieLens-100K."""

    replicates: int = setting(
        10, "number of splits into 95,000 and 5,000 ratings", check=at_least(1)
    )
    movielens: str | None = setting(None, "u.data or ml-100k.zip on this machine")
    download: bool = setting(
        False, "download ml-100k.zip into $ONEBIT_DATA (default: ./data), unless it is there"
    )
    url: str = setting(URL, "the address for --download")

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if (self.movielens is None) != self.download:
            yield "give either --movielens PATH or --download"
        if self.movielens is not None:
            local = local_path(self.movielens) or Path(self.movielens)
            if not local.exists():
                yield f"--movielens {self.movielens} does not exist on this machine"


def data_folder() -> Path:
    return Path(os.environ.get("ONEBIT_DATA", "data"))
