"""THE pipeline of a fit: ratings ─► choose ─► solve ─► certify ─► finish ─► model.

Every front end calls it:

    fit_arrays, fit_table, the classifier of scikit-learn, jobs without Spark    ``in_process``
    OneBitCompletion.fit, jobs on Spark                                          ``spark.estimator``

A front end checks its input and opens an engine. A ``ModelStore`` makes the model of its runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from onebit_spark.certify.draw_certificates import certify_draws
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.model_selection import select_model
from onebit_spark.core.solver import Iteration, PhaseTimer, Start, solve
from onebit_spark.data.ratings import RatingCounts
from onebit_spark.engines.base import T
from onebit_spark.fitting.checkpoints import (
    CheckpointFolder,
    Keeper,
    ModelFiles,
    resumed,
    subject_of,
    warm_start,
)
from onebit_spark.fitting.finish import finish
from onebit_spark.fitting.task import FitTask, M, Maker, ModelStore, Ratings
from onebit_spark.kernels.ahead import compile_kernels
from onebit_spark.model_info import digest, give_features
from onebit_spark.settings import available_cores


def fit_model(
    task: FitTask[M],
    ratings: Ratings,
    store: ModelStore[M, T],
    opening: AbstractContextManager[FitState[T]],
    on_iteration: Callable[[Iteration], None] | None = None,
    timer: PhaseTimer | None = None,
) -> M:
    """Fit ratings on the engine that ``opening`` opens; ``timer`` has the seconds of reading."""
    timer = timer or PhaseTimer()
    config = task.config
    if task.execution.device == "cpu" and available_cores() > 1:  # else as they are called
        compile_kernels(config, task.columns.weight is not None)
    with ExitStack() as release:
        checkpoints = checkpoint_folder(task, ratings.counts, store)
        earlier = None
        if checkpoints is not None:
            earlier = release.enter_context(checkpoints.claimed(task.execution.resume))
        sketch = ratings.sketch()  # before the memory is full of blocks
        state = release.enter_context(opening)
        features = give_features(state.features, task.features, task.columns.ids, state.ids)
        make = Maker(task, ratings.counts, store, state, features, sketch)
        start: Start[T] | None = None
        if earlier is not None:
            start = resumed(earlier, config, partial(store.adopt, state))
        elif task.initial is not None:
            make = make.after(task.initial)
            info = store.info(task.initial)
            names = store.setting_names
            start = warm_start(task.initial, info, config, partial(store.adopt, state), names=names)
        keep = Keeper(checkpoints, task.execution.checkpoint_interval, make)
        timer.end("blocking")
        choice = select_model(state, config, start, keep.after_level)
        after_iteration = keep.after_iterations_of(choice)
        outcome = solve(state, choice.config, on_iteration, choice.start, after_iteration)
        certificates = certify_draws(state, choice, outcome, task.terms, ratings.counts.positives)
        fit = finish(state, choice, outcome, certificates)
        timer.end("fit")
        timer.divide_fit(choice.seconds, fit.history[0 if start is None else len(start.history) :])
        return make(fit, timer.seconds)


def checkpoint_folder(
    task: FitTask[M],
    counts: RatingCounts,
    files: ModelFiles[M],
) -> CheckpointFolder[M] | None:
    folder = task.execution.checkpoint_dir
    if not folder:
        return None
    ids = task.columns.ids
    digests = {str(who): digest(table, ids[who]) for who, table in task.features.items()}
    return CheckpointFolder(files, folder, subject_of(task.config, counts, digests))
