"""evaluate: the figures of a model on ratings, and certificates."""

from __future__ import annotations

import json

from onebit_spark.cli.checks import check_id_types
from onebit_spark.cli.progress import Clock
from onebit_spark.cli.requests import EvaluateRequest
from onebit_spark.cli.runtime import Runtime
from onebit_spark.cli.summaries import evaluation_summary, print_summary
from onebit_spark.platform.files import Location
from onebit_spark.predictor.certification import CertificateRequest


def run(runtime: Runtime, request: EvaluateRequest) -> None:
    runtime.refuse(request)
    clock = Clock()
    wanted = CertificateRequest(request.terms(), request.max_error, request.certify_by)
    with clock("reading"):
        model = runtime.load(request.model)
        by = [request.certify_by] if request.certify_by is not None else []
        columns, types = model.info.columns, model.info.id_types
        weight = [columns["weight"]] if "weight" in columns else []
        needed = tuple(dict.fromkeys((columns["user"], columns["item"], columns["label"], *by)))
        table = runtime.table(request, "ratings", needed, weight)
        expected = {columns[who]: types[who] for who in ("user", "item")}
        csv = runtime.is_text(request, "ratings")
        check_id_types(runtime.types(table, tuple(expected)), expected, "ratings", csv)
        ratings = runtime.judged_by(model, table, request.threshold, wanted)
    with clock("evaluating"):
        if request.certify:
            figures, certificates = runtime.certify(model, ratings, wanted)
            figures["certificate"] = certificates[0].as_dict()
            figures["certificates"] = [item.as_dict() for item in certificates]
        else:
            figures = runtime.measure(model, ratings)
    if request.output:
        text = json.dumps(figures, indent=2, allow_nan=False) + "\n"
        Location(runtime.session, request.output).write_text(text)
    print_summary(evaluation_summary(figures), clock, request.quiet, {"metrics": request.output})
