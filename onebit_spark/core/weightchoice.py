"""κ that suits the data: a small part of the ratings decides (docs/MATH.md, §14).

    nine tenths ─8 iterations at the middle κ─► one state ─3 iterations at each κ─► the loss of the last tenth

All candidates leave from the same state and take as many steps, so none is ahead because it has converged further. The
search begins at the middle, goes in the direction in which the loss falls, and ends where it rises. The fit itself then
starts afresh with the chosen κ: it is the same as if that κ had been given.

With weights the loss of the last tenth is their weighted mean: what the fit itself minimises. The coins that choose the
tenth ignore the weights. All ratings of a cell share a coin: a rating of the tenth with others of its cell among the
nine tenths would favour a κ that repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from onebit_spark.core.config import AUTO, FitConfig
from onebit_spark.core.engine import Engine, settled
from onebit_spark.core.losses import SIDES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.solver import Start, solve
from onebit_spark.core.split import Split

P = TypeVar("P")  # a posterior of a side, in the engine's own form

FACTORS = (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)  # the candidates, times the default of the loss
MIDDLE = 2
FITTED_SHARE = 0.9
FEWEST = 5_000  # a tenth of fewer ratings cannot tell the candidates apart
SHORTEST = 30  # iterations of a fit; a shorter one would take less time than the choice
FIRST_ITERATIONS, ITERATIONS = 8, 3
COIN_STREAM = 0x3A9F1  # so that these coins differ from the other coins of a seed


@dataclass(frozen=True)
class WeightChoice:
    """A chosen κ.

    Parameters
    ----------
    weight : float
        κ.
    losses : dict of float to float
        Mean held-out loss of each candidate that was tried. Empty if there was nothing to choose.
    """

    weight: float
    losses: dict[float, float] = field(default_factory=dict)


def choose_weight(engine: Engine[P], config: FitConfig, start: Start[P] | None = None) -> WeightChoice:
    """The κ of a fit: the given one, that of the start, or the one with the lowest held-out loss."""
    if not config.chooses_weight:
        return WeightChoice(config.weight)
    if start is not None and start.weight is not None:
        return WeightChoice(start.weight)
    asked = config.likelihood_weight == AUTO
    if engine.n_ratings < FEWEST or (config.max_iter < SHORTEST and not asked):
        return WeightChoice(config.default_weight)
    return _searched(engine, config)


def _searched(engine: Engine[P], config: FitConfig) -> WeightChoice:
    candidates = [factor * config.default_weight for factor in FACTORS]
    split = Split(config.seed ^ COIN_STREAM, FITTED_SHARE, by_cell=True)
    with engine.restricted(split) as part:
        short = replace(config, likelihood_weight=candidates[MIDDLE], tol=0.0, max_iter=FIRST_ITERATIONS)
        reached = solve(part, short)
        base = Start(
            {side: part.combined(side, RowPosterior.copy, part.posterior(side)) for side in SIDES},
            reached.hierarchy.scales,
            reached.history,
        )

        def loss_of(place: int) -> float:
            more = replace(short, likelihood_weight=candidates[place], max_iter=FIRST_ITERATIONS + ITERATIONS)
            hierarchy = solve(part, more, start=base).hierarchy
            posterior = settled(part, hierarchy)
            return engine.left_out_loss(config.loss, posterior, split)

        losses = {place: loss_of(place) for place in (MIDDLE, MIDDLE + 1)}
        step = 1 if losses[MIDDLE + 1] < losses[MIDDLE] else -1
        best = max(losses) if step > 0 else MIDDLE
        while 0 <= best + step < len(candidates):
            losses[best + step] = loss_of(best + step)
            if losses[best + step] >= losses[best]:
                break
            best += step
    return WeightChoice(candidates[best], {candidates[place]: loss for place, loss in sorted(losses.items())})
