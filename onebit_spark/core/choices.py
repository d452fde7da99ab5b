"""What a tenth of the ratings decides: κ, rank, implicit features or none, the length of a fit (docs/MATH.md, §14).

    nine tenths    start ─► [ some iterations ─► the loss of the last tenth: is the change kept? ]* ─► a state
    all ratings    that state ─► some iterations more

There is one rule. A change is kept if it lowers the loss of the last tenth by more than a tenth of that loss's standard
error. The changes are a few more iterations; no implicit features; a larger or a smaller κ; and twice as many factors,
if all of them are in use. Each begins at the best state so far, so nothing is fitted twice. Factors that the prior has
switched off are dropped at the end.

With weights the loss of the last tenth is their weighted mean: what the fit itself minimises. The coins that choose the
tenth ignore the weights. All ratings of a cell share a coin: a rating of the tenth with others of its cell among the
nine tenths would favour a fit that repeats them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebit_spark.core.calibration import Calibration
from onebit_spark.core.config import AUTO, FitConfig
from onebit_spark.core.engine import Engine, final_posteriors
from onebit_spark.core.left_out import LabelNoise, LeftOut
from onebit_spark.core.losses import LOSSES, SIDES
from onebit_spark.core.posterior import RowPosterior, factors_in_use
from onebit_spark.core.randomness import Split
from onebit_spark.core.solver import Plan, Start, solve

log = logging.getLogger("onebit_spark")

P = TypeVar("P")  # a posterior of a side, in the engine's own form

# The candidates for κ, times the default of the loss: ten to a decade, a quarter to four.
FACTORS = (0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0)
START_RANK = 10  # where a chosen rank begins, and what it is where nothing can be chosen
FITTED_SHARE = 0.9
FEWEST = 5_000  # a tenth of fewer ratings cannot tell the candidates apart
SHORTEST = 30  # iterations of a fit; a shorter one would take less time than the choice
LOOK, FIRST = 2, 4  # iterations between two looks at the tenth, and before a change can be kept
GAIN = 0.1  # of the standard error: what a change must gain
MORE = 8  # iterations with all ratings
COIN_STREAM = 0x3A9F1  # so that these coins differ from the other coins of a seed


@dataclass(frozen=True)
class Look(Generic[P]):
    """A state of a fit of the nine tenths, and what the last tenth says of it."""

    config: FitConfig
    start: Start[P]
    left_out: LeftOut

    @property
    def loss(self) -> float:
        return self.left_out.loss

    @property
    def iterations(self) -> int:
        return len(self.start.history)

    def beats(self, other: Look[P]) -> bool:
        """Whether its loss is lower by more than the rule asks for."""
        return self.loss < other.loss - GAIN * self.left_out.standard_error

    def as_dict(self, kept: bool) -> dict[str, Any]:
        """A line of ``Choice.trail``."""
        config = self.config
        return {
            "rank": config.factors, "weight": config.weight, "implicit_features": config.implicit_features,
            "iterations": self.iterations, "loss": self.loss, "kept": kept,
        }  # fmt: skip


@dataclass(frozen=True)
class Choice(Generic[P]):
    """The settings of a fit, given or chosen."""

    config: FitConfig  # rank, κ and implicit features are settled
    start: Start[P] | None = None  # where the fit of all ratings begins
    candidates: int = 1  # How many κ it might have been, given other labels. Theorem 1 pays for all, tried or not.
    ranks: int = 1  # how many ranks it might have been; each has a prior of its own
    # 2^q, where the last tenth has said yes or no q times: it picked one of so many fits of the others (§14)
    fits: int = 1
    left_out: LeftOut | None = None  # the last tenth under the fit of the others that it picked
    trail: list[dict[str, Any]] = field(default_factory=list)  # what was tried, in order: see ``Look.as_dict``
    noise: LabelNoise | None = None  # how the probabilities are calibrated, where that pays

    @property
    def weight(self) -> float:
        return self.config.weight

    @property
    def losses(self) -> dict[float, float]:
        """The last loss of every κ that was tried, with the rank and the features of the last change that was kept."""
        kept = [entry for entry in self.trail if entry["kept"]]
        alike = [e for e in self.trail if kept and all(e[k] == kept[-1][k] for k in ("rank", "implicit_features"))]
        return {entry["weight"]: entry["loss"] for entry in sorted(alike, key=lambda entry: bool(entry["kept"]))}

    def as_dict(self) -> dict[str, Any] | None:
        """How the settings were chosen, for ``metadata.json`` and checkpoints. None: they were given."""
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
    """The settings with the rank that a fit begins with."""
    return replace(config, rank=min(START_RANK, config.max_rank)) if config.rank == AUTO else config


def choose(engine: Engine[P], config: FitConfig, start: Start[P] | None = None) -> Choice[P]:
    """The settings of a fit: those given, those of the start, or those that a tenth of the ratings prefers."""
    given = replace(at_start_rank(config), likelihood_weight=config.weight)
    if not (config.chooses_weight or config.rank == AUTO):
        return Choice(given, start)
    candidates = len(FACTORS) if config.chooses_weight else 1
    ranks = config.max_rank if config.rank == AUTO else 1
    if start is not None:
        return _as_before(given, config, start, candidates, ranks)
    asked = config.likelihood_weight == AUTO
    if engine.n_ratings < FEWEST or (config.max_iter < SHORTEST and not asked):
        return Choice(given)
    split = Split(config.seed ^ COIN_STREAM, FITTED_SHARE, by_cell=True)
    with engine.restricted(split) as part:
        search = _Search(engine, part, config, split)
        look = search.best(given)
        kept = search.without_idle_factors(look) if config.rank == AUTO else look
    noise, chosen = None, replace(kept.config, max_iter=config.max_iter, tol=config.tol)
    if LOSSES[config.loss].score_noise > 0:
        noise = LabelNoise.of_left_out(look.left_out, LOSSES[config.loss].score_noise)
    return Choice(
        chosen, _begun(kept, engine), candidates, ranks, 2**search.answers, look.left_out, search.trail, noise
    )


def _as_before(given: FitConfig, asked: FitConfig, start: Start[P], candidates: int, ranks: int) -> Choice[P]:
    """The settings of the fit that it starts from, where they are not given."""
    chosen = {"likelihood_weight": asked.chooses_weight, "rank": asked.rank == AUTO, "implicit_features": True}
    config = replace(given, **{name: value for name, value in start.settings.items() if chosen[name]})
    record = start.record or {}
    noise = LabelNoise(**record["noise"]) if record.get("noise") else None
    return Choice(config, start, candidates, ranks, trail=list(record.get("trail", ())), noise=noise)


def chose_rank(record: Mapping[str, Any] | None) -> bool:
    """Whether ``Choice.as_dict`` has a rank that was chosen."""
    return record is not None and record["ranks"] > 1


def sentences(record: Mapping[str, Any]) -> Iterator[str]:
    """``Choice.as_dict`` in sentences."""
    tried = (
        f"{entry['loss']:.4f} with {entry['rank']} factors and the weight {entry['weight']:g}"
        + ("" if entry["implicit_features"] else " without implicit features")
        + (" (kept)" if entry["kept"] else "")
        for entry in record["trail"]
    )
    yield f"Chosen by the loss of a tenth of the ratings: {', '.join(tried)}."
    if noise := record["noise"]:
        silent = f"{noise['noise']:.1%} of the labels say nothing, and " if noise["noise"] else ""
        yield f"Probabilities are calibrated on that tenth: {silent}the temperature is {noise['temperature']:.3g}."


def _begun(look: Look[P], engine: Engine[P]) -> Start[P]:
    """Where the fit of all ratings begins: where the fit of the nine tenths ended.

    The weights of side features are learnt afresh: they are coded by the rows with ratings, here more than there.
    """
    before = look.iterations
    reason = (
        f"after {before} iterations on nine tenths of the ratings the last tenth gained no more; {MORE} more on all"
    )
    scales = replace(look.start.scales, features={}) if engine.features else look.start.scales
    return Start(look.start.posteriors, scales, earlier=before, planned=Plan(MORE, reason))


class _Search(Generic[P]):
    """Fits of the nine tenths (``part``), judged by the last tenth.

    ``trail`` has all that were tried. ``answers`` counts how often the tenth said yes or no: what it has picked is one
    of the leaves of a tree of such questions, and the limit of §14 pays for its depth.
    """

    def __init__(self, engine: Engine[P], part: Engine[P], asked: FitConfig, split: Split) -> None:
        self._engine, self._part, self._asked, self._split = engine, part, asked, split
        self.trail: list[dict[str, Any]] = []
        self.answers = 0

    def best(self, given: FitConfig) -> Look[P]:
        """The state that no change improves."""
        look, asked = self._begun(given), self._asked
        if asked.chooses_weight:
            look = self._weighed(look)
        while asked.rank == AUTO and look.config.factors < asked.max_rank and self._used(look) == look.config.factors:
            wider = replace(look.config, rank=min(2 * look.config.factors, asked.max_rank))
            if short := self._engine.shortage(wider):
                log.warning("choosing by a tenth of the ratings: rank %d is not tried: %s", wider.factors, short)
                break
            grown = self._settled(self._grown(look, wider))
            if not self._kept(grown, look):
                break
            look = self._weighed(grown) if asked.chooses_weight else grown
        return look

    def without_idle_factors(self, look: Look[P]) -> Look[P]:
        """The state without the factors that the prior has switched off."""
        kept = self._in_use(look)
        if len(kept) == look.config.factors:
            return look
        kept = kept if len(kept) else np.arange(1)
        posteriors = {
            side: self._part.combined(side, _Keeping(kept), posterior)
            for side, posterior in look.start.posteriors.items()
        }
        config, scales = replace(look.config, rank=len(kept)), look.start.scales
        scales = scales.of_factors(kept, config.intercepts)
        return replace(look, config=config, start=replace(look.start, posteriors=posteriors, scales=scales))

    def _begun(self, config: FitConfig) -> Look[P]:
        """The first fit, with or without implicit features."""
        look = self._look(config, None, FIRST)
        if config.implicit_features:
            plain = self._look(replace(config, implicit_features=False), None, FIRST)
            pays = self._asked_if(look.beats(plain))
            if not pays:
                look, plain = self._settled(look), self._settled(plain)
                pays = self._asked_if(look.beats(plain))
            look, refused = (look, plain) if pays else (plain, look)
            self._record(refused, False)
        look = self._settled(look)
        self._record(look, True)
        return look

    def _weighed(self, look: Look[P]) -> Look[P]:
        """With the κ that is best for this rank: upwards while that helps, else downwards."""
        weights = [factor * self._asked.default_weight for factor in FACTORS]
        first = look
        for step in (1, -1):
            while 0 <= (place := weights.index(look.config.weight) + step) < len(weights):
                config = replace(look.config, likelihood_weight=weights[place])
                changed = self._look(config, look.start, LOOK)
                if self._asked_if(changed.loss < look.loss + GAIN * look.left_out.standard_error):
                    changed = self._look(config, changed.start, FIRST - LOOK)
                if not self._kept(changed, look):
                    break
                look = changed
            if look is not first:
                look, chosen = self._settled(look), look
                if look is not chosen:
                    self._record(look, True)
                break
        return look

    def _grown(self, look: Look[P], config: FitConfig) -> Look[P]:
        """With as many factors as ``config`` says."""
        old = look.config.factors
        self._part.start_from(look.start.posteriors)
        posteriors = self._part.grown(config, config.make_loss())
        index = np.where(np.arange(config.factors) < old, np.arange(config.factors), -1)
        scales = look.start.scales.of_factors(index, config.intercepts)
        return self._look(config, replace(look.start, posteriors=posteriors, scales=scales), FIRST)

    def _settled(self, look: Look[P]) -> Look[P]:
        """After as many iterations as help."""
        while look.iterations + LOOK <= self._asked.max_iter:
            more = self._look(look.config, look.start, LOOK)
            if not self._asked_if(more.beats(look)):
                return more if self._asked_if(more.loss < look.loss) else look
            look = more
        return look

    def _look(self, config: FitConfig, start: Start[P] | None, iterations: int) -> Look[P]:
        """So many iterations more, and a look at the tenth."""
        before = 0 if start is None else len(start.history)
        outcome = solve(self._part, replace(config, tol=0.0, max_iter=before + iterations), start=start)
        posteriors = final_posteriors(self._part, outcome.hierarchy)
        left_out = self._engine.left_out_loss(config.loss, posteriors, self._split)
        return Look(config, Start(posteriors, outcome.hierarchy.scales, outcome.history), left_out)

    def _kept(self, changed: Look[P], look: Look[P]) -> bool:
        kept = self._asked_if(changed.beats(look))
        self._record(changed, kept)
        return kept

    def _asked_if(self, answer: bool) -> bool:
        self.answers += 1
        return answer

    def _record(self, look: Look[P], kept: bool) -> None:
        self.trail.append(look.as_dict(kept))
        config = look.config
        log.info(
            "choosing by a tenth of the ratings: rank %d, weight %g%s: loss %.4f after %d iterations, %s",
            config.factors, config.weight, "" if config.implicit_features else ", no implicit features", look.loss,
            look.iterations, "kept" if kept else "not kept",
        )  # fmt: skip

    def _in_use(self, look: Look[P]) -> NDArray[np.int64]:
        part = self._part
        rows, cols = (part.column_norms(side, look.start.posteriors[side]) for side in SIDES)
        return factors_in_use(rows, cols, part.count("rows"), part.count("cols"))

    def _used(self, look: Look[P]) -> int:
        return len(self._in_use(look))


@dataclass(frozen=True)
class _Keeping:
    factors: NDArray[np.int64]

    def __call__(self, posterior: RowPosterior) -> RowPosterior:
        return posterior.with_only(self.factors)
