"""The paper's experiments (Section 6) as tasks.

    tuning tasks (cell or split × method × setting)  ─►  best setting of each  ─►  tasks of the draws that are reported

Settings are tuned by cross-validation on draws (a split, for MovieLens) that are not reported. See
seeds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onebit_spark.simulate import KINDS, simulate
from paper.methods import METHODS, TriedSetting, count_wrong_signs, cross_validate
from paper.samples import Sample, fingerprint, split
from paper.seeds import FIRST_REPORTED, TUNING

Record = dict[str, Any]
RunAll = Callable[[Sequence[Record]], list[Record]]  # tasks ─► results, in the same order

FOLDS = 5
NOISE_LEVELS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
TEST_RATINGS = 5_000
LARGEST_RADIUS = 1.4  # on MovieLens

PAPER_METHODS = ("Logit-G", "Logit-IG", "HL-G", "HL-IG", "freq. Logit")
NOISE_METHODS = ("HL-IG", "freq. Logit")
MOVIELENS_METHODS = (
    "HL-IG",
    "HL-G",
    "Logit-G",
    "Logit-IG",
    "freq. Logit",
    "Logit-IG, intercepts",
    "majority class",
    "row + column intercepts",
    "ridge factors",
)


@dataclass(frozen=True)
class Case:
    """A method on one kind of data, tuned over a grid.

    Parameters
    ----------
    data : dict
        Identifies the data, in the tasks and in the results.
    method : str
        Name of the method.
    grid : tuple
        Settings among which it is tuned.
    """

    data: Record
    method: str
    grid: tuple[TriedSetting, ...]

    @classmethod
    def of(cls, data: Record, method: str) -> Case:
        return cls(data, method, METHODS[method].grid)


@dataclass(frozen=True)
class Experiment:
    """Some cases, each repeated on several draws.

    Parameters
    ----------
    name : str
        Name of the experiment.
    cases : tuple of Case
        What is compared.
    seeds : tuple of int
        Seeds of the draws that are reported.
    tuning_seeds : tuple of int
        Seeds of the draws on which settings are tuned.
    """

    name: str
    cases: tuple[Case, ...]
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]

    @property
    def n_tasks(self) -> int:
        return sum(len(self._tuning(case)) + len(self.seeds) for case in self.cases)

    def run(self, run_all: RunAll) -> list[Record]:
        """One record per case and draw: the data, method, setting, seed, and what the task
        measured.
        """
        settings = self._tuned(run_all)
        drawn = [
            {"do": "draw", **case.data, "method": case.method, "setting": setting, "seed": seed}
            for case, setting in zip(self.cases, settings, strict=True)
            for seed in self.seeds
        ]
        return [{**task, **result} for task, result in zip(drawn, run_all(drawn), strict=True)]

    def _tuned(self, run_all: RunAll) -> Iterator[TriedSetting]:
        """The setting of every case with the fewest errors over all its folds and tuning draws."""
        results = iter(run_all([task for case in self.cases for task in self._tuning(case)]))
        for case in self.cases:
            tried = case.grid if len(case.grid) > 1 else ()
            wrong = [sum(sum(next(results)["errors"]) for _ in self.tuning_seeds) for _ in tried]
            yield case.grid[int(np.argmin(wrong)) if wrong else 0]

    def _tuning(self, case: Case) -> list[Record]:
        return [
            {"do": "tune", **case.data, "method": case.method, "setting": setting, "seed": seed}
            for setting in (case.grid if len(case.grid) > 1 else ())
            for seed in self.tuning_seeds
        ]


# ---- simulated matrices ------------------------------------------------------------------------


def tables(replicates: int, size: int = 200, seed: int = FIRST_REPORTED) -> Experiment:
    """Types A1–B3 of ranks 3 and 5. For B3 also the model whose prior is the true one."""
    cases = [
        Case.of(_cell(kind, rank, 0.1, size), method)
        for rank in (3, 5)
        for kind in KINDS
        for method in (*PAPER_METHODS, *((f"known prior, K = {rank}",) if kind == "B3" else ()))
    ]
    return Experiment("tables", tuple(cases), tuple(range(seed, seed + replicates)), TUNING)


def noise(replicates: int, size: int = 200, seed: int = FIRST_REPORTED) -> Experiment:
    """Type A2 of rank 3 at every level of the switch noise."""
    cases = [
        Case.of(_cell("A2", 3, level, size), method)
        for level in NOISE_LEVELS
        for method in NOISE_METHODS
    ]
    return Experiment("noise", tuple(cases), tuple(range(seed, seed + replicates)), TUNING)


def _cell(kind: str, rank: int, switch: float, size: int) -> Record:
    return {"kind": kind, "rank": rank, "switch": switch, "size": size}


def simulation_task(task: Record) -> Record:
    """Cross-validate on a draw, or fit it and compare the signs of all cells with those of M."""
    size = task["size"]
    seed = task["seed"]
    method = METHODS[task["method"]]
    drawn = simulate(task["kind"], task["rank"], (size, size), switch=task["switch"], seed=seed)
    sample = Sample.of(drawn.rows, drawn.cols, drawn.labels, (size, size))
    if task["do"] == "tune":
        return cross_validate(method, sample, task["setting"], FOLDS, seed)
    rows, cols = np.divmod(np.arange(size * size), size)
    all_cells = Sample.of(rows, cols, drawn.bayes_sign.ravel(), (size, size))
    return {
        "error": count_wrong_signs(method.fit(sample, task["setting"]), sample, all_cells)
        / len(all_cells)
    }


# ---- MovieLens ---------------------------------------------------------------------------------


def movielens(sample: Sample, splits: int, seed: int = FIRST_REPORTED) -> Experiment:
    """95,000 ratings for the fit and 5,000 for the test, tuned on the 95,000 of one further
    split.
    """
    data = {"data": fingerprint(sample)}
    cases = [Case.of(data, method) for method in MOVIELENS_METHODS]
    # With a larger radius a fit takes minutes, for hundreds of singular values, and is far worse.
    cases = [
        replace(case, grid=tuple(s for s in case.grid if s.get("radius", 0) <= LARGEST_RADIUS))
        for case in cases
    ]
    return Experiment("movielens", tuple(cases), tuple(range(seed, seed + splits)), TUNING[:1])


def test_size(sample: Sample) -> int:
    return min(TEST_RATINGS, len(sample) // 4)


def movielens_task(task: Record, sample: Sample) -> Record:
    """Cross-validate on the training part of a split, or fit it and count the errors on its test
    part.
    """
    method = METHODS[task["method"]]
    train, test = split(sample, test_size(sample), task["seed"])
    if task["do"] == "tune":
        return cross_validate(method, train, task["setting"], FOLDS, task["seed"])
    return {
        "error": count_wrong_signs(method.fit(train, task["setting"]), train, test) / len(test),
        "n_test": len(test),
    }
