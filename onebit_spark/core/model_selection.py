"""Model selection on a held-out tenth of the ratings: κ, rank, implicit features and number of
iterations.

    nine tenths of a slice   start ─► [ iterations ─► loss of the tenth: keep it? ]* ─► a state
    of one 4 times larger     that state ─► [ the same ]* ─► a state
    of all ratings            that state ─► [ the same ]* ─► a state
    all ratings               that state ─► some more iterations

A slice has all ratings of some rows, or of some columns if there are more of these. A change is
kept if it lowers the loss of the tenth by more than a tenth of that loss's standard error. The
changes are a few more iterations; implicit features; a larger or a smaller κ; and, if all factors
are in use, more of them, together with a κ for them. Each change begins at the best state so far,
so nothing is fitted twice, and what a slice has clearly refused is not tried again. All ratings may
need more factors than a slice: they try twice ``START_RANK`` where slices refused the first growth.
At the end, factors that the prior has switched off are dropped (docs/MATH.md, §14).

With weights the loss of the tenth is a weighted mean, as in the objective. The random choice of the
tenth ignores the weights. It keeps all ratings of a cell together: otherwise a fit that repeats the
ratings it has seen would win.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.calibration import Calibration, TemperatureScaling
from onebit_spark.core.fit_state import FitState
from onebit_spark.core.holdout import HoldoutLoss
from onebit_spark.core.losses import LOSSES, SIDES, Side
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.randomness import Split
from onebit_spark.core.setup import chooses_kappa, default_kappa, kappa_of, loss_of
from onebit_spark.core.solver import IterationPlan, Start, solve
from onebit_spark.engines.base import T
from onebit_spark.records import Fields, Record
from onebit_spark.settings import AUTO, FitConfig

log = logging.getLogger("onebit_spark")

# The candidates for κ, times the default of the loss: ten to a decade, a quarter to four.
KAPPA_FACTORS = (0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0)
START_RANK = (
    10  # the first rank that is tried, and the rank of a fit with too few ratings for a choice
)
FITTED_SHARE = 0.9
FEWEST_RATINGS = 5_000  # with fewer, a tenth is too small to compare candidates
SHORTEST_FIT = 30  # iterations; a shorter fit would take less time than the selection
TRIAL_ITERATIONS = 2
FIRST_ITERATIONS = 4  # between two evaluations of the loss, and before the first one
LEAST_GAIN = 0.1  # by which a change must lower the loss, in standard errors
CLEAR_LOSS = 0.3  # by so many standard errors a state is clearly worse
# By which new factors may raise the loss after 2 and after 4 iterations
NEW_FACTORS_LOSS = (
    2.0,
    1.0,
)
GROWTH = 16  # ranks above ``START_RANK`` are multiples of it, from twice as many on
FEWEST_IN_SLICE = 75_000  # ratings of the smallest slice, at least
SLICE_RATIO = 4  # of the sizes of two slices
COIN_STREAM = 0x3A9F1
SLICE_STREAM = 0x51CE5  # make these random numbers differ from others with the same seed
FINAL_ITERATIONS = 6  # iterations with all ratings


@dataclass(frozen=True)
class Trial(Generic[T]):
    """A state of a fit of the nine tenths, and its loss on the held-out tenth."""

    config: FitConfig
    start: Start[T]
    holdout: HoldoutLoss
    settled: bool = False  # whether further iterations have not helped

    @property
    def loss(self) -> float:
        return self.holdout.loss

    @property
    def iterations(self) -> int:
        return len(self.start.history)

    def beats(self, other: Trial[T]) -> bool:
        """Whether the loss is lower by more than ``LEAST_GAIN`` of its standard errors."""
        return self.loss < other.loss - LEAST_GAIN * self.holdout.standard_error

    def as_dict(self, share: float, kept: bool) -> Fields:
        config = self.config
        return {
            "share": share,
            "rank": config.factors,
            "weight": kappa_of(config),
            "implicit_features": config.implicit_features,
            "iterations": self.iterations,
            "loss": self.loss,
            "standard_error": self.holdout.standard_error,
            "kept": kept,
        }


@dataclass(frozen=True)
class SelectedModel(Generic[T]):
    """The settings of a fit, given or selected."""

    config: FitConfig  # with rank, κ and implicit features
    start: Start[T] | None = None  # the start of the fit of all ratings
    candidates: int = (
        1  # number of κ that could be selected; theorem 1 pays for all of them, tried or not
    )
    ranks: int = 1  # number of ranks that could be selected; each has a prior of its own
    trail: list[Fields] = field(default_factory=list)  # all trials, in order: see ``Trial.as_dict``
    noise: TemperatureScaling | None = (
        None  # the calibration of the probabilities, if it lowers the loss
    )
    holdout: HoldoutLoss | None = None  # of the selected state
    seconds: float = 0.0  # that the selection took
    search: Record | None = (
        None  # of an unfinished one: how many ``levels`` are done, what they ``refused``
    )

    @property
    def losses(self) -> dict[float, float]:
        """The last loss of every κ that was tried with the selected rank and features."""
        kept = [entry for entry in self.trail if entry["kept"]]
        same = ("share", "rank", "implicit_features")
        alike = [
            entry for entry in self.trail if kept and all(entry[k] == kept[-1][k] for k in same)
        ]
        return {
            entry["weight"]: entry["loss"]
            for entry in sorted(alike, key=lambda entry: bool(entry["kept"]))
        }

    def as_dict(self) -> Fields | None:
        if not self.trail:
            return None
        start = self.start
        noise = self.noise
        return {
            "trail": self.trail,
            "ranks": self.ranks,
            "noise": None if noise is None else asdict(noise),
            "earlier": 0 if start is None else start.earlier,
            "planned": None if start is None or start.planned is None else list(start.planned),
            **({} if self.search is None else {"search": self.search}),
        }

    @property
    def calibration(self) -> Calibration | None:
        return (
            None
            if self.noise is None
            else self.noise.calibration(LOSSES[self.config.loss].score_noise)
        )


def at_start_rank(config: FitConfig) -> FitConfig:
    """The settings with the rank at the start of a fit."""
    return replace(config, rank=min(START_RANK, config.max_rank)) if config.rank == AUTO else config


def select_model(
    state: FitState[T],
    config: FitConfig,
    start: Start[T] | None = None,
    after_level: Callable[[SelectedModel[T]], None] | None = None,
) -> SelectedModel[T]:
    """The settings of a fit: those given, those of the start, or those selected on a tenth of the
    ratings.

    ``after_level`` is called after every level of the search. A start whose record has a ``search``
    continues it.
    """
    given = replace(at_start_rank(config), likelihood_weight=kappa_of(config))
    if not (chooses_kappa(config) or config.rank == AUTO):
        return SelectedModel(given, start)
    candidates = len(KAPPA_FACTORS) if chooses_kappa(config) else 1
    ranks = config.max_rank if config.rank == AUTO else 1
    # An interrupted fit that had nothing to choose
    if start is not None and start.history and start.record is None:
        return SelectedModel(given, start)
    if start is not None:  # the settings of the earlier fit, except for those that are given
        chosen = {
            "likelihood_weight": chooses_kappa(config),
            "rank": config.rank == AUTO,
            "implicit_features": True,
        }
        before = replace(
            given, **{name: value for name, value in start.settings.items() if chosen[name]}
        )
        record = start.record or {}
        if "search" not in record:
            scaling = TemperatureScaling(**record["noise"]) if record.get("noise") else None
            return SelectedModel(
                before, start, candidates, ranks, list(record.get("trail", ())), scaling
            )
    elif state.engine.n_ratings < FEWEST_RATINGS or (
        config.max_iter < SHORTEST_FIT and config.likelihood_weight != AUTO
    ):
        return SelectedModel(given)
    search = _Search(state, config, given)
    trial = None
    done = 0
    if start is not None:
        trial = search.resumed(before, start, record)
        done = record["search"]["levels"]
    for number, level in enumerate(islice(_levels(state, config.seed), done, None), done + 1):
        trial = search.best(level, trial)
        if level is not None and trial is not None and after_level is not None:
            after_level(replace(search.state(trial, number), candidates=candidates, ranks=ranks))
    assert trial is not None
    noise = None
    settings = replace(trial.config, max_iter=config.max_iter, tol=config.tol)
    if LOSSES[config.loss].score_noise > 0:
        noise = trial.holdout.temperature_scaling(LOSSES[config.loss].score_noise)
    final = _final_start(trial, state)
    model = SelectedModel(
        settings, final, candidates, ranks, search.trail, noise, trial.holdout, search.seconds
    )
    if after_level is not None:
        after_level(model)
    return model


def _levels(state: FitState[Any], seed: int) -> Iterator[Split | None]:
    """The slices of the side with more ids, each contained in the next, and None for all
    ratings.
    """
    side = _longer(state)
    slices = int(math.log(max(state.engine.n_ratings / FEWEST_IN_SLICE, 1), SLICE_RATIO))
    yield from (Split(seed ^ SLICE_STREAM, SLICE_RATIO**-k, side) for k in range(slices, 0, -1))
    yield None


def _longer(state: FitState[Any]) -> Side:
    engine = state.engine
    return "cols" if engine.count("cols") > engine.count("rows") else "rows"


def chose_rank(record: Record | None) -> bool:
    """Whether the rank was selected; ``record`` is ``SelectedModel.as_dict``."""
    return record is not None and record["ranks"] > 1


def sentences(record: Record) -> Iterator[str]:
    """How the settings were selected, from ``SelectedModel.as_dict``."""
    yield "The settings were selected by the loss of a held-out tenth of the ratings."
    yield (
        "Gains are over the last line that was kept, in standard errors of the loss. "
        f"A change is kept if it gains more than {LEAST_GAIN:g}, more iterations unless they lose."
    )
    if noise := record["noise"]:
        silent = f"{noise['noise']:.1%} of the labels are random, and " if noise["noise"] else ""
        yield (
            f"Probabilities are calibrated on that tenth: {silent}the temperature is "
            f"{noise['temperature']:.3g}."
        )


def trial_table(record: Record) -> Iterator[str]:
    """The trials as lines of a table, from ``SelectedModel.as_dict``."""
    yield "share  rank  weight  implicit features  iterations    loss    gain"
    for entry, gain in zip(record["trail"], gains(record["trail"]), strict=True):
        features = "yes" if entry["implicit_features"] else "no"
        kept = "  kept" if entry["kept"] else ""
        yield (
            f"{entry['share']:5.3g}  {entry['rank']:4}  {entry['weight']:6.3g}  {features:>17}  "
            f"{entry['iterations']:10}  {entry['loss']:.4f}  "
            f"{'' if gain is None else f'{gain:+.3g}':>6}{kept}".rstrip()
        )


def gains(trail: Iterable[Record]) -> Iterator[float | None]:
    """How far the loss of every trial is below that of the last kept one before it, in its standard
    errors.

    None for the first trial on a share of the ratings.
    """
    last: Record = {}
    for entry in trail:
        error = entry["standard_error"]
        comparable = error > 0 and last.get("share") == entry["share"]
        yield (last["loss"] - entry["loss"]) / error if comparable else None
        last = entry if entry["kept"] else last


def _final_start(trial: Trial[T], state: FitState[T]) -> Start[T]:
    """The start of the fit of all ratings: the end of the fit of nine tenths.

    The coefficients of side features start at 0, because their coding depends on which rows have
    ratings.
    """
    before = trial.iterations
    reason = (
        f"these used all ratings; {before} before used nine tenths of them, until the loss of the "
        "last tenth no longer "
        "fell"
    )
    scales = replace(trial.start.scales, features={}) if state.features else trial.start.scales
    return Start(
        trial.start.posteriors,
        scales,
        earlier=before,
        planned=IterationPlan(FINAL_ITERATIONS, reason),
    )


class _Search(Generic[T]):
    """Trials on nine tenths of the ratings of a level (``_part``), compared by the loss of the last
    tenth of them.
    """

    # a level may be a slice in this process, whatever the tables of the whole are
    _level: FitState[Any]
    _part: FitState[Any]
    _share: float  # of the ratings, on this level
    # The numbers of the rows of the level below (``Engine.numbers``); None if it has all rows of
    # the engine.
    _below: dict[Side, NDArray[np.int64]] | None = None

    def __init__(self, state: FitState[T], asked: FitConfig, given: FitConfig) -> None:
        self._whole = state
        self._asked = asked
        self._given = given
        self._split = Split(asked.seed ^ COIN_STREAM, FITTED_SHARE, "cell")
        self._too_large: set[int] = set()  # ranks for which there is too little memory
        self._refused: dict[
            tuple[int, float], bool
        ] = {}  # rank and κ of what was tried: whether it is clearly worse
        self._new = _longer(state)  # the side of which a level has more rows than that below
        self._rival: Trial[T] | None = None  # the state that a group of changes must beat together
        self.trail: list[Fields] = []
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._began

    def state(self, trial: Trial[T], levels: int) -> SelectedModel[T]:
        """The trial at the end of a level, with all rows, and what the next level needs besides."""
        posteriors = self._placed(self._whole, trial.start)
        refused = [key for key, clearly in self._refused.items() if clearly]
        start = Start(posteriors, _final_start(trial, self._whole).scales)
        return SelectedModel(
            trial.config, start, trail=self.trail, search={"levels": levels, "refused": refused}
        )

    def resumed(self, config: FitConfig, start: Start[T], record: Record) -> Trial[T]:
        """The trial of a ``state``."""
        self.trail = list(record["trail"])
        self._refused = dict.fromkeys(map(tuple, record["search"]["refused"]), True)
        # The next level does not read its loss
        return Trial(config, start, HoldoutLoss.of_sums(np.zeros(5)))

    def best(self, level: Split | None, below: Trial[T] | None) -> Trial[T] | None:
        """The state that no change improves, on a slice of the ratings or on all of them (None)."""
        with ExitStack() as release:
            self._level = self._whole
            self._share = 1.0
            if level is not None:
                self._level = release.enter_context(self._whole.restricted(level))
                self._share = level.fraction
                # A few ids have most of the ratings
                if self._level.engine.n_ratings < FEWEST_RATINGS:
                    return below
            self._part = release.enter_context(self._level.restricted(self._split))
            self._refused = {key: clearly for key, clearly in self._refused.items() if clearly}
            trial = self._first_trial() if below is None else self._continued(below)
            trial = self._with_best_kappa(self._with_more_factors(trial))
            if level is not None:
                self._below = self._level.engine.numbers
            elif self._asked.rank == AUTO:
                trial = self._without_idle_factors(trial)
            return trial

    def _placed(self, state: FitState[Any], start: Start[Any]) -> dict[Side, Any]:
        """The posteriors of the level below for all rows of a state; other rows have the prior."""
        if self._below is None:
            return start.posteriors
        return state.place(start.posteriors, self._below, start.scales)

    def _first_trial(self) -> Trial[T]:
        """The first fit, with or without implicit features, and with its best κ."""
        config = self._given
        refused = None
        trial = self._trial(config, None, FIRST_ITERATIONS)
        if config.implicit_features:
            plain = self._trial(replace(config, implicit_features=False), None, FIRST_ITERATIONS)
            pays = trial.beats(plain)
            if not pays:
                trial = self._settled(trial)
                plain = self._settled(plain)
                pays = trial.beats(plain)
            if pays:
                self._record(plain, True)
            else:
                trial, refused = plain, trial
        trial = self._settled(trial)
        self._record(trial, True)
        if refused is not None:
            self._record(refused, False)
        return self._with_best_kappa(trial)

    def _continued(self, below: Trial[T]) -> Trial[T]:
        """The state of the level below after iterations on this one.

        The rows that are new move first.

        Where most factors are switched off, a fit from the start may be better: a slice with few
        ratings per row or column switches off factors that more ratings need, and they do not come
        back.
        """
        before: Start[Any] = below.start
        numbers = self._part.engine.numbers
        if self._below is None and numbers is not None:
            before = replace(before, posteriors=self._whole.take(before.posteriors, numbers))
            self._below = numbers
        posteriors = self._placed(self._part, before)
        start = Start(posteriors, _final_start(below, self._part).scales, first=self._new)
        trial = self._settled(self._trial(below.config, start, FIRST_ITERATIONS))
        self._record(trial, True)
        if 2 * len(self._in_use(trial)) < trial.config.factors:
            refused = self._refused
            self._refused = {}
            with self._against(trial):
                fresh = self._first_trial()
            if fresh.beats(trial):
                return fresh
            self._refused = refused
        return trial

    def _with_best_kappa(self, trial: Trial[T], steps: tuple[int, ...] = (1, -1)) -> Trial[T]:
        """The best κ for this rank: larger ones while they help, else smaller ones."""
        kappas = [factor * default_kappa(self._asked) for factor in KAPPA_FACTORS]
        first = trial
        for step in steps if chooses_kappa(self._asked) else ():
            while 0 <= (place := kappas.index(kappa_of(trial.config)) + step) < len(kappas):
                config = replace(trial.config, likelihood_weight=kappas[place])
                if (config.factors, kappa_of(config)) in self._refused:
                    break
                changed = self._trial(config, trial.start, TRIAL_ITERATIONS)
                # Undecided
                if abs(changed.loss - trial.loss) < LEAST_GAIN * trial.holdout.standard_error:
                    changed = self._trial(config, changed.start, TRIAL_ITERATIONS)
                if not self._kept(changed, trial):
                    break
                self._refused[trial.config.factors, kappa_of(trial.config)] = False
                trial = changed
            if trial is not first:
                break
        return trial

    def _with_more_factors(self, trial: Trial[T]) -> Trial[T]:
        """The state with as many factors as help."""
        while (wider := self._wider(trial.config)) and len(
            self._in_use(trial)
        ) == trial.config.factors:
            if not trial.settled:
                trial = self._settled(trial)
                self._record(trial, True)
            with self._against(trial):
                trial, before = self._grown(trial, wider), trial
            if trial is before:
                break
        return trial

    def _wider(self, config: FitConfig) -> FitConfig | None:
        """The settings with the next rank, if there is one to be tried."""
        asked = self._asked
        rank = config.factors
        ranks = [max(2 * GROWTH, GROWTH * (rank // GROWTH + 1))]
        if self._share == 1 and rank == START_RANK:
            ranks.append(2 * START_RANK)
        for each in ranks if asked.rank == AUTO else ():
            wider = replace(config, rank=min(each, asked.max_rank))
            refused = (
                wider.factors in self._too_large
                or (wider.factors, kappa_of(wider)) in self._refused
            )
            if refused or wider.factors <= rank:
                continue
            if not (short := self._whole.engine.shortage(wider)):
                return wider
            log.warning(
                "choosing by a tenth of the ratings: rank %d is not tried: %s", wider.factors, short
            )
            self._too_large.add(wider.factors)
        return None

    def _grown(self, trial: Trial[T], wider: FitConfig) -> Trial[T]:
        """The state with more factors and with the best κ for them, if it is better."""
        old = trial.config.factors
        self._part.start_from(trial.start.posteriors)
        posteriors = self._part.grow(wider, loss_of(wider))
        index = np.where(np.arange(wider.factors) < old, np.arange(wider.factors), -1)
        grown = replace(
            trial.start, posteriors=posteriors, scales=trial.start.scales.of_factors(index)
        )
        for limit in NEW_FACTORS_LOSS:
            changed = self._trial(wider, grown, TRIAL_ITERATIONS)
            if changed.loss > trial.loss + limit * trial.holdout.standard_error:
                self._kept(changed, trial)
                return trial
            grown = changed.start
        changed = self._settled(changed)
        self._record(changed, True)
        changed = self._with_best_kappa(changed, (1,))
        if changed.beats(trial):
            # More factors want no smaller κ
            for (rank, kappa), clearly in list(self._refused.items()):
                if rank == old and kappa < kappa_of(trial.config):
                    self._refused[wider.factors, kappa] = clearly
            return changed
        return trial

    def _without_idle_factors(self, trial: Trial[T]) -> Trial[T]:
        """The state without the factors that the prior has switched off, unless the held-out loss
        needs them.
        """
        used = self._in_use(trial)
        if len(used) == trial.config.factors:
            return trial
        kept = used if len(used) else np.arange(1)
        posteriors = {
            side: self._part.convert(side, partial(RowPosterior.with_only, factors=kept), posterior)
            for side, posterior in trial.start.posteriors.items()
        }
        start = replace(
            trial.start, posteriors=posteriors, scales=trial.start.scales.of_factors(kept)
        )
        holdout = self._level.holdout_loss(trial.config.loss, posteriors, self._split)
        if len(used) and holdout.loss > trial.loss + LEAST_GAIN * trial.holdout.standard_error:
            return trial
        return replace(trial, config=replace(trial.config, rank=len(kept)), start=start)

    def _settled(self, trial: Trial[T]) -> Trial[T]:
        """More iterations, as long as they help."""
        while trial.iterations + TRIAL_ITERATIONS <= self._asked.max_iter:
            more = self._trial(trial.config, trial.start, TRIAL_ITERATIONS)
            if not more.beats(trial):
                trial = more if more.loss < trial.loss else trial
                break
            trial = more
        return replace(trial, settled=True)

    def _trial(self, config: FitConfig, start: Start[T] | None, iterations: int) -> Trial[T]:
        """Further iterations from ``start``, and the loss of the held-out tenth after them."""
        before = 0 if start is None else len(start.history)
        some = replace(config, tol=0.0, max_iter=before + iterations)
        outcome = solve(self._part, some, start=start, want_objective=False)
        posteriors = self._part.final_posteriors(outcome.hierarchy)
        holdout = self._level.holdout_loss(config.loss, posteriors, self._split)
        return Trial(config, Start(posteriors, outcome.hierarchy, outcome.history), holdout)

    def _kept(self, changed: Trial[T], trial: Trial[T]) -> bool:
        """Whether the change is kept. One that is clearly worse is not tried again."""
        kept = changed.beats(trial)
        self._record(changed, kept)
        if not kept:
            clearly = changed.loss > trial.loss + CLEAR_LOSS * trial.holdout.standard_error
            self._refused[changed.config.factors, kappa_of(changed.config)] = clearly
        return kept

    @contextmanager
    def _against(self, trial: Trial[T]) -> Iterator[None]:
        """Of changes that are tried together, those count as kept that beat the state before all of
        them.
        """
        self._rival = trial
        yield
        self._rival = None

    def _record(self, trial: Trial[T], kept: bool) -> None:
        kept = kept and (self._rival is None or trial.beats(self._rival))
        self.trail.append(trial.as_dict(self._share, kept))
        config = trial.config
        (*_, gain) = gains(self.trail)
        log.info(
            "choosing by a tenth of %s: rank %d, weight %g%s: loss %.4f after %d iterations%s, "
            "%s, %.3g s so far",
            "the ratings" if self._share == 1 else f"1/{1 / self._share:.0f} of the ratings",
            config.factors,
            kappa_of(config),
            "" if config.implicit_features else ", no implicit features",
            trial.loss,
            trial.iterations,
            "" if gain is None else f", gain {gain:+.3g} standard errors",
            "kept" if kept else "not kept",
            self.seconds,
        )

    def _in_use(self, trial: Trial[T]) -> NDArray[np.int64]:
        part = self._part
        rows, cols = (part.column_norms(side, trial.start.posteriors[side]) for side in SIDES)
        return factors_in_use(rows, cols, part.engine.count("rows"), part.engine.count("cols"))
