"""report.html: one fit on one page, in a file that needs no other."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from onebit_spark.certify.certificates import OF_PREDICTIONS, PRECISION, SKEWED, headlines
from onebit_spark.core.model_selection import chose_rank, sentences, trial_table
from onebit_spark.data.locations import PAGE_MARK
from onebit_spark.model_info import SIDE_OF, ModelInfo, feature_effects
from onebit_spark.report.map import page
from onebit_spark.settings import FitConfig, Who, declared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger("onebit_spark")

REPORT = "report.html"
REPEAT_WORDS = {
    "repeated_cells": "cells rated more than once",
    "repeated": "ratings beyond the first of a cell",
    "conflicting": "cells rated both ways",
}

CSS = """
:root { color-scheme: light dark; --text: #1a202c; --grey: #4a5568; --light: #cbd5e0; --grid: #edf2f7; --page: #fff;
        --blue: #2b6cb0; --orange: #c05621; }
@media (prefers-color-scheme: dark) { :root { --text: #e2e8f0; --grey: #a0aec0; --light: #4a5568; --grid: #2d3748;
        --page: #171c26; --blue: #63a4e8; --orange: #ed8b4e; } }
body { font: 15px/1.5 system-ui, "Helvetica Neue", Arial, sans-serif; color: var(--text); background: var(--page);
       max-width: 62rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: .95rem; margin: 0 0 .2rem; } p { margin: .4rem 0; max-width: 48rem; } .subtitle { color: var(--grey); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.tile { border: 1px solid var(--light); border-top: 3px solid var(--blue); border-radius: 4px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.3; font-weight: 600; } .tile span { color: var(--grey); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1.4rem 1.6rem; }
figure { margin: 0; break-inside: avoid; } figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; color: var(--grey); }
table { border-collapse: collapse; font-size: .9rem; } td, th { text-align: left; padding: .15rem 1.4rem .15rem 0; }
th { font-weight: 400; color: var(--grey); } td { font-variant-numeric: tabular-nums; }
code { font-size: .85rem; overflow-wrap: anywhere; }
iframe { width: 100%; height: 34rem; border: 1px solid var(--light); border-radius: 4px; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2rem; }
.note { border-left: 3px solid var(--orange); padding-left: .8rem; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } h2 { break-after: avoid; }
  .tile, table, p { break-inside: avoid; } .plots { grid-template-columns: 1fr 1fr; } }
"""


def page_of(info: ModelInfo, certificate: dict[str, Any]) -> str | None:
    """The page of a model that was diagnosed. Without matplotlib it logs a warning and returns None."""
    if info.diagnostics is None:
        return None
    if find_spec("matplotlib") is None:
        log.warning("no report.html: its plots need matplotlib (pip install '.[plots]')")
        return None
    return report(info, certificate)


def report(info: ModelInfo, certificate: dict[str, Any] | None = None) -> str:
    """The page. ``certificate`` has the content of ``certificate.json``."""
    config, (users, items) = info.config, info.rated
    kind = f"{config.loss} loss, {config.prior} prior, {'with' if config.intercepts else 'without'} intercepts"
    end = f"{'converged' if info.converged else 'stopped'} after {info.iterations} iterations"
    title = f"{info.n_ratings:,} ratings of {users:,} users on {items:,} items"
    seconds = (info.diagnostics or {}).get("job", {}).get("seconds") or info.seconds  # of the job, else of the fit
    tiles = "".join(
        f'<div class="tile"><b>{escape(figure)}</b><span>{escape(what)}</span></div>'
        for figure, what in _headline(info, certificate)
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"{PAGE_MARK}{escape(title)}</title><style>{CSS}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="subtitle">A 1-bit matrix completion by variational Bayes: {escape(kind)}; {end}.</p>',
            *_job(info),
            f'<div class="tiles">{tiles}</div>',
            *_notes(info),
            '<h2>The fit and its quality</h2><div class="plots">',
            *(
                f"<figure><h3>{escape(plot.title)}</h3>{plot.svg()}"
                f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
                for plot in plots(info, certificate["certificates"] if certificate else ())
            ),
            "</div>",
            *_certificate(info, certificate),
            *_map(info),
            '<h2>In detail</h2><div class="columns">',
            _table("Data", _data(info)),
            _table("Settings", _settings(info)),
            _table("Seconds", {phase: f"{value:.2f}" for phase, value in seconds.items()}),
            "</div></body></html>",
        ]
    )


def _job(info: ModelInfo) -> Iterable[str]:
    """When, by which version, from which input and by which command the model was fitted, if a job has noted it."""
    if job := (info.diagnostics or {}).get("job"):
        made = f"{job['date']}, onebit_spark {job['version']}, from {job['input']}"
        yield f'<p class="subtitle">{escape(made)}</p>'
        yield f"<p><code>{escape(job['command'])}</code></p>"


def _headline(info: ModelInfo, certificate: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    """Pairs of a figure and its meaning."""
    seen = info.diagnostics
    if seen:
        yield f"{seen['error']:.1%}", f"of {seen['source']} predicted wrongly"
        n_positive, n_negative = (sum(seen["scores"][label]) for label in ("positive", "negative"))
        off_majority = (n_negative if info.majority > 0 else n_positive) / (n_positive + n_negative)
        yield f"{off_majority:.1%}", "of the same ratings are predicted wrongly by the majority class alone"
        if off_majority < SKEWED and "average_precision" in seen:
            yield rare_class(seen, n_positive / (n_positive + n_negative))
        yield f"{seen['calibration_error']:.3f}", "average error of the probabilities"
    yield f"{info.effective_rank} of {info.config.rank}", "factors in use"
    for one in headlines(certificate) if certificate else ():
        figure, what = f"≤ {one['bound']:.1%}", "errors of draws from the posterior, not predictions"
        if one["name"] == PRECISION:
            name, figure = one["class"], f"≥ {one['bound']:.1%}"
            what = f"of the pairs called {name} are {name}, at least {one['found_limit']:.1%} of all {name}s"
        elif one["name"] in OF_PREDICTIONS:
            what = "errors of the model's predictions"
        if not one["vacuous"]:
            yield figure, f"{what}: certified with confidence {100 * (1 - one['delta']):.6g}%"


def rare_class(figures: Mapping[str, Any], positive: float) -> tuple[str, str]:
    """The average precision of the rarer class, given the share of positives, and what it means."""
    name, prefix, share = ("positive", "", positive) if positive <= 0.5 else ("negative", "negative_", 1 - positive)
    precision, recall, area = (figures[f"{prefix}{figure}"] for figure in ("precision", "recall", "average_precision"))
    if area is None:
        return "none", f"average precision: no rating is {name}"
    called = f"precision {precision:.1%}, recall {recall:.1%}" if precision is not None else "but none is predicted so"
    return f"{area:.4f}", f"average precision for {name}s, in random order {share:.4f}; predicted {name}: {called}"


def _notes(info: ModelInfo) -> Iterable[str]:
    if info.diagnostics and info.diagnostics["fitted"]:
        yield (
            '<p class="note">Errors and probabilities were measured on fitted ratings, so they look better than '
            "they are. Hold some ratings out to measure the model on new ones.</p>"
        )
    if not info.converged and info.config.tol > 0:
        yield f'<p class="note">Not converged: {escape(info.reason)}.</p>'
    if info.choice:
        yield from (f'<p class="note">{escape(sentence)}</p>' for sentence in sentences(info.choice))
        yield f"<pre>{escape(chr(10).join(trial_table(info.choice)))}</pre>"
    if info.effective_rank == info.config.rank and not chose_rank(info.choice):
        yield (
            '<p class="note">Every factor is in use: a larger rank may or may not predict better. Trying several on '
            "the same ratings is a comparison: declare it (--certificate-grid, certificateGrid).</p>"
        )


def _certificate(info: ModelInfo, certificate: dict[str, Any] | None) -> Iterable[str]:
    if not certificate or not certificate["certificates"]:
        return
    yield "<h2>Certified limits on its errors</h2>"
    for one in sorted(certificate["certificates"], key=lambda one: one["name"] != certificate["headline"]):
        name = escape(str(one["name"]).replace("_", " "))
        bound = "not met" if one.get("threshold", 0) is None else f"{one['bound']:.3f}"
        yield f"<p><b>{name}, {bound}.</b> {marked_up(str(one['statement']))}</p>"


def marked_up(text: str) -> str:
    """The text as HTML. Names in backticks are shown as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _map(info: ModelInfo) -> Iterable[str]:
    if drawn := (info.diagnostics or {}).get("map"):
        yield "<h2>Where the users stand</h2>"
        yield "<p>The first two dimensions of the scores, with error bars of those at the ends and of those with the "
        yield "fewest and the most ratings. An item's name draws the line between its positive and negative scores.</p>"
        yield f'<iframe title="Map of the users" srcdoc="{escape(page(drawn))}"></iframe>'


def _data(info: ModelInfo) -> dict[str, str]:
    users, items = info.rated
    return {
        "ratings": f"{info.n_ratings:,}",
        "users × items": f"{users:,} × {items:,}",
        "cells with a rating, at most": f"{info.n_ratings / (users * items):.2%}",
        "positive": f"{info.n_positive / info.n_ratings:.1%}",
        **{words: f"{info.repeats[name]:,}" for name, words in REPEAT_WORDS.items()},
        **{
            f"side features of {who}s": f"{len(features['coding']):,}; {features['newcomers']:,} without ratings"
            for who, features in (info.side_features or {}).items()
        },
        "columns": ", ".join(info.columns.values()),
        "sum of the weights": "" if info.total_weight is None else f"{info.total_weight:,.6g}",
        "positive above": "" if info.threshold is None else f"{info.threshold:g}",
    }


def _settings(info: ModelInfo) -> dict[str, str]:
    names = (name for name in declared(FitConfig) if name in info.parameters)
    values = {name.replace("_", " "): info.parameters[name] for name in names}
    shown = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    if info.calibration:
        shown["calibration"] = f"learnt, {len(info.calibration['knots'])} knots"
    return shown


def _table(caption: str, rows: dict[str, str]) -> str:
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items() if value
    )
    return f"<div><h3>{escape(caption)}</h3><table>{lines}</table></div>"


# ---- plots, as inline SVG --------------------------------------------------------------------------------------------

BLUE, ORANGE, GREY, LIGHT, GRID = "#2b6cb0", "#c05621", "#4a5568", "#cbd5e0", "#edf2f7"
# The page gives these names a colour for bright and one for dark screens.
CSS_NAMES = {BLUE: "--blue", ORANGE: "--orange", GREY: "--grey", LIGHT: "--light", GRID: "--grid"}
SIZE = (4.6, 3.0)  # inches
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
}

