"""The settings that are compared, which of them is chosen, and the plot of their errors.

A TOML file lists values, and all combinations are tried. It may have several such products, in tables named [[grid]].

    prior = ["gamma", "inverse-gamma"]   ─►   {prior: gamma, alpha: 5}, {prior: gamma, alpha: 50},
    alpha = [5, 50]                           {prior: inverse-gamma, alpha: 5}, {prior: inverse-gamma, alpha: 50}

One-standard-error rule: consider all settings whose mean error is within one standard error of the lowest. Take the
smallest rank, then no intercepts, then the smallest error.
"""

from __future__ import annotations

import io
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onebit_spark.core.config import AUTO, FitConfig
from onebit_spark.errors import RequestError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("onebit_spark")

VARIED = ("loss", "prior", "likelihood_weight", "alpha", "beta", "rank", "intercepts", "implicit_features")

DEFAULT_GRID = """
[[grid]]
loss = "logistic"
prior = ["inverse-gamma", "gamma"]

[[grid]]
loss = "hinge"
prior = ["inverse-gamma", "gamma"]
rank = 10
likelihood-weight = [1.0, 2.0, 4.0]
intercepts = false
"""

Combination = dict[str, Any]  # of settings, by the fields of FitConfig


def read_grid(path: str | None = None) -> list[Combination]:
    """The settings of a TOML file, or the default ones. Raises a RequestError with all problems."""
    if path is None:
        return settings_of(DEFAULT_GRID, "the default grid")
    try:
        return settings_of(Path(path).read_text(encoding="utf-8"), f"--grid {path}")
    except OSError as error:
        raise RequestError(f"--grid {path} cannot be read: {error.strerror}") from error


def settings_of(text: str, source: str) -> list[Combination]:
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise RequestError(f"{source} is not TOML: {error}") from error
    tables = content.get("grid", [content])
    if not isinstance(tables, list) or ("grid" in content and len(content) > 1):
        raise RequestError(f"{source} must hold either lists of settings or tables [[grid]] of them, not both")
    keys = {name: name.replace("_", "-") for name in VARIED}
    settings: list[Combination] = []
    problems: list[str] = []
    for table in tables:
        lists = {key.replace("-", "_"): value if isinstance(value, list) else [value] for key, value in table.items()}
        unknown = [name for name in lists if name not in VARIED]
        if unknown:
            allowed = ", ".join(keys.values())
            problems.append(f"unknown key {', '.join(map(repr, unknown))}; allowed keys: {allowed}")
            continue
        settings += [dict(zip(lists, values, strict=True)) for values in product(*lists.values()) if lists]
    for setting in settings:
        wrong = [problem.in_words(keys) for problem in FitConfig(**setting).problems()]
        if setting.get("likelihood_weight") == AUTO:
            wrong.append("likelihood-weight must be a number here: leave it out, and every fit chooses its own")
        problems += [problem for problem in wrong if problem not in problems]
    if not settings and not problems:
        problems.append("it holds no setting")
    if problems:
        raise RequestError(f"{source}: {'; '.join(problems)}")
    return [setting for number, setting in enumerate(settings) if setting not in settings[:number]]


# ---- the choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The result of a setting over all folds."""

    config: FitConfig
    error: float  # mean of the error rates
    standard_error: float  # of ``error``
    log_loss: float  # mean
    seconds: float  # of all its fits


def score(config: FitConfig, folds: Sequence[Mapping[str, Any]]) -> Score:
    """The score of a setting from the results of its folds."""
    rates = np.array([fold["errors"] / fold["n"] for fold in folds])
    return Score(
        config=config,
        error=float(rates.mean()),
        standard_error=float(rates.std(ddof=1) / np.sqrt(len(rates))),
        log_loss=float(np.average([fold["log_loss"] for fold in folds], weights=[fold["n"] for fold in folds])),
        seconds=float(sum(fold["seconds"] for fold in folds)),
    )


def limit(scores: Sequence[Score]) -> float:
    """The lowest mean error plus its standard error: settings up to here count as equally good."""
    lowest = min(scores, key=lambda score: score.error)
    return lowest.error + lowest.standard_error


def choose(scores: Sequence[Score]) -> Score:
    """The setting that the one-standard-error rule chooses."""
    equal = [score for score in scores if score.error <= limit(scores)]
    return min(equal, key=lambda score: (score.config.factors, score.config.intercepts, score.error))


def plotted(
    scores: Sequence[Score], chosen: Score, name_of: Callable[[FitConfig], str], most: int = 30
) -> bytes | None:
    """A PNG of the most accurate settings, the best on top, with standard errors and the limit of ``choose``.

    Without matplotlib it logs a warning and returns None.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        log.warning("no tuning.png: it needs matplotlib (pip install '.[plots]')")
        return None
    shown = sorted(scores, key=lambda score: score.error)[:most]
    figure = Figure(figsize=(9, 1.2 + 0.25 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(limit(scores), color="0.7", linestyle="--", linewidth=1, zorder=0)
    for place, score in enumerate(shown):
        colour = "C3" if score is chosen else "C0"
        axes.errorbar(score.error, place, xerr=score.standard_error, marker="o", markersize=4, capsize=2, color=colour)
    axes.set_yticks(range(len(shown)), [name_of(score.config) for score in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("error, mean over folds ± standard error; red: chosen; dashed: lowest plus its standard error")
    axes.spines[["top", "right"]].set_visible(False)
    return as_png(figure)


def as_png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    return stream.getvalue()
