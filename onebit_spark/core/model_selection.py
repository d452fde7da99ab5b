"""Model selection on a held-out tenth of the ratings: κ, rank, implicit features and number of iterations.

    nine tenths    start ─► [ some iterations ─► loss of the held-out tenth: is the change kept? ]* ─► a state
    all ratings    that state ─► some more iterations

A change is kept if it lowers the loss of the tenth by more than a tenth of that loss's standard error. The changes are
a few more iterations; no implicit features; a larger or a smaller κ; and, if all factors are in use, twice as many of
them. Each change begins at the best state so far, so nothing is fitted twice. At the end, factors that the prior has
switched off are dropped (docs/MATH.md, §14).

With weights the loss of the tenth is a weighted mean, as in the objective. The random choice of the tenth ignores the
weights. It keeps all ratings of a cell together: otherwise a fit that repeats the ratings it has seen would win.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.config import AUTO, FitConfig
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.prediction import Calibration, HoldoutLoss, TemperatureScaling
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import IterationPlan, Start, solve

log = logging.getLogger("onebit_spark")

P = TypeVar("P")  # a posterior of a side, in the engine's own form

# The candidates for κ, times the default of the loss: ten to a decade, a quarter to four.
KAPPA_FACTORS = (0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0)
START_RANK = 10  # the first rank that is tried, and the rank of a fit with too few ratings for a choice
FITTED_SHARE = 0.9
FEWEST_RATINGS = 5_000  # with fewer, a tenth is too small to compare candidates
SHORTEST_FIT = 30  # iterations; a shorter fit would take less time than the selection
TRIAL_ITERATIONS, FIRST_ITERATIONS = 2, 4  # between two evaluations of the loss, and before a change can be kept
LEAST_GAIN = 0.1  # by which a change must lower the loss, in standard errors
FINAL_ITERATIONS = 8  # iterations with all ratings
COIN_STREAM = 0x3A9F1  # makes these random numbers differ from others with the same seed


@dataclass(frozen=True)
class Trial(Generic[P]):
    """A state of a fit of the nine tenths, and its loss on the held-out tenth."""

    config: FitConfig
    start: Start[P]
    holdout: HoldoutLoss

    @property
    def loss(self) -> float:
        return self.holdout.loss

    @property
    def iterations(self) -> int:
        return len(self.start.history)

    def beats(self, other: Trial[P]) -> bool:
        """Whether the loss is lower by at least ``LEAST_GAIN`` standard errors."""
        return self.loss < other.loss - LEAST_GAIN * self.holdout.standard_error

    def as_dict(self, kept: bool) -> dict[str, Any]:
        config = self.config
        return {
            "rank": config.factors, "weight": config.kappa, "implicit_features": config.implicit_features,
            "iterations": self.iterations, "loss": self.loss, "kept": kept,
        }  # fmt: skip


@dataclass(frozen=True)
class SelectedModel(Generic[P]):
    """The settings of a fit, given or selected."""

    config: FitConfig  # with rank, κ and implicit features
    start: Start[P] | None = None  # the start of the fit of all ratings
    candidates: int = 1  # number of κ that could be selected; theorem 1 pays for all of them, tried or not
    ranks: int = 1  # number of ranks that could be selected; each has a prior of its own
    trail: list[dict[str, Any]] = field(default_factory=list)  # all trials, in order: see ``Trial.as_dict``
    noise: TemperatureScaling | None = None  # the calibration of the probabilities, if it lowers the loss
    holdout: HoldoutLoss | None = None  # of the selected state

    @property
    def losses(self) -> dict[float, float]:
        """The last loss of every κ that was tried with the selected rank and features."""
        kept = [entry for entry in self.trail if entry["kept"]]
        alike = [e for e in self.trail if kept and all(e[k] == kept[-1][k] for k in ("rank", "implicit_features"))]
        return {entry["weight"]: entry["loss"] for entry in sorted(alike, key=lambda entry: bool(entry["kept"]))}

    def as_dict(self) -> dict[str, Any] | None:
        if not self.trail:
            return None
        start, noise = self.start, self.noise
        return {
            "trail": self.trail,
            "ranks": self.ranks,
            "noise": None if noise is None else asdict(noise),
            "earlier": 0 if start is None else start.earlier,
            "planned": None if start is None or start.planned is None else list(start.planned),
        }

    @property
    def calibration(self) -> Calibration | None:
        return None if self.noise is None else self.noise.calibration(LOSSES[self.config.loss].score_noise)


def at_start_rank(config: FitConfig) -> FitConfig:
    """The settings with the rank at the start of a fit."""
    return replace(config, rank=min(START_RANK, config.max_rank)) if config.rank == AUTO else config


def select_model(engine: Engine[P], config: FitConfig, start: Start[P] | None = None) -> SelectedModel[P]:
    """The settings of a fit: those given, those of the start, or those selected on a tenth of the ratings."""
    given = replace(at_start_rank(config), likelihood_weight=config.kappa)
    if not (config.chooses_kappa or config.rank == AUTO):
        return SelectedModel(given, start)
    candidates = len(KAPPA_FACTORS) if config.chooses_kappa else 1
    ranks = config.max_rank if config.rank == AUTO else 1
    if start is not None and start.history and start.record is None:  # an interrupted fit that had nothing to choose
        return SelectedModel(given, start)
    if start is not None:  # the settings of the earlier fit, except for those that are given
        chosen = {"likelihood_weight": config.chooses_kappa, "rank": config.rank == AUTO, "implicit_features": True}
        before = replace(given, **{name: value for name, value in start.settings.items() if chosen[name]})
        record = start.record or {}
        scaling = TemperatureScaling(**record["noise"]) if record.get("noise") else None
        return SelectedModel(before, start, candidates, ranks, list(record.get("trail", ())), scaling)
    asked = config.likelihood_weight == AUTO
    if engine.n_ratings < FEWEST_RATINGS or (config.max_iter < SHORTEST_FIT and not asked):
        return SelectedModel(given)
    split = Split(config.seed ^ COIN_STREAM, FITTED_SHARE, by_cell=True)
    with engine.restricted(split) as part:
        search = _Search(engine, part, config, split)
        trial = search.best(given)
        kept = search.without_idle_factors(trial) if config.rank == AUTO else trial
    noise, settings = None, replace(kept.config, max_iter=config.max_iter, tol=config.tol)
    if LOSSES[config.loss].score_noise > 0:
        noise = trial.holdout.temperature_scaling(LOSSES[config.loss].score_noise)
    return SelectedModel(settings, _final_start(kept, engine), candidates, ranks, search.trail, noise, trial.holdout)


def chose_rank(record: Mapping[str, Any] | None) -> bool:
    """Whether the rank was selected; ``record`` is ``SelectedModel.as_dict``."""
    return record is not None and record["ranks"] > 1


def sentences(record: Mapping[str, Any]) -> Iterator[str]:
    """How the settings were selected, from ``SelectedModel.as_dict``."""
    yield "The settings were selected by the loss of a held-out tenth of the ratings."
    if noise := record["noise"]:
        silent = f"{noise['noise']:.1%} of the labels are random, and " if noise["noise"] else ""
        yield f"Probabilities are calibrated on that tenth: {silent}the temperature is {noise['temperature']:.3g}."


def trial_table(record: Mapping[str, Any]) -> Iterator[str]:
    """The trials as lines of a table, from ``SelectedModel.as_dict``."""
    yield "rank  weight  implicit features  iterations    loss"
    for entry in record["trail"]:
        features, kept = "yes" if entry["implicit_features"] else "no", "  kept" if entry["kept"] else ""
        yield (
            f"{entry['rank']:4}  {entry['weight']:6.3g}  {features:>17}  {entry['iterations']:10}  "
            f"{entry['loss']:.4f}{kept}"
        )


def _final_start(trial: Trial[P], engine: Engine[P]) -> Start[P]:
    """The start of the fit of all ratings: the end of the fit of nine tenths.

    The coefficients of side features start at 0, because their coding depends on which rows have ratings.
    """
    before = trial.iterations
    reason = (
        f"these used all ratings; {before} before used nine tenths of them, until the loss of the last tenth no longer "
        "fell"
    )
    scales = replace(trial.start.scales, features={}) if engine.features else trial.start.scales
    return Start(trial.start.posteriors, scales, earlier=before, planned=IterationPlan(FINAL_ITERATIONS, reason))


class _Search(Generic[P]):
    """Trials on nine tenths of the ratings (``part``), compared by the loss of the held-out tenth."""

    def __init__(self, engine: Engine[P], part: Engine[P], asked: FitConfig, split: Split) -> None:
        self._engine, self._part, self._asked, self._split = engine, part, asked, split
        self.trail: list[dict[str, Any]] = []

    def best(self, given: FitConfig) -> Trial[P]:
        """The state that no change improves."""
        trial, asked = self._first_trial(given), self._asked
        if asked.chooses_kappa:
            trial = self._with_best_kappa(trial)
        while asked.rank == AUTO and (rank := trial.config.factors) < asked.max_rank:
            if len(self._in_use(trial)) < rank:
                break
            wider = replace(trial.config, rank=min(2 * rank, asked.max_rank))
            if short := self._engine.shortage(wider):
                log.warning("choosing by a tenth of the ratings: rank %d is not tried: %s", wider.factors, short)
                break
            grown = self._settled(self._grown(trial, wider))
            if not self._kept(grown, trial):
                break
            trial = self._with_best_kappa(grown) if asked.chooses_kappa else grown
        return trial

    def without_idle_factors(self, trial: Trial[P]) -> Trial[P]:
        """The state without the factors that the prior has switched off."""
        kept = self._in_use(trial)
        if len(kept) == trial.config.factors:
            return trial
        kept = kept if len(kept) else np.arange(1)
        posteriors = {
            side: self._part.combined(side, partial(RowPosterior.with_only, factors=kept), posterior)
            for side, posterior in trial.start.posteriors.items()
        }
        start = replace(trial.start, posteriors=posteriors, scales=trial.start.scales.of_factors(kept))
        return replace(trial, config=replace(trial.config, rank=len(kept)), start=start)

    def _first_trial(self, config: FitConfig) -> Trial[P]:
        """The first fit, with or without implicit features."""
        trial = self._trial(config, None, FIRST_ITERATIONS)
        if config.implicit_features:
            plain = self._trial(replace(config, implicit_features=False), None, FIRST_ITERATIONS)
            pays = trial.beats(plain)
            if not pays:
                trial, plain = self._settled(trial), self._settled(plain)
                pays = trial.beats(plain)
            trial, refused = (trial, plain) if pays else (plain, trial)
            self._record(refused, False)
        trial = self._settled(trial)
        self._record(trial, True)
        return trial

    def _with_best_kappa(self, trial: Trial[P]) -> Trial[P]:
        """The best κ for this rank: larger ones while they help, else smaller ones."""
        kappas = [factor * self._asked.default_kappa for factor in KAPPA_FACTORS]
        first = trial
        for step in (1, -1):
            while 0 <= (place := kappas.index(trial.config.kappa) + step) < len(kappas):
                config = replace(trial.config, likelihood_weight=kappas[place])
                changed = self._trial(config, trial.start, TRIAL_ITERATIONS)
                if changed.loss < trial.loss + LEAST_GAIN * trial.holdout.standard_error:
                    changed = self._trial(config, changed.start, FIRST_ITERATIONS - TRIAL_ITERATIONS)
                if not self._kept(changed, trial):
                    break
                trial = changed
            if trial is not first:
                trial, chosen = self._settled(trial), trial
                if trial is not chosen:
                    self._record(trial, True)
                break
        return trial

    def _grown(self, trial: Trial[P], config: FitConfig) -> Trial[P]:
        """A trial with as many factors as ``config`` has."""
        old = trial.config.factors
        self._part.start_from(trial.start.posteriors)
        posteriors = self._part.grown(config, config.make_loss())
        index = np.where(np.arange(config.factors) < old, np.arange(config.factors), -1)
        scales = trial.start.scales.of_factors(index)
        return self._trial(config, replace(trial.start, posteriors=posteriors, scales=scales), FIRST_ITERATIONS)

    def _settled(self, trial: Trial[P]) -> Trial[P]:
        """More iterations, as long as they help."""
        while trial.iterations + TRIAL_ITERATIONS <= self._asked.max_iter:
            more = self._trial(trial.config, trial.start, TRIAL_ITERATIONS)
            if not more.beats(trial):
                return more if more.loss < trial.loss else trial
            trial = more
        return trial

    def _trial(self, config: FitConfig, start: Start[P] | None, iterations: int) -> Trial[P]:
        """Further iterations from ``start``, and the loss of the held-out tenth after them."""
        before = 0 if start is None else len(start.history)
        outcome = solve(self._part, replace(config, tol=0.0, max_iter=before + iterations), start=start)
        posteriors = final_posteriors(self._part, outcome.hierarchy)
        holdout = self._engine.holdout_loss(config.loss, posteriors, self._split)
        return Trial(config, Start(posteriors, outcome.hierarchy, outcome.history), holdout)

    def _kept(self, changed: Trial[P], trial: Trial[P]) -> bool:
        kept = changed.beats(trial)
        self._record(changed, kept)
        return kept

    def _record(self, trial: Trial[P], kept: bool) -> None:
        self.trail.append(trial.as_dict(kept))
        config = trial.config
        log.info(
            "choosing by a tenth of the ratings: rank %d, weight %g%s: loss %.4f after %d iterations, %s",
            config.factors, config.kappa, "" if config.implicit_features else ", no implicit features", trial.loss,
            trial.iterations, "kept" if kept else "not kept",
        )  # fmt: skip

    def _in_use(self, trial: Trial[P]) -> NDArray[np.int64]:
        part = self._part
        rows, cols = (part.column_norms(side, trial.start.posteriors[side]) for side in SIDES)
        return factors_in_use(rows, cols, part.count("rows"), part.count("cols"))