MOST_FEATURES, LONGEST_NAME = 14, 28


@dataclass(frozen=True)
class Plot:
    title: str
    caption: str
    alt: str  # what it shows, for those who do not see it
    draw: Callable[[Axes], None]

    def svg(self) -> str:
        """The markup. Colours are names of the page's style sheet."""
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        text = io.StringIO()
        with rc_context({**STYLE, "svg.hashsalt": self.title, "svg.fonttype": "path"}):  # ids differ between plots
            figure = Figure(figsize=SIZE)
            FigureCanvasSVG(figure)
            self.draw(figure.add_subplot())
            ConstrainedLayoutEngine().execute(figure)  # once: a figure with a layout engine is drawn twice
            figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        markup = text.getvalue()
        markup = markup[markup.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(self.alt)}"', 1)
        for colour, name in CSS_NAMES.items():
            markup = markup.replace(colour, f"var({name})")
        return markup


def plots(info: ModelInfo, certificates: Sequence[Mapping[str, Any]] = ()) -> Iterator[Plot]:
    history = info.objective_history
    yield Plot(
        "Convergence",
        "The objective is minimised. The plot shows how far it is above its last value.",
        f"Line plot: the objective fell from {history[0]:,.6g} to {history[-1]:,.6g} in {len(history)} iterations.",
        partial(_objective, info),
    )
    off = len(info.inverse_gamma) - info.effective_rank
    yield Plot(
        "Factors",
        "The scale of a factor is 1/E[1/γ]." + (" The prior has switched off the orange ones." if off else ""),
        f"Bar plot: the scales of {len(info.inverse_gamma)} factors, of which {info.effective_rank} are in use.",
        partial(_spectrum, info),
    )
    for who in (name for name in SIDE_OF if name in (info.side_features or ())):
        yield Plot(
            f"Features of {who}s",
            "The change of the score by a category, or by one standard deviation of a number.",
            f"Bar plot: how the side features of {who}s change the score.",
            partial(_effects, who, info),
        )
    seen = info.diagnostics
    if not seen:
        return
    source = seen["source"]
    yield Plot(
        "Probabilities",
        f"Predicted probability and observed frequency, on {source}, with two standard errors. On the diagonal they "
        "agree. The bars show how many ratings there are.",
        f"Line plot: observed frequencies by predicted probability; they differ by {seen['calibration_error']:.3f} on "
        "average.",
        partial(_reliability, seen["reliability"]),
    )
    yield Plot(
        "Scores",
        f"Scores by class, on {source}. A score on the wrong side of 0 is an error.",
        f"Histograms of the scores of positive and negative ratings; {seen['error']:.1%} are on the wrong side of 0.",
        partial(_scores, _wider(seen["scores"])),
    )
    if "risk_coverage" in seen:
        points = [item for item in certificates if item["name"] == "selective" and not item["group"]]
        met = any(item["threshold"] is not None for item in points)
        certified = " Dotted: the requested error rate." if points else ""
        certified += " Orange points: certified to be below it." if met else ""
        yield Plot(
            "Answering only confident pairs",
            f"Error rate if only the most confident pairs are answered, on {source}.{certified}",
            f"Line plot: the error rate rises to {seen['error']:.1%} as the share of answered pairs rises to 100%.",
            partial(_risk_coverage, points, seen["risk_coverage"]),
        )
    for name in ("positive", "negative") if "calls" in seen else ():
        points = [item for item in certificates if item.get("class") == name and not item["group"]]
        if points or (name == "positive") == (info.majority < 0):
            certified = " Dotted: the requested precision. Orange points: certified." if points else ""
            yield Plot(
                f"Calling pairs {name}",
                f"Precision and recall if only the surest pairs are called {name}, on {source}. Dashed: in random "
                f"order.{certified}",
                f"Line plot: how the precision of calling pairs {name} falls as the recall rises to 100%.",
                partial(_precision_recall, points, name, seen["calls"]),
            )


