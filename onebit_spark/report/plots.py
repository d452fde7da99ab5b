"""The plots of report.html, as inline SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from onebit_spark.certify.certificates import SELECTIVE
from onebit_spark.model_info import SIDE_OF, ModelInfo, feature_effects
from onebit_spark.records import Fields, Record
from onebit_spark.settings import Who

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

MOST_FEATURES = 14
LONGEST_NAME = 28


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
        # Ids differ between plots
        with rc_context({**STYLE, "svg.hashsalt": self.title, "svg.fonttype": "path"}):
            figure = Figure(figsize=SIZE)
            FigureCanvasSVG(figure)
            self.draw(figure.add_subplot())
            # Once: a figure with a layout engine is drawn twice
            ConstrainedLayoutEngine().execute(figure)
            figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        markup = text.getvalue()
        markup = markup[markup.index("<svg") :].replace(
            "<svg", f'<svg role="img" aria-label="{escape(self.alt)}"', 1
        )
        for colour, name in CSS_NAMES.items():
            markup = markup.replace(colour, f"var({name})")
        return markup


def plots(info: ModelInfo, certificates: Sequence[Record] = ()) -> Iterator[Plot]:
    """Those of a fit, and those of the ratings that measured it, if there are any."""
    yield plot_convergence(info)
    yield plot_factors(info)
    for who in SIDE_OF:
        if who in (info.side_features or ()):
            yield plot_effects(info, who)
    seen = info.diagnostics
    if not seen:
        return
    ungrouped = [item for item in certificates if not item.get("group")]
    yield plot_probabilities(seen)
    yield plot_scores(seen)
    if "risk_coverage" in seen:
        yield plot_answers(seen, [item for item in ungrouped if item["name"] == SELECTIVE])
    rarer = "positive" if info.majority < 0 else "negative"
    for name in ("positive", "negative") if "calls" in seen else ():
        points = [item for item in ungrouped if item.get("class") == name]
        if points or name == rarer:
            yield plot_calls(seen, points, name)


def plot_convergence(info: ModelInfo) -> Plot:
    history = info.objective_history
    fall = f"from {history[0]:,.6g} to {history[-1]:,.6g} in {len(history)} iterations"
    return Plot(
        "Convergence",
        "The objective is minimised. The plot shows how far it is above its last value.",
        f"Line plot: the objective fell {fall}.",
        partial(_objective, info),
    )


def plot_factors(info: ModelInfo) -> Plot:
    n = len(info.inverse_gamma)
    note = " The prior has switched off the orange ones." if n > info.effective_rank else ""
    return Plot(
        "Factors",
        f"The scale of a factor is 1/E[1/γ].{note}",
        f"Bar plot: the scales of {n} factors, of which {info.effective_rank} are in use.",
        partial(_spectrum, info),
    )


def plot_effects(info: ModelInfo, who: Who) -> Plot:
    return Plot(
        f"Features of {who}s",
        "The change of the score by a category, or by one standard deviation of a number.",
        f"Bar plot: how the side features of {who}s change the score.",
        partial(_effects, who, info),
    )


def plot_probabilities(seen: Record) -> Plot:
    return Plot(
        "Probabilities",
        f"Predicted probability and observed frequency, on {seen['source']}, with two standard "
        "errors. On the diagonal they agree. The bars show how many ratings there are.",
        "Line plot: observed frequencies by predicted probability; they differ by "
        f"{seen['calibration_error']:.3f} on average.",
        partial(_reliability, seen["reliability"]),
    )


def plot_scores(seen: Record) -> Plot:
    return Plot(
        "Scores",
        f"Scores by class, on {seen['source']}. A score on the wrong side of 0 is an error.",
        f"Histograms of the scores of positive and negative ratings; {seen['error']:.1%} are on "
        "the wrong side of 0.",
        partial(_scores, _wider(seen["scores"])),
    )


def plot_answers(seen: Record, points: Sequence[Record]) -> Plot:
    note = " Dotted: the requested error rate." if points else ""
    if any(item["threshold"] is not None for item in points):
        note += " Orange points: certified to be below it."
    return Plot(
        "Answering only confident pairs",
        f"Error rate if only the most confident pairs are answered, on {seen['source']}.{note}",
        f"Line plot: the error rate rises to {seen['error']:.1%} as the share of answered pairs "
        "rises to 100%.",
        partial(_risk_coverage, points, seen["risk_coverage"]),
    )


def plot_calls(seen: Record, points: Sequence[Record], name: str) -> Plot:
    note = " Dotted: the requested precision. Orange points: certified." if points else ""
    return Plot(
        f"Calling pairs {name}",
        f"Precision and recall if only the surest pairs are called {name}, on {seen['source']}. "
        f"Dashed: in random order.{note}",
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


def _reliability(curve: Record, axes: Axes) -> None:
    n, said, came = (np.array(curve[name]) for name in ("n", "probability", "frequency"))
    axes.plot([0, 1], [0, 1], color=LIGHT, linewidth=1)
    # Two standard errors of a frequency.
    noise = 2 * np.sqrt(np.maximum(came * (1 - came), 1 / n) / n)
    axes.errorbar(
        said, came, yerr=noise, color=BLUE, marker="o", markersize=4, linewidth=1.2, elinewidth=0.8
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="share of positives")
    below = axes.twinx()
    axes.set_zorder(below.get_zorder() + 1)
    axes.patch.set_visible(False)
    below.bar(said, n / n.sum(), width=0.04, color=LIGHT, alpha=0.6, zorder=0)
    below.set(ylim=(0, 4 * max(n / n.sum())), yticks=[])
    below.grid(visible=False)
    below.spines["right"].set_visible(False)


def _scores(scores: Record, axes: Axes) -> None:
    centres = scores["low"] + scores["width"] / 2
    total = sum(scores["positive"]) + sum(scores["negative"])
    for name, colour in (("negative", ORANGE), ("positive", BLUE)):
        share = np.array(scores[name]) / total
        axes.fill_between(centres, share, step="mid", color=colour, alpha=0.35, linewidth=0)
        axes.step(centres, share, where="mid", color=colour, linewidth=1.2, label=f"{name} label")
    weights = np.array(scores["positive"]) + np.array(scores["negative"])
    inside = np.cumsum(weights) / total
    low = centres[np.searchsorted(inside, 0.001)]
    high = centres[min(np.searchsorted(inside, 0.999), len(centres) - 1)]
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_xlim(low - 2 * scores["width"], high + 2 * scores["width"])
    # And the legend
    axes.set_ylim(0, 1.3 * max(np.max(scores[name]) for name in ("positive", "negative")) / total)
    axes.set(xlabel="score", ylabel="share of ratings")
    axes.legend(loc="upper left")


def _effects(who: Who, info: ModelInfo, axes: Axes) -> None:
    """Draw the features with the largest effects."""
    effects = sorted(feature_effects(info, who), key=lambda one: abs(one[1]))[-MOST_FEATURES:]
    sizes = np.array([one[1] for one in effects])
    axes.barh(
        [one[0][:LONGEST_NAME] for one in effects],
        sizes,
        color=np.where(sizes < 0, ORANGE, BLUE).tolist(),
    )
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("change of the score")


def _risk_coverage(points: Sequence[Record], curve: Record, axes: Axes) -> None:
    """Draw the curve, and ``points``, selective certificates.

    A request that was not met is a line without a point.
    """
    shares = np.array(curve["share"])
    errors = np.array(curve["error"])
    shown = shares >= 0.01  # for a smaller share the error is too noisy
    axes.plot(shares[shown], errors[shown], color=BLUE, linewidth=1.5)
    beside: Fields = {"textcoords": "offset points", "color": ORANGE, "fontsize": 8}
    for item in points:
        asked = f"≤ {100 * item['request']:.3g}%"
        axes.axhline(item["request"], color=ORANGE, linewidth=0.8, linestyle=":")
        if item["threshold"] is None:
            axes.annotate(
                f"{asked}: not met", (1, item["request"]), xytext=(0, 3), ha="right", **beside
            )
            continue
        share = item["answered_share"]
        error = item["errors"] / item["n_answered"]
        axes.plot([share, share], [error, item["request"]], color=ORANGE, linewidth=1)
        axes.plot(share, error, color=ORANGE, marker="o", markersize=5)
        left = share > 0.2  # the curve rises to the right
        place: Fields = {
            "xytext": (-4 if left else 4, 3),
            "ha": "right" if left else "left",
        }
        axes.annotate(f"{asked}: {share:.0%}", (share, item["request"]), **place, **beside)
    axes.set(xlim=(0, 1.02), xlabel="share answered", ylabel="error among the answered")
    axes.set_ylim(0, 1.15 * max(errors[shown].max(), *(item["request"] for item in points), 0.01))


def _precision_recall(points: Sequence[Record], name: str, calls: Record, axes: Axes) -> None:
    """Draw the curve of a class, from the surest call on, and ``points``, its certificates."""
    surest_first = slice(None, None, -1 if name == "positive" else 1)
    found = np.cumsum(calls[name][surest_first])
    n = np.cumsum(np.add(calls["positive"], calls["negative"])[surest_first])
    shown = n >= min(50, n[-1])  # for fewer calls the precision is too noisy
    axes.plot((found / max(found[-1], 1))[shown], (found / n)[shown], color=BLUE, linewidth=1.5)
    axes.axhline(found[-1] / n[-1], color=GREY, linewidth=0.8, linestyle="--")
    beside: Fields = {
        "textcoords": "offset points",
        "color": ORANGE,
        "fontsize": 8,
        "xytext": (4, 3),
    }
    for item in points:
        recall = item["found_share"]
        asked = f"≥ {100 * item['request']:.3g}%"
        axes.axhline(item["request"], color=ORANGE, linewidth=0.8, linestyle=":")
        if item["threshold"] is None:
            axes.annotate(f"{asked}: not met", (0, item["request"]), **beside)
            continue
        axes.plot(
            recall, 1 - item["errors"] / item["n_answered"], color=ORANGE, marker="o", markersize=5
        )
        axes.annotate(f"{asked}: {recall:.0%}", (recall, item["request"]), **beside)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.05), xlabel="recall", ylabel="precision")


def _wider(scores: Record) -> Record:
    """The histogram with bins that are 2, 4, … times as wide, until the average bin has enough
    ratings.
    """
    width = scores["width"]
    low = np.array(scores["low"])
    counts = {name: np.array(scores[name]) for name in ("positive", "negative")}
    place = np.round(low / width).astype(int)
    while (
        len(np.unique(place)) > 12
        and sum(map(np.sum, counts.values())) / len(np.unique(place)) < 150
    ):
        place = place // 2
        width = 2 * width
    first = place.min()
    merged = {name: np.bincount(place - first, weights=values) for name, values in counts.items()}
    return {"width": width, "low": (first + np.arange(len(merged["positive"]))) * width, **merged}
