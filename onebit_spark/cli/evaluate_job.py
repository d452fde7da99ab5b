"""jobs/evaluate.py: the figures of a model on ratings, and certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from onebit_spark.cli.common import Clock, further_statements, id_types, tell_locations
from onebit_spark.cli.job_tables import check_id_types, read_table, refuse_outputs
from onebit_spark.cli.requests import EvaluateRequest
from onebit_spark.input.defects import check_ratings
from onebit_spark.ml import evaluation
from onebit_spark.ml.freshness import check_fresh
from onebit_spark.ml.scored_ratings import counting
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location


def run_evaluate(spark: SparkSession, request: EvaluateRequest) -> None:
    clock = Clock()
    refuse_outputs(spark, request)
    with clock("reading"):
        model = OneBitCompletionModel.load(request.model)
        user, item, label = (model.info.columns[role] for role in ("user", "item", "label"))
        by = () if request.certify_by is None else (request.certify_by,)
        weight = [name for role, name in model.info.columns.items() if role == "weight"]
        ratings = read_table(spark, request, "ratings", tuple(dict.fromkeys((user, item, label, *by))), weight)
        check_id_types(ratings, request, "ratings", id_types(model))
        boolean = isinstance(ratings.schema[label].dataType, T.BooleanType)
        threshold = request.threshold
        if threshold is None and not boolean:
            threshold = model.info.threshold
        evaluation.check_requests(model, request.max_error, ratings, request.certify_by)
        ratings, columns = counting(model, ratings, threshold)
        tally = check_ratings(ratings, columns)
    with clock("evaluating"):
        freshness = check_fresh(model, ratings, columns, tally) if request.certify else None
        figures, counted = evaluation.measure(model, ratings, threshold, tally, request.certify_by)
        if freshness is not None:
            certificate = evaluation.certify(figures, request.terms(), freshness)
            further = evaluation.further(model, counted, request.terms(), request.max_error, freshness)
            figures["certificate"] = certificate.as_dict()
            figures["certificates"] = [item.as_dict() for item in (certificate, *further)]
    if request.output:
        Location(spark, request.output).write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
    if not request.quiet:
        print("\n".join(_evaluation_summary(figures)) + f"\nTime: {clock}.")
    tell_locations(request, {"metrics": request.output})


def _evaluation_summary(figures: dict[str, Any]) -> Iterator[str]:
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
