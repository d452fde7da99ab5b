"""What a fit and an evaluation print: sentences about facts that a model and its figures hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onebit_spark.certify.certificates import PRECISION, SELECTIVE, SKEWED, headlines
from onebit_spark.core.model_selection import chose_rank, sentences, trial_table
from onebit_spark.errors import counted
from onebit_spark.model_info import ModelInfo
from onebit_spark.records import Fields, Record
from onebit_spark.report.page import rare_class

MOST_STATEMENTS = 40  # certificates of groups that are printed


def fit_summary(info: ModelInfo, certificate: Record) -> Iterator[str]:
    share = info.n_positive / info.n_ratings
    (users, items) = info.rated
    who = f"{counted(users, 'user')} on {counted(items, 'item')}"
    yield f"Fitted {counted(info.n_ratings, 'rating')} of {who}, {share:.1%} positive."
    for side, features in (info.side_features or {}).items():
        newcomers = counted(features["newcomers"], side)
        yield (
            f"Side features of the {side}s: {len(features['coding']):,}. They predict "
            f"{newcomers} without ratings."
        )
    if info.repeats["repeated"]:
        cells = counted(info.repeats["repeated_cells"], "cell")
        more = counted(info.repeats["repeated"], "rating")
        yield (
            f"Rated more than once: {cells}, {more} beyond the first; every rating counts. With "
            "both labels: "
            f"{info.repeats['conflicting']:,}."
        )
    if info.total_weight is not None:
        yield (
            f"Weighted by the column {info.columns['weight']!r}: the weights sum to "
            f"{info.total_weight:,.6g}. "
            "Certificates count every rating once; theorem1 does not hold with weights and is "
            "left out."
        )
    last = f"{counted(info.iterations, 'iteration')}: {info.reason}"
    if info.converged:
        yield f"Converged after {last}."
    elif info.parameters["tol"] == 0:
        yield f"Stopped after {last}, as requested by tol = 0."
    else:
        yield (
            f"Not converged after {last}. The predictions can be used; a larger --max-iter "
            "may improve them."
        )
    rank = info.parameters["rank"]
    if info.effective_rank < rank:
        advice = f"{rank - info.effective_rank} not needed"
    elif not chose_rank(info.choice):
        advice = "a larger --rank may predict better; --rank auto tries it"
    elif rank < info.config.max_rank:
        advice = "more factors did not lower the loss of the held-back tenth"
    else:
        advice = "--max-rank allows no more"
    yield f"Effective rank {info.effective_rank} of {rank}: {advice}."
    if info.choice:
        yield from sentences(info.choice)
        yield from (f"    {line}" for line in trial_table(info.choice))
    seen = info.diagnostics or {}
    if min(share, 1 - share) < SKEWED and "average_precision" in seen:
        positives, negatives = (sum(seen["calls"][name]) for name in ("positive", "negative"))
        figure, meaning = rare_class(seen, positives / (positives + negatives))
        yield f"On {seen['source']}: {figure} {meaning}."
    certified = headlines(certificate)
    for item in certified:
        yield f"Certificate ({item['name']}): {item['statement']}"
    if not certified:
        used = ["implicit features"] if info.config.implicit_features else []
        used += [f"side features of the {who}s" for who in info.side_features or ()]
        yield (
            f"No certificate, because the prior depends on {' and '.join(used)}: --holdout 0.1 "
            "keeps some ratings out "
            "of the fit and certifies the model on them."
        )
    further = (item for item in certificate["certificates"] if item not in certified)
    yield from further_statements(further, "in the model's certificate.json")


def further_statements(certificates: Iterable[Record], where: str) -> Iterator[str]:
    """The first of the certificates beside the headline; ``where`` says where the others are."""
    further = [
        item for item in certificates if item["name"] in (SELECTIVE, PRECISION) or item.get("group")
    ]
    for item in further[:MOST_STATEMENTS]:
        yield f"Certificate ({item['name']}): {item['statement']}"
    if len(further) > MOST_STATEMENTS:
        yield f"… and {len(further) - MOST_STATEMENTS} more certificates of groups, {where}."


def evaluation_summary(figures: Fields, more: str) -> Iterator[str]:
    """``more`` says where all certificates are, if not all are printed."""
    if figures.get("warning"):
        yield f"Warning: {figures['warning']}."
    yield f"{counted(figures['n'], 'rating')}, {figures['n_positive'] / figures['n']:.1%} positive"
    for side, words in (("user", "of a user"), ("item", "on an item")):
        if figures[f"n_unknown_{side}"]:
            yield (
                f"  {figures[f'n_unknown_{side}']:,} of them {words} that the model has never seen"
            )
    low = figures["error_low"]
    high = figures["error_high"]
    yield f"error      {figures['error']:.4f}   95% interval {low:.4f} to {high:.4f}"
    yield (
        f"  (always predicting the majority of the training data: {figures['majority_error']:.4f})"
    )
    if figures["auc"] is None:
        yield "auc        none: only one class is present"
    else:
        off = (
            f"within {figures['auc_error']:.0e}, from a histogram"
            if figures["auc_error"]
            else "exact"
        )
        yield f"auc        {figures['auc']:.4f}   {off}"
    figure, meaning = rare_class(figures, figures["n_positive"] / figures["n"])
    yield f"precision  {figure}   {meaning}"
    for name in ("log_loss", "brier", "hinge_loss"):
        yield f"{name:<10} {figures[name]:.4f}"
    yield (
        f"calibration error {figures['calibration_error']:.4f}: mean distance of "
        "probabilities from frequencies"
    )
    if "ranking" in figures:
        yield from ranking_summary(figures["ranking"])
    if "certificate" in figures:
        yield figures["certificate"]["statement"]
        yield from further_statements(figures["certificates"], more)


def ranking_summary(figures: Fields) -> Iterator[str]:
    of = counted(figures["n_users"], "user")
    yield f"lists of {counted(figures['n'], 'item')}, over {of} with positive ratings"
    if figures["n_unknown_user"]:
        yield (
            f"  {counted(figures['n_unknown_user'], 'user')} that the model has never seen left out"
        )
    for name in ("model", "popularity"):
        if name in figures:
            told = ", ".join(f"{figure} {value:.4f}" for figure, value in figures[name].items())
            yield f"{name:<10} {told}"
    if "popularity" not in figures:
        yield "  the lists may have fitted items: give the fitted ratings as --exclude-seen"
