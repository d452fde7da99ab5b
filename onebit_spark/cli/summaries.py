"""What the jobs print at their end, in words. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onebit_spark.certificate.certificates import headline_of
from onebit_spark.certificate.held_out import SELECTIVE
from onebit_spark.cli.progress import Clock
from onebit_spark.core.model_info import ModelInfo
from onebit_spark.core.model_selection import chose_rank, sentences

MOST_STATEMENTS = 40


def print_summary(lines: Iterable[str], clock: Clock | None, quiet: bool, places: Mapping[str, str | None]) -> None:
    """Print the summary, the seconds, and where the outputs are. A quiet job prints only the paths."""
    if not quiet:
        print(*lines, *([] if clock is None else [f"Time: {clock}."]), sep="\n")
    for name, path in places.items():
        if path:
            print(path if quiet else f"{name}: {path}", flush=True)


def fit_summary(info: ModelInfo, certificate: Mapping[str, Any]) -> Iterator[str]:
    """What was fitted, how it ended, and what is certified."""
    share, (users, items) = info.n_positive / info.n_ratings, info.rated
    yield f"Fitted {info.n_ratings:,} ratings of {users:,} users on {items:,} items, {share:.1%} of them positive."
    for who, features in (info.side_features or {}).items():
        yield (
            f"Side features of the {who}s: {len(features['coding']):,}. {features['newcomers']:,} {who}s without "
            "ratings are predicted from them."
        )
    if info.repeats["repeated"]:
        yield (
            f"{info.repeats['repeated_cells']:,} cells were rated more than once ({info.repeats['repeated']:,} ratings "
            f"beyond the first), every rating counts; {info.repeats['conflicting']:,} of them with both labels."
        )
    if info.total_weight is not None:
        yield (
            f"Weighted by the column {info.columns['weight']!r}: the weights sum to {info.total_weight:,.6g}. "
            "Certificates count every rating once; theorem1 does not hold with weights and is left out."
        )
    last = f"{info.iterations} iteration{'s' if info.iterations > 1 else ''}: {info.reason}"
    if info.converged:
        yield f"Converged after {last}."
    elif info.parameters["tol"] == 0:
        yield f"Stopped after {last}, as asked with tol = 0."
    else:
        yield f"Not converged after {last}. The predictions can be used; a larger --max-iter may improve them."
    rank = info.parameters["rank"]
    off, full = rank - info.effective_rank, "a larger --rank may or may not predict better"
    chosen = "a tenth of the ratings asked for no more" if rank < info.config.max_rank else "--max-rank allows no more"
    advice = chosen if chose_rank(info.choice) else f"{full}: --rank auto tries"
    yield f"Effective rank {info.effective_rank} of {rank}: {f'{off} not needed' if off else advice}."
    if info.choice:
        yield from sentences(info.choice)
    certified = headline_of(certificate)
    if not certified:
        yield _why_no_certificate(info)
    else:
        yield f"Certificate ({certificate['headline']}): {certified}"
    yield from further_statements(certificate["certificates"])
    for one in certificate["certificates"]:
        if one["name"] == "prior_split":
            yield (
                f"The model has learnt almost only from {one['prior_fraction']:.0%} of the ratings, its prior's: a "
                "fit without a prior split predicts better."
            )


def _why_no_certificate(info: ModelInfo) -> str:
    """Which features the fit used, and which flag certifies the model."""
    used = ["implicit features"] if info.config.implicit_features else []
    used += [f"side features of the {who}s" for who in info.side_features or ()]
    return (
        f"No certificate, because the prior depends on {' and '.join(used)}: --holdout 0.1 keeps some ratings out of "
        "the fit and certifies the model on them."
    )


def evaluation_summary(figures: dict[str, Any]) -> Iterator[str]:
    yield f"{figures['n']:,} ratings, {figures['n_positive'] / figures['n']:.1%} positive"
    for side, words in (("user", "of a user"), ("item", "on an item")):
        if figures[f"n_unknown_{side}"]:
            yield f"  {figures[f'n_unknown_{side}']:,} of them {words} that the model has never seen"
    low, high = figures["error_low"], figures["error_high"]
    yield f"error      {figures['error']:.4f}   95% interval {low:.4f} to {high:.4f}"
    yield f"  (always predicting the majority of the training data: {figures['majority_error']:.4f})"
    if figures["auc"] is None:
        yield "auc        none: only one class is present"
    else:
        off = f"   within {figures['auc_error']:.0e}" if figures["auc_error"] else ""
        yield f"auc        {figures['auc']:.4f}{off}"
    for name in ("log_loss", "brier", "hinge_loss"):
        yield f"{name:<10} {figures[name]:.4f}"
    yield f"calibration error {figures['calibration_error']:.4f}: mean distance of probabilities from frequencies"
    if "certificate" in figures:
        yield figures["certificate"]["statement"]
        yield from further_statements(figures["certificates"])


def further_statements(certificates: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The sentences of selective certificates and of certificates for groups, at most ``MOST_STATEMENTS``."""
    further = [item for item in certificates if item["name"] == SELECTIVE or item.get("group")]
    for item in further[:MOST_STATEMENTS]:
        yield f"Certificate ({item['name']}): {item['statement']}"
    if len(further) > MOST_STATEMENTS:
        yield f"… and {len(further) - MOST_STATEMENTS} more certificates of groups, in the output."
