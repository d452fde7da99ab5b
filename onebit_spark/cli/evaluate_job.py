"""jobs/evaluate.py: the figures of a model on ratings, and certificates."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from onebit_spark.cli.job_tables import check_id_types, id_types, read_table, refuse_outputs
from onebit_spark.cli.progress import Clock
from onebit_spark.cli.requests import EvaluateRequest
from onebit_spark.cli.summaries import evaluation_summary, print_summary
from onebit_spark.ml.certification import CertificateRequest, certify, checked_ratings
from onebit_spark.ml.evaluation import measure
from onebit_spark.model import OneBitCompletionModel
from onebit_spark.platform.files import Location


def run(spark: SparkSession, request: EvaluateRequest) -> None:
    refuse_outputs(spark, request)
    clock = Clock()
    wanted = CertificateRequest(request.terms(), request.max_error, request.certify_by)
    with clock("reading"):
        model = OneBitCompletionModel.load(request.model)
        by = [request.certify_by] if request.certify_by is not None else []
        columns = model.info.columns
        weight = [columns["weight"]] if "weight" in columns else []
        needed = tuple(dict.fromkeys((columns["user"], columns["item"], columns["label"], *by)))
        ratings = read_table(spark, request, "ratings", needed, weight)
        check_id_types(ratings, request, "ratings", id_types(model))
        wanted.check(model, ratings)
        checked = checked_ratings(model, ratings, request.threshold)
    with clock("evaluating"):
        if request.certify:
            figures, certificates = certify(model, checked, wanted)
            figures["certificate"] = certificates[0].as_dict()
            figures["certificates"] = [item.as_dict() for item in certificates]
        else:
            figures, _ = measure(model, checked.ratings, checked.columns.threshold, checked.tally)
    if request.output:
        Location(spark, request.output).write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
    print_summary(evaluation_summary(figures), clock, request.quiet, {"metrics": request.output})
