"""jobs/predict.py: predictions for pairs, or the best items of every user."""

from __future__ import annotations

from pyspark.sql import SparkSession

from onebit_spark.cli.job_tables import (
    Target,
    check_id_types,
    check_pairs,
    id_types,
    read_features,
    read_table,
    refuse_outputs,
    write_predictions,
    write_recommendations,
)
from onebit_spark.cli.progress import Clock
from onebit_spark.cli.requests import PredictRequest
from onebit_spark.cli.summaries import print_summary
from onebit_spark.model import OneBitCompletionModel


def run(spark: SparkSession, request: PredictRequest) -> None:
    refuse_outputs(spark, request)
    clock, target = Clock(), Target.of(request)
    asked = "pairs" if request.pairs else "exclude_seen" if request.exclude_seen else None
    pairs, n = None, 0
    with clock("reading"):
        model = OneBitCompletionModel.load(request.model)
        types = id_types(model)
        for who, features in read_features(spark, request, model.getUserCol(), model.getItemCol()).items():
            model = model.foldInFeatures(features, who)
        if asked:
            pairs = read_table(spark, request, asked, tuple(types))
            check_id_types(pairs, request, asked, types)
            n = check_pairs(pairs, tuple(types))
    with clock("predicting"):
        if request.top is None:
            assert pairs is not None
            write_predictions(spark, model, pairs, n, target)
            done = f"Predicted {n:,} pairs."
        else:
            write_recommendations(spark, model, request.top, pairs, target)
            done = f"Recommended {request.top} items to each of {model.info.n_users:,} users"
            done += f", none of the {n:,} pairs of --exclude-seen." if pairs is not None else "."
    print_summary([done], clock, request.quiet, target.places)