def _objective(info: ModelInfo, axes: Axes) -> None:
    values = np.array(info.objective_history)
    above = values - values[-1]
    at = np.arange(1, len(values) + 1)
    shown = above > 0
    axes.plot(at[shown], above[shown], color=BLUE, marker="o", markersize=3, linewidth=1.5)
    if np.count_nonzero(shown):
        axes.set_yscale("log")
    axes.set(xlabel="iteration", ylabel="objective above its last value")
    axes.locator_params(axis="x", integer=True)


def _spectrum(info: ModelInfo, axes: Axes) -> None:
    scale = np.sort(1.0 / np.array(info.inverse_gamma))[::-1]
    colours = [BLUE if k < info.effective_rank else ORANGE for k in range(len(scale))]
    axes.bar(np.arange(1, len(scale) + 1), scale, color=colours)
    axes.set_yscale("log" if scale[-1] < 0.05 * scale[0] else "linear")
    axes.set(xlabel="factor, largest first", ylabel="scale of a factor")
    axes.locator_params(axis="x", integer=True)


def _reliability(curve: Mapping[str, Any], axes: Axes) -> None:
    n, said, came = (np.array(curve[name]) for name in ("n", "probability", "frequency"))
    axes.plot([0, 1], [0, 1], color=LIGHT, linewidth=1)
    # Two standard errors of a frequency.
    noise = 2 * np.sqrt(np.maximum(came * (1 - came), 1 / n) / n)
    axes.errorbar(said, came, yerr=noise, color=BLUE, marker="o", markersize=4, linewidth=1.2, elinewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="share of positives")
    below = axes.twinx()
    axes.set_zorder(below.get_zorder() + 1)
    axes.patch.set_visible(False)
    below.bar(said, n / n.sum(), width=0.04, color=LIGHT, alpha=0.6, zorder=0)
    below.set(ylim=(0, 4 * max(n / n.sum())), yticks=[])
    below.grid(visible=False)
    below.spines["right"].set_visible(False)


