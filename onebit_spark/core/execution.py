"""Execution: how a fit on Spark is run, checked all at once."""

from __future__ import annotations

from dataclasses import dataclass

from onebit_spark.core.settings import YES_OR_NO, Problem, at_least, documented, problems_of, setting

DEVICES = ("cpu", "cuda")
EXCHANGES = ("auto", "driver", "broadcast", "mixed", "shuffle")
STORAGES = ("files", "executors")


@documented
@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a fit is run. What comes out depends on none of these, unless a validation ends the fit early."""

    row_blocks: int | None = setting(
        None, "blocks of users (default: by size and cores)", check=at_least(1), param="numUserBlocks"
    )
    col_blocks: int | None = setting(
        None, "blocks of items (default: by size and cores)", check=at_least(1), param="numItemBlocks"
    )
    exchange: str = setting(
        "auto",
        "where the ratings are fitted: gathered on the driver, or in blocks on the executors, which get the factors by "
        "broadcast, by shuffle, or those of one side in each way (mixed); auto: by the numbers of ratings and ids",
        choices=EXCHANGES,
    )
    device: str = setting(
        "cpu",
        "what the driver fits with: its cores, or its GPU (cuda), which takes {exchange}=driver and needs CuPy",
        choices=DEVICES,
    )
    driver_ratings: int | None = setting(
        None,
        "most ratings that {exchange}=auto fits on the driver (default: by its memory, and at most 20 million on a "
        "cluster); 0: none",
        check=at_least(0),
    )
    blocks_dir: str | None = setting(
        None,
        "folder of prepared ratings: the first fit writes it, the next ones read it instead of the ratings",
        key="blocks",
    )
    work_dir: str | None = setting(
        None,
        "folder that all executors can reach, for the files of {exchange}=shuffle and mixed; unset: {checkpoint_dir}, "
        "then the checkpoint folder of the SparkContext, then, on a single machine, a temporary one",
        key=None,
    )
    shuffle_storage: str = setting(
        "files",
        "where {exchange}=shuffle and mixed keep their tables: in files of {work_dir}, or on the executors, which "
        "needs no folder, but a lost executor ends the fit",
        choices=STORAGES,
        key=None,
    )
    checkpoint_dir: str | None = setting(None, "folder for checkpoints, from which a killed fit can go on")
    checkpoint_interval: int = setting(10, "iterations between two checkpoints", check=at_least(1))
    resume: bool = setting(False, "go on from a checkpoint in {checkpoint_dir}, if there is one", check=YES_OR_NO)
    validation_indicator_col: str | None = setting(
        None,
        "boolean column: rows where it is true are not fitted; the loss on them ends a fit that gets worse",
        key=None,
    )
    patience: int = setting(
        3, "iterations without a better validation loss that end the fit", check=at_least(1), key=None
    )

    def problems(self) -> list[Problem]:
        """All problems with these settings; an empty list if there are none."""
        problems = problems_of(self)
        if self.resume and not self.checkpoint_dir:
            problems.append(
                Problem("resume", "needs {other}: where is the checkpoint to resume from?", other="checkpoint_dir")
            )
        return problems
