"""Writes the measured figures of benchmarks/results.json into README and the guides, so that no two
pages disagree.

    python benchmarks/peers.py --data congress --save      # a benchmark with --save puts its figures into the file
    python benchmarks/pages.py                             # then this puts them where comments name them

    <!--peers.senate.myFM.correct-->.9127<!---->           one figure: script, data, method, figure
    <!--table:others-->…<!---->                            a table of this file

``tests/unit/test_documents.py`` fails where a page does not show what the file holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from record import results

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKED = re.compile(r"<!--([\w:]+(?:[.][\w -]+)*)-->(.*?)<!---->", re.DOTALL)
NAMES = {
    "ml-100k": "MovieLens-100K",
    "ml-1m": "MovieLens-1M",
    "senate": "US Senate roll calls",
    "assistments": "ASSISTments 2017",
    "congress": "US Congress roll calls",
    "movielens-1m": "MovieLens-1M, 5 stars",
    "simulated": "simulated",
    "decaying": "simulated, 12 decaying factors",
    "A2": "simulated, type A2",
    "B2": "simulated, type B2",
}
AFTER = 0, 5, 10, 13, 16, 20, 27, 30  # answers
Results = dict[str, Any]


def share(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def seconds(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


FORMATS: dict[str, Callable[[float], str]] = {
    "correct": share,
    "auc": share,
    "log_loss": share,
    "seconds": seconds,
    "answered": percent,
    "error": percent,
    "found": percent,
    "certified": percent,
    "fresh": percent,
    "precision": percent,
    "before": percent,
    "covered": percent,
    "ratio": "{:.2f}".format,
    "ratio_before": "{:.2f}".format,
    "factors": "{:.1f}".format,
    "kappa": "{:.2f}".format,
    "draws": str,
    **dict.fromkeys((f"after_{number}" for number in AFTER), share),
    "fit_seconds": seconds,
    "cpu": seconds,
    "passes": "{:.0f}".format,
    "weighted": "{:,.0f}".format,
    "rank": str,
    "weight": "{:g}".format,
}


def shown(figures: Results, name: str) -> str:
    """A figure as a page shows it; nothing where it was not measured."""
    return FORMATS[name](figures[name]) if name in figures else ""


def others(found: Results) -> Iterable[str]:
    """All libraries on all data, best first. The split of als.py is the same."""
    columns = {"correct": "correct", "auc": "AUC", "log_loss": "log loss", "seconds": "seconds"}
    sets: dict[str, Results] = {}
    for data, methods in found["peers"].items():
        als = found["als"].get(data, {})
        sets[data] = methods | ({"MLlib ALS": als["ALS"]} if "ALS" in als else {})
    lines = [figures for methods in sets.values() for figures in methods.values()]
    columns = {
        name: told for name, told in columns.items() if any(name in figures for figures in lines)
    }
    yield f"| data | | {' | '.join(columns.values())} |"
    yield "| --- |" + " --- |" * (len(columns) + 1)
    for data, methods in sets.items():
        label = NAMES[data]
        for method, figures in sorted(methods.items(), key=lambda line: -line[1]["correct"]):
            yield (
                f"| {label} | {method} | "
                + " | ".join(shown(figures, name) for name in columns)
                + " |"
            )
            label = ""


def precisions(found: Results) -> Iterable[str]:
    """What precision.py measured, medians over the splits."""
    yield (
        "| data | certified | positives found | at least, certified | fresh positives found | "
        "precision there |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for data, requests in found["precision"].items():
        label = NAMES[data]
        for request, figures in requests.items():
            columns = " | ".join(
                shown(figures, name) for name in ("found", "certified", "fresh", "precision")
            )
            yield (
                f"| {label} | {request.lstrip('0')} | "
                f"{columns if figures['found'] else 'not met | | | '} |"
            )
            label = ""


def coverage(found: Results) -> Iterable[str]:
    """In how many repeats a certified precision, or a limit of the share that is found, is
    violated.
    """
    sets = ("one request", "two requests", "both classes", "groups", "peeking", "observed")
    faults = "fault: own test of each threshold | fault: no test"
    yield f"| world, repeats | met | {' | '.join(sets[:4])} | {faults} |"
    yield "| --- | --- |" + " --- |" * len(sets)
    for world, tried in found["coverage"].items():
        one = tried["one request"]
        violated = " | ".join(percent(tried[name]["violated"]) for name in sets)
        yield f"| {world}, {one.get('repeats', 1000):,} | {percent(one['met'])} | {violated} |"


def positions(found: Results) -> Iterable[str]:
    """How often intervals of positions contain the truth: with the spreads of the fit, and with
    their own.
    """
    columns = ("factors", "kappa", "before", "covered", "ratio", "draws")
    yield (
        "| persons × questions, asked | dimensions | factors | κ | with the fit's std | "
        "covered | error/std | draws |"
    )
    yield "| --- | --- |" + " --- |" * len(columns)
    yield from lines_of(found["positions"], columns)


def spread(found: Results) -> Iterable[str]:
    """How often score ± 1.96·std contains the true score, with the spreads of the fit and with
    those of positions.
    """
    yield "| K | κ | score ± 1.96·std | with the logistic's own curvature | error/std | then |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from lines_of(found["spread"], ("before", "covered", "ratio_before", "ratio"))


def questions(found: Results) -> Iterable[str]:
    """Log loss on other answers of users who were kept out of the fit, after so many answers."""
    columns = [f"after_{number}" for number in AFTER]
    yield f"| data | questions | {' | '.join(map(str, AFTER))} |"
    yield "| --- | --- |" + " --- |" * len(columns)
    yield from lines_of(found["questions"], columns)


def lines_of(found: Results, columns: Iterable[str]) -> Iterable[str]:
    for data, methods in found.items():
        label = data
        for method, figures in methods.items():
            yield (
                f"| {label} | {method} | "
                + " | ".join(shown(figures, name) for name in columns)
                + " |"
            )
            label = ""


def selection(found: Results) -> Iterable[str]:
    """What the choice of the settings takes and finds, beside given ranks."""
    columns = ("passes", "weighted", "rank", "weight", "log_loss", "auc", "correct", "seconds")
    yield "| data | rank | passes | weighted | factors | κ | log loss | AUC | correct | seconds |"
    yield "| --- |" + " --- |" * (len(columns) + 1)
    for data, ranks in found["selection"].items():
        label = NAMES[data]
        for rank, figures in ranks.items():
            yield (
                f"| {label} | {rank} | "
                + " | ".join(shown(figures, name) for name in columns)
                + " |"
            )
            label = ""


def accuracies(found: Results) -> Iterable[str]:
    """What each choice of the settings contributes, by accuracy.py."""
    yield "| data (held out) | model | correct | AUC | log loss | κ | rank |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for data, models in found["accuracy"].items():
        for model, of in models.items():
            held_out = f"{of['held_out']:,}" if of["held_out"] >= 1 else f"{of['held_out']:.0%}"
            label = (
                f"{NAMES[data]} ({held_out}; {of['splits']} splits)"
                if model == next(iter(models))
                else ""
            )
            figures = (
                f"{share(of['correct'])} ± {share(of['sd'])} | {shown(of, 'auc')} | "
                f"{shown(of, 'log_loss')}"
            )
            yield f"| {label} | {model} | {figures} | {of['weights']} | {of['ranks']} |"


def lists(found: Results) -> Iterable[str]:
    """Figures of lists of ten on MovieLens-1M, by ranking.py."""
    methods = found["ranking"]["ml-1m"]
    names = [name for name in methods["popularity"] if f"{name} sd" in methods["popularity"]]
    yield f"| | {' | '.join(names)} |"
    yield "| --- |" + " --- |" * len(names)
    for method, of in methods.items():
        yield (
            f"| {method} | "
            + " | ".join(f"{share(of[name])} ± {share(of[f'{name} sd'])}" for name in names)
            + " |"
        )


def newcomers(found: Results) -> Iterable[str]:
    """New users and items by the number of ratings that are folded in, by newcomers.py."""
    numbers = (0, 1, 3, 10)
    yield "| new | side features | no rating | 1 | 3 | 10 |"
    yield "| --- |" + " --- |" * (1 + len(numbers))
    for data, kinds in found["newcomers"].items():
        for features, of in kinds.items():
            parts = (
                [of[f"{n} {figure}"] for figure in ("error", "log loss", "AUC")] for n in numbers
            )
            cells = (
                " / ".join(f"{value:.3f}".removeprefix("0") for value in part) for part in parts
            )
            label = data if features == next(iter(kinds)) else ""
            yield (
                f"| {label} | {'yes' if features == 'side features' else 'no'} | "
                f"{' | '.join(cells)} |"
            )


TABLES: dict[str, Callable[[Results], Iterable[str]]] = {
    "others": others,
    "precisions": precisions,
    "coverage": coverage,
    "positions": positions,
    "spread": spread,
    "questions": questions,
    "selection": selection,
    "accuracies": accuracies,
    "lists": lists,
    "newcomers": newcomers,
}


def rendered(text: str, found: Results) -> str:
    """The page with the figures of ``found`` in the place of those that it has."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("table:"):
            inside = "\n\n" + "\n".join(TABLES[name.removeprefix("table:")](found)) + "\n\n"
        else:
            script, data, method, figure = name.split(".")
            inside = shown({figure: found[script][data][method][figure]}, figure)
        return f"<!--{name}-->{inside}<!---->"

    return MARKED.sub(replaced, text)


def main() -> None:
    found = results()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := rendered(text, found)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