def _scores(scores: Mapping[str, Any], axes: Axes) -> None:
    centres = scores["low"] + scores["width"] / 2
    total = sum(scores["positive"]) + sum(scores["negative"])
    for name, colour in (("negative", ORANGE), ("positive", BLUE)):
        share = np.array(scores[name]) / total
        axes.fill_between(centres, share, step="mid", color=colour, alpha=0.35, linewidth=0)
        axes.step(centres, share, where="mid", color=colour, linewidth=1.2, label=f"{name} label")
    weights = np.array(scores["positive"]) + np.array(scores["negative"])
    inside = np.cumsum(weights) / total
    low, high = centres[np.searchsorted(inside, 0.001)], centres[min(np.searchsorted(inside, 0.999), len(centres) - 1)]
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_xlim(low - 2 * scores["width"], high + 2 * scores["width"])
    axes.set_ylim(0, 1.3 * max(np.max(scores[name]) for name in ("positive", "negative")) / total)  # and the legend
    axes.set(xlabel="score", ylabel="share of ratings")
    axes.legend(loc="upper left")


def _effects(who: Who, info: ModelInfo, axes: Axes) -> None:
    """Draw the features with the largest effects."""
    effects = sorted(feature_effects(info, who), key=lambda one: abs(one[1]))[-MOST_FEATURES:]
    sizes = np.array([one[1] for one in effects])
    axes.barh([one[0][:LONGEST_NAME] for one in effects], sizes, color=np.where(sizes < 0, ORANGE, BLUE).tolist())
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("change of the score")


