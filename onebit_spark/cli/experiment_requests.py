"""The flags of `tune.py` and `reproduce.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onebit_spark.cli.flags import flag
from onebit_spark.cli.requests import RatingsRequest, SessionRequest, _holds, exists_already, local_path
from onebit_spark.cli.setting_flags import filled, flag_of, in_flags
from onebit_spark.core.config import FitConfig
from onebit_spark.paper.movielens import URL
from onebit_spark.paper.seeds import FIRST_REPORTED, TUNING


@dataclass(frozen=True, kw_only=True)
class TuneRequest(RatingsRequest):
    """Choose the settings by cross-validation, and fit all ratings with them. A killed run continues where it was."""

    output: str = flag("folder for results, plot and model")
    grid: str | None = flag("TOML file with lists of settings to combine (default: see conf/grid.toml)", default=None)
    folds: int = flag("number of folds; each is held out once", default=5)
    max_iter: int = flag_of(FitConfig, "max_iter", "largest number of iterations of a fit")
    tol: float = flag_of(FitConfig, "tol")
    seed: int = flag_of(FitConfig, "seed", "seed of the folds and of the fits")
    worker_limit: int = flag("up to so many ratings, each fit runs on one worker; above, on all", default=5_000_000)

    inputs = ("ratings", "grid")

    def problems(self) -> Iterator[str]:
        if self.folds < 2:
            yield f"--folds must be an integer of at least 2, not {self.folds}"
        if self.worker_limit < 0:
            yield f"--worker-limit must be 0 or above, not {self.worker_limit}"
        yield from in_flags(FitConfig, self.fit_config().problems())
        for name, path in self.paths(self.inputs).items():
            if self.output and _holds(self.output, path):
                yield f"{name} {path} lies in --output {self.output}: choose another"
        local = local_path(self.output) if self.output else None
        if local is not None and (local / "model").exists() and not self.overwrite:
            yield exists_already("--output", self.output)
        yield from super().problems()

    def fit_config(self) -> FitConfig:
        """The settings that all fits share. The grid has the others."""
        return filled(FitConfig, self)


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
