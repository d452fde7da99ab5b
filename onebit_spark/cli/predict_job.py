"""predict: predictions for pairs, or the best items of every user."""

from __future__ import annotations

from onebit_spark.cli.checks import Target, check_id_types
from onebit_spark.cli.progress import Clock
from onebit_spark.cli.requests import PredictRequest
from onebit_spark.cli.runtime import Runtime
from onebit_spark.cli.summaries import print_summary


def run(runtime: Runtime, request: PredictRequest) -> None:
    runtime.refuse(request)
    clock, target = Clock(), Target.of(request)
    asked = "pairs" if request.pairs else "exclude_seen" if request.exclude_seen else None
    pairs, n = None, 0
    with clock("reading"):
        model = runtime.load(request.model)
        user, item = model.info.columns["user"], model.info.columns["item"]
        for who, features in runtime.features(request, {"user": user, "item": item}).items():
            model = runtime.with_featured_ids(model, features, who)
        if asked:
            pairs = runtime.table(request, asked, (user, item))
            expected = {user: model.info.id_types["user"], item: model.info.id_types["item"]}
            check_id_types(runtime.types(pairs, (user, item)), expected, asked, runtime.is_text(request, asked))
            n = runtime.count_pairs(pairs, (user, item))
    with clock("predicting"):
        if request.top is None:
            runtime.predict(model, pairs, n, target)
            done = f"Predicted {n:,} pairs."
        else:
            runtime.recommend(model, request.top, pairs, target)
            done = f"Recommended {request.top} items to each of {model.info.n_users:,} users"
            done += f", none of the {n:,} pairs of --exclude-seen." if pairs is not None else "."
    print_summary([done], clock, request.quiet, target.places)
