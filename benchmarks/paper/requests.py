"""The flags of `reproduce.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onebit_spark.cli.requests import SessionRequest, flag, local_path
from paper.movielens import URL
from paper.seeds import FIRST_REPORTED, TUNING


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest(SessionRequest):
    """The flags of all experiments. All experiments may use one output folder, and then share one page."""

    output: str = flag("folder for the page, its tables and its figure; a killed run continues there")
    seed: int = flag("seed of the first draw that is reported", default=FIRST_REPORTED)
    overwrite: bool = flag("delete the results of earlier runs of this experiment in the folder", default=False)

    def problems(self) -> Iterator[str]:
        if not 0 <= self.seed < TUNING[0]:
            yield f"--seed must be from 0 to {TUNING[0] - 1:,}, not {self.seed}: larger seeds are for tuning"


@dataclass(frozen=True, kw_only=True)
class SimulationRequest(ReproduceRequest):
    """Repeat the paper's experiments on simulated matrices."""

    replicates: int = flag("draws per cell", default=10)
    size: int = flag("number of rows, and of columns, of the matrices", default=200)

    def problems(self) -> Iterator[str]:
        if self.replicates < 1:
            yield f"--replicates must be an integer of at least 1, not {self.replicates}"
        if self.size < 20:
            yield f"--size must be an integer of at least 20, not {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class MovieLensRequest(ReproduceRequest):
    """Repeat the paper's experiment on MovieLens-100K."""

    replicates: int = flag("number of splits into 95,000 and 5,000 ratings", default=10)
    movielens: str | None = flag("u.data or ml-100k.zip on this machine", default=None)
    download: bool = flag("download ml-100k.zip into $ONEBIT_DATA (default: ./data), unless it is there", default=False)
    url: str = flag("the address for --download", default=URL)

    def problems(self) -> Iterator[str]:
        if self.replicates < 1:
            yield f"--replicates must be an integer of at least 1, not {self.replicates}"
        if (self.movielens is None) != self.download:
            yield "give either --movielens PATH or --download"
        if self.movielens is not None:
            local = local_path(self.movielens) or Path(self.movielens)
            if not local.exists():
                yield f"--movielens {self.movielens} does not exist on this machine"
        yield from super().problems()


def data_folder() -> Path:
    return Path(os.environ.get("ONEBIT_DATA", "data"))
