"""report.html: one fit on one page, in a file that needs no other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from importlib.util import find_spec

from onebit_spark.certify.certificates import OF_PREDICTIONS, PRECISION, SKEWED, headlines
from onebit_spark.core.model_selection import chose_rank, sentences, trial_table
from onebit_spark.data.locations import PAGE_MARK
from onebit_spark.model_info import ModelInfo
from onebit_spark.records import Record
from onebit_spark.report.map import page
from onebit_spark.report.plots import plots
from onebit_spark.settings import FitConfig, declared

log = logging.getLogger("onebit_spark")

REPORT = "report.html"
REPEAT_WORDS = {
    "repeated_cells": "cells rated more than once",
    "repeated": "ratings beyond the first of a cell",
    "conflicting": "cells rated both ways",
}


def page_of(info: ModelInfo, certificate: Record) -> str | None:
    """The page of a model that was diagnosed.

    Without matplotlib it logs a warning and returns None.
    """
    if info.diagnostics is None:
        return None
    if find_spec("matplotlib") is None:
        log.warning("no report.html: its plots need matplotlib (pip install '.[plots]')")
        return None
    return report(info, certificate)


def report(info: ModelInfo, certificate: Record | None = None) -> str:
    """The page. ``certificate`` has the content of ``certificate.json``."""
    config = info.config
    (users, items) = info.rated
    kind = (
        f"{config.loss} loss, {config.prior} prior, "
        f"{'with' if config.intercepts else 'without'} intercepts"
    )
    end = f"{'converged' if info.converged else 'stopped'} after {info.iterations} iterations"
    title = f"{info.n_ratings:,} ratings of {users:,} users on {items:,} items"
    seconds = (info.diagnostics or {}).get("job", {}).get(
        "seconds"
    ) or info.seconds  # of the job, else of the fit
    tiles = "".join(
        f'<div class="tile"><b>{escape(figure)}</b><span>{escape(what)}</span></div>'
        for figure, what in _headline(info, certificate)
    )
    style = (files("onebit_spark.report") / "page.css").read_text("utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"{PAGE_MARK}{escape(title)}</title><style>{style}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            '<p class="subtitle">A 1-bit matrix completion by variational Bayes: '
            f"{escape(kind)}; {end}.</p>",
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
    """When, by which version, from which input and by which command the model was fitted, if a job
    has noted it.
    """
    if job := (info.diagnostics or {}).get("job"):
        made = f"{job['date']}, onebit_spark {job['version']}, from {job['input']}"
        yield f'<p class="subtitle">{escape(made)}</p>'
        yield f"<p><code>{escape(job['command'])}</code></p>"


def _headline(info: ModelInfo, certificate: Record | None) -> Iterable[tuple[str, str]]:
    """Pairs of a figure and its meaning."""
    seen = info.diagnostics
    if seen:
        yield f"{seen['error']:.1%}", f"of {seen['source']} predicted wrongly"
        n_positive, n_negative = (sum(seen["scores"][label]) for label in ("positive", "negative"))
        off_majority = (n_negative if info.majority > 0 else n_positive) / (n_positive + n_negative)
        yield (
            f"{off_majority:.1%}",
            "of the same ratings are predicted wrongly by the majority class alone",
        )
        if off_majority < SKEWED and "average_precision" in seen:
            yield rare_class(seen, n_positive / (n_positive + n_negative))
        yield f"{seen['calibration_error']:.3f}", "average error of the probabilities"
    yield f"{info.effective_rank} of {info.config.rank}", "factors in use"
    for one in headlines(certificate) if certificate else ():
        figure = f"≤ {one['bound']:.1%}"
        what = "errors of draws from the posterior, not predictions"
        if one["name"] == PRECISION:
            name = one["class"]
            figure = f"≥ {one['bound']:.1%}"
            what = (
                f"of the pairs called {name} are {name}, at least {one['found_limit']:.1%} "
                f"of all {name}s"
            )
        elif one["name"] in OF_PREDICTIONS:
            what = "errors of the model's predictions"
        if not one["vacuous"]:
            yield figure, f"{what}: certified with confidence {100 * (1 - one['delta']):.6g}%"


def rare_class(figures: Record, positive: float) -> tuple[str, str]:
    """The average precision of the rarer class, given the share of positives, and what it means."""
    name, prefix, share = (
        ("positive", "", positive) if positive <= 0.5 else ("negative", "negative_", 1 - positive)
    )
    precision, recall, area = (
        figures[f"{prefix}{figure}"] for figure in ("precision", "recall", "average_precision")
    )
    if area is None:
        return "none", f"average precision: no rating is {name}"
    called = (
        f"precision {precision:.1%}, recall {recall:.1%}"
        if precision is not None
        else "but none is predicted so"
    )
    return (
        f"{area:.4f}",
        f"average precision for {name}s, in random order {share:.4f}; predicted {name}: {called}",
    )


def _notes(info: ModelInfo) -> Iterable[str]:
    if info.diagnostics and info.diagnostics["fitted"]:
        yield (
            '<p class="note">Errors and probabilities were measured on fitted ratings, so they '
            "look better than "
            "they are. Hold some ratings out to measure the model on new ones.</p>"
        )
    if not info.converged and info.config.tol > 0:
        yield f'<p class="note">Not converged: {escape(info.reason)}.</p>'
    if info.choice:
        yield from (
            f'<p class="note">{escape(sentence)}</p>' for sentence in sentences(info.choice)
        )
        yield f"<pre>{escape(chr(10).join(trial_table(info.choice)))}</pre>"
    if info.effective_rank == info.config.rank and not chose_rank(info.choice):
        yield (
            '<p class="note">Every factor is in use: a larger rank may or may not predict '
            "better. Trying several on "
            "the same ratings is a comparison: declare it (--certificate-grid, "
            "certificateGrid).</p>"
        )


def _certificate(info: ModelInfo, certificate: Record | None) -> Iterable[str]:
    if not certificate or not certificate["certificates"]:
        return
    yield "<h2>Certified limits on its errors</h2>"
    for one in sorted(
        certificate["certificates"], key=lambda one: one["name"] != certificate["headline"]
    ):
        name = escape(str(one["name"]).replace("_", " "))
        bound = "not met" if one.get("threshold", 0) is None else f"{one['bound']:.3f}"
        yield f"<p><b>{name}, {bound}.</b> {marked_up(str(one['statement']))}</p>"


def marked_up(text: str) -> str:
    """The text as HTML. Names in backticks are shown as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _map(info: ModelInfo) -> Iterable[str]:
    if drawn := (info.diagnostics or {}).get("map"):
        yield "<h2>Where the users stand</h2>"
        yield (
            "<p>The first two dimensions of the scores, with error bars of those at the ends "
            "and of those with the "
        )
        yield (
            "fewest and the most ratings. An item's name draws the line between its positive "
            "and negative scores.</p>"
        )
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
            f"side features of {who}s": f"{len(features['coding']):,}; "
            f"{features['newcomers']:,} without ratings"
            for who, features in (info.side_features or {}).items()
        },
        "columns": ", ".join(info.columns.values()),
        "sum of the weights": "" if info.total_weight is None else f"{info.total_weight:,.6g}",
        "positive above": "" if info.threshold is None else f"{info.threshold:g}",
    }


def _settings(info: ModelInfo) -> dict[str, str]:
    names = (name for name in declared(FitConfig) if name in info.parameters)
    values = {name.replace("_", " "): info.parameters[name] for name in names}
    shown = {
        name: f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
    }
    if info.calibration:
        shown["calibration"] = f"learnt, {len(info.calibration['knots'])} knots"
    return shown


def _table(caption: str, rows: dict[str, str]) -> str:
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in rows.items()
        if value
    )
    return f"<div><h3>{escape(caption)}</h3><table>{lines}</table></div>"
