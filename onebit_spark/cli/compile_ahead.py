"""Kernels are compiled ahead, while Spark starts or a file is read. Nothing depends on it.

A process compiles one kernel at a time. So where nothing is compiled yet, two processes share the work:

    this one       the reading, and the updates of the rows
    another one    inverses and sums for these updates, which find them in the cache, and what a fit does beside them:
                   its start, implicit features, maps, confidences, ratings that are left out, draws if there are any

The fit takes up from the cache what the other process has compiled, and compiles what is missing. Otherwise a tiny fit
loads the kernels of its settings, or compiles them.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from onebit_spark.core.blocks import RatingBlock
from onebit_spark.core.compiled import nothing_is_compiled
from onebit_spark.core.config import FitConfig, Terms
from onebit_spark.core.draws import Draws
from onebit_spark.core.implicit_features import CoefStep, add_implicit_sums, gram_matrix, sent_vectors
from onebit_spark.core.losses import SIDES
from onebit_spark.core.losses.batched_solve import sweep_all, sweep_arrays
from onebit_spark.core.randomness import Split
from onebit_spark.core.row_map import RowMap
from onebit_spark.core.solver import solve
from onebit_spark.engines.threads import LocalEngine
from onebit_spark.in_process import fit_arrays

RANK = 2


def compile_ahead(config: FitConfig, weighted: bool, device: str = "cpu") -> None:
    """Compile what a fit with these settings needs."""
    if device == "cpu" and nothing_is_compiled():
        _start_another_process(config, weighted)
        compile_updates(config, weighted)
        return
    rows, cols, labels, weights = _ratings(weighted)
    short = replace(config, max_iter=2, tol=0.0)
    fit_arrays(rows, cols, labels, short, weights=weights, certify=Terms(), device=device)


def compile_updates(config: FitConfig, weighted: bool) -> None:
    """One iteration from a random start, which needs no kernel, and without implicit features."""
    short = replace(_plain(config), implicit_features=False, start="random", max_iter=1, tol=0.0)
    with _engine(weighted).running() as engine:
        solve(engine, short, gauge=False)


def compile_others(config: FitConfig, weighted: bool) -> None:
    """Parts of an update that it comes to late, then what can be done without one, in the order of a fit."""
    if config.loss == "logistic" and config.covariance == "full":
        sweep_all(*sweep_arrays(RANK), RANK)
    gram_matrix(np.ones((4, RANK)))
    with _engine(weighted).running() as engine:
        plain = _plain(config)
        loss, split = plain.make_loss(), Split(0, 0.5)
        engine.start(plain, loss)
        if plain.implicit_features:
            _compile_implicit(engine)
        with engine.restricted(split):
            engine.holdout_loss(plain.loss, engine.posteriors, split)
        if loss.symmetry:
            same = np.eye(plain.dimension)
            engine.apply({side: RowMap(same, np.zeros(plain.dimension), same) for side in SIDES})
            assert engine.posteriors  # now they are mapped
        assert engine.repeats.repeated == 0
        engine.confidences(engine.posteriors, loss.score_noise)
        if not plain.implicit_features:  # else nothing is drawn: the prior depends on the sample
            engine.gibbs_errors(Draws.enough(engine.n_ratings, 0))


def _compile_implicit(engine: LocalEngine) -> None:
    """What implicit features add to an update."""
    block, rows, cols = engine.runner.ratings["rows"], engine.posteriors["rows"], engine.posteriors["cols"]
    assert block.distinct_counts.all()
    add_implicit_sums(block, 0, block.n_rows, sent_vectors(cols), rows.implicit, np.zeros((block.n_rows, rows.rank)))
    engine.move_coef("rows", CoefStep(np.ones((2 * RANK, RANK))))


def _plain(config: FitConfig) -> FitConfig:
    """Nothing is chosen."""
    return replace(config, rank=RANK, likelihood_weight=1.0)


def _ratings(weighted: bool) -> tuple[Any, Any, Any, Any]:
    rows, cols = np.divmod(np.arange(16), 4)
    return rows, cols, np.where((rows + cols) % 3 > 0, 1, -1), np.ones(16, np.float32) if weighted else None


def _engine(weighted: bool) -> LocalEngine:
    rows, cols, labels, weights = _ratings(weighted)
    return LocalEngine(RatingBlock.from_coordinates(rows, cols, labels > 0, (4, 4), weights), threads=1)


def _start_another_process(config: FitConfig, weighted: bool) -> subprocess.Popen[bytes]:
    """For ``compile_others``. It ends with this one."""
    command = [sys.executable, "-m", __name__, json.dumps([asdict(config), weighted])]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    silent = subprocess.DEVNULL
    other = subprocess.Popen(command, env=where, stdin=silent, stdout=silent, stderr=silent)
    atexit.register(other.kill)
    return other


if __name__ == "__main__":
    settings, with_weights = json.loads(sys.argv[1])
    compile_others(FitConfig(**settings), with_weights)
