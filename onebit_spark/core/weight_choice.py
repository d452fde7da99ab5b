"""κ that suits the data: a small part of the ratings decides (docs/MATH.md, §14).

    nine tenths ─8 iterations at the middle κ─► one state ─3 iterations at each κ─► the loss of the last tenth

All candidates leave from the same state and take as many steps, so none is ahead because it has converged further. The
search begins at the middle, goes in the direction in which the loss falls, and ends where it rises. A large κ overfits
late, and after three iterations it looks better than it is. So a search that went far up looks longer, and goes back
while the loss of the smaller κ is lower. The fit itself then starts afresh with the chosen κ: it is the same as if that
κ had been given.

With weights the loss of the last tenth is their weighted mean: what the fit itself minimises. The coins that choose the
tenth ignore the weights. All ratings of a cell share a coin: a rating of the tenth with others of its cell among the
nine tenths would favour a κ that repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from onebit_spark.core.config import AUTO, FitConfig
from onebit_spark.core.engine import Engine, LeftOut, settled
from onebit_spark.core.losses import SIDES
from onebit_spark.core.posterior import RowPosterior
from onebit_spark.core.solver import Start, solve
from onebit_spark.core.split import Split

P = TypeVar("P")  # a posterior of a side, in the engine's own form

# The candidates, times the default of the loss: ten to a decade, a quarter to four.
FACTORS = (0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0)
MIDDLE = FACTORS.index(1.0)
FITTED_SHARE = 0.9
FEWEST = 5_000  # a tenth of fewer ratings cannot tell the candidates apart
SHORTEST = 30  # iterations of a fit; a shorter one would take less time than the choice
FIRST_ITERATIONS, ITERATIONS, LONGER = 8, 3, 12
FITS = len(FACTORS) + len(FACTORS[MIDDLE:])  # one per candidate, and one more where the longer look can be taken
COIN_STREAM = 0x3A9F1  # so that these coins differ from the other coins of a seed


@dataclass(frozen=True)
class WeightChoice:
    """A chosen κ."""

    weight: float  # κ
    # Mean held-out loss of each candidate that was tried, or of those in the longer look that decided. Empty if there
    # was nothing to choose.
    losses: dict[float, float] = field(default_factory=dict)
    # How many κ it might have been, given other labels. Theorem 1 pays for all of them, tried or not.
    candidates: int = 1
    fits: int = 1  # of how many fits of the nine tenths, given other labels, the last tenth might have picked the one
    left_out: LeftOut | None = None  # the last tenth under the fit of the others that it picked


def choose_weight(engine: Engine[P], config: FitConfig, start: Start[P] | None = None) -> WeightChoice:
    """The κ of a fit: the given one, that of the start, or the one with the lowest held-out loss."""
    if not config.chooses_weight:
        return WeightChoice(config.weight)
    if start is not None and start.weight is not None:
        return WeightChoice(start.weight, candidates=len(FACTORS))
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

        measured: dict[int, LeftOut] = {}

        def loss_of(place: int, iterations: int = ITERATIONS) -> float:
            more = replace(short, likelihood_weight=candidates[place], max_iter=FIRST_ITERATIONS + iterations)
            hierarchy = solve(part, more, start=base).hierarchy
            posterior = settled(part, hierarchy)
            measured[place] = engine.left_out_loss(config.loss, posterior, split)
            return measured[place].loss

        losses = {place: loss_of(place) for place in (MIDDLE, MIDDLE + 1)}
        step = 1 if losses[MIDDLE + 1] < losses[MIDDLE] else -1
        best = max(losses) if step > 0 else MIDDLE
        while 0 <= best + step < len(candidates):
            losses[best + step] = loss_of(best + step)
            if losses[best + step] >= losses[best]:
                break
            best += step
        if best > MIDDLE + 1:
            losses = {best: loss_of(best, LONGER)}
            while best > MIDDLE:
                losses[best - 1] = loss_of(best - 1, LONGER)
                if losses[best - 1] >= losses[best]:
                    break
                best -= 1
    tried = {candidates[place]: loss for place, loss in sorted(losses.items())}
    return WeightChoice(candidates[best], tried, len(candidates), FITS, measured[best])