def _risk_coverage(points: Sequence[Mapping[str, Any]], curve: Mapping[str, Any], axes: Axes) -> None:
    """Draw the curve, and ``points``, selective certificates. A request that was not met is a line without a point."""
    shares, errors = np.array(curve["share"]), np.array(curve["error"])
    shown = shares >= 0.01  # for a smaller share the error is too noisy
    axes.plot(shares[shown], errors[shown], color=BLUE, linewidth=1.5)
    beside: dict[str, Any] = {"textcoords": "offset points", "color": ORANGE, "fontsize": 8}
    for item in points:
        asked = f"≤ {100 * item['request']:.3g}%"
        axes.axhline(item["request"], color=ORANGE, linewidth=0.8, linestyle=":")
        if item["threshold"] is None:
            axes.annotate(f"{asked}: not met", (1, item["request"]), xytext=(0, 3), ha="right", **beside)
            continue
        share, error = item["answered_share"], item["errors"] / item["n_answered"]
        axes.plot([share, share], [error, item["request"]], color=ORANGE, linewidth=1)
        axes.plot(share, error, color=ORANGE, marker="o", markersize=5)
        left = share > 0.2  # the curve rises to the right
        place: dict[str, Any] = {"xytext": (-4 if left else 4, 3), "ha": "right" if left else "left"}
        axes.annotate(f"{asked}: {share:.0%}", (share, item["request"]), **place, **beside)
    axes.set(xlim=(0, 1.02), xlabel="share answered", ylabel="error among the answered")
    axes.set_ylim(0, 1.15 * max(errors[shown].max(), *(item["request"] for item in points), 0.01))


def _precision_recall(points: Sequence[Mapping[str, Any]], name: str, calls: Mapping[str, Any], axes: Axes) -> None:
    """Draw the curve of a class, from the surest call on, and ``points``, its certificates."""
    surest_first = slice(None, None, -1 if name == "positive" else 1)
    found = np.cumsum(calls[name][surest_first])
    n = np.cumsum(np.add(calls["positive"], calls["negative"])[surest_first])
    shown = n >= min(50, n[-1])  # for fewer calls the precision is too noisy
    axes.plot((found / max(found[-1], 1))[shown], (found / n)[shown], color=BLUE, linewidth=1.5)
    axes.axhline(found[-1] / n[-1], color=GREY, linewidth=0.8, linestyle="--")
    beside: dict[str, Any] = {"textcoords": "offset points", "color": ORANGE, "fontsize": 8, "xytext": (4, 3)}
    for item in points:
        recall, asked = item["found_share"], f"≥ {100 * item['request']:.3g}%"
        axes.axhline(item["request"], color=ORANGE, linewidth=0.8, linestyle=":")
        if item["threshold"] is None:
            axes.annotate(f"{asked}: not met", (0, item["request"]), **beside)
            continue
        axes.plot(recall, 1 - item["errors"] / item["n_answered"], color=ORANGE, marker="o", markersize=5)
        axes.annotate(f"{asked}: {recall:.0%}", (recall, item["request"]), **beside)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.05), xlabel="recall", ylabel="precision")


def _wider(scores: dict[str, Any]) -> dict[str, Any]:
    """The histogram with bins that are 2, 4, … times as wide, until the average bin has enough ratings."""
    width, low = scores["width"], np.array(scores["low"])
    counts = {name: np.array(scores[name]) for name in ("positive", "negative")}
    place = np.round(low / width).astype(int)
    while len(np.unique(place)) > 12 and sum(map(np.sum, counts.values())) / len(np.unique(place)) < 150:
        place, width = place // 2, 2 * width
    first = place.min()
    merged = {name: np.bincount(place - first, weights=values) for name, values in counts.items()}
    return {"width": width, "low": (first + np.arange(len(merged["positive"]))) * width, **merged}
