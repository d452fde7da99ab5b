"""The jobs predict, positions and evaluate, on any runtime, and what they print at their end."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from onebit_spark.certify.requests import CertificateRequest
from onebit_spark.cli import fit_job
from onebit_spark.cli.fit_job import Runtime, print_summary
from onebit_spark.cli.progress import Clock
from onebit_spark.cli.requests import EvaluateRequest, PositionsRequest, PredictRequest, Target
from onebit_spark.cli.sentences import evaluation_summary
from onebit_spark.data.locations import Location
from onebit_spark.data.ratings import NoRatings
from onebit_spark.errors import RequestError, counted
from onebit_spark.predict.ranking import NOTHING_SEEN
from onebit_spark.predict.sides import arrow_type, asked_ids
from onebit_spark.report.map import COLOURS, page
from onebit_spark.settings import Who


def predict(runtime: Runtime, request: PredictRequest) -> None:
    fit_job.refuse_outputs(runtime.session, request)
    clock = Clock()
    target = Target.of(request)
    asked = "pairs" if request.pairs else "exclude_seen" if request.exclude_seen else None
    pairs = None
    n = 0
    with clock("reading"):
        model = runtime.load(request.model)
        user = model.info.columns["user"]
        item = model.info.columns["item"]
        for who, features in fit_job.read_features(
            runtime, request, {"user": user, "item": item}
        ).items():
            model = runtime.with_featured_ids(model, features, who)
        if asked:
            pairs = runtime.table(request, asked, (user, item))
            expected = {user: model.info.id_types["user"], item: model.info.id_types["item"]}
            fit_job.check_id_types(runtime, request, asked, pairs, expected)
            n = runtime.count_pairs(pairs, (user, item))
    with clock("predicting"):
        if request.top is None:
            runtime.predict(model, pairs, n, target)
            done = f"Predicted {counted(n, 'pair')}."
        else:
            runtime.recommend(model, request.top, pairs, target)
            done = (
                f"Recommended {counted(request.top, 'item')} to each of "
                f"{counted(model.info.n_users, 'user')}"
            )
            done += (
                f", none of the {counted(n, 'pair')} of --exclude-seen."
                if pairs is not None
                else "."
            )
    print_summary([done], clock, request.quiet, target.places)


def positions(runtime: Runtime, request: PositionsRequest) -> None:
    fit_job.refuse_outputs(runtime.session, request)
    clock = Clock()
    target = Target(request.output, None, request.overwrite, "positions")
    who: Who = "user" if request.who == "user" else "item"
    with clock("reading"):
        model = runtime.load(request.model)
        ids = asked_ids(list(request.signs), pa.string(), "the anchors")
        try:
            ids = ids.cast(arrow_type(model.info.id_types["user"]))
        except pa.ArrowInvalid as error:
            raise RequestError(f"--anchor: {error}") from None
        anchors = dict(zip(ids.to_pylist(), map(int, request.signs.values()), strict=True))
        features = fit_job.read_features(runtime, request, {"user": model.info.columns["user"]})
    with clock("positions"):
        drawn = model.draw(anchors) if request.map else {}
        if features:
            drawn = fit_job.with_colours(runtime, drawn, features, model.info.columns["user"])
            if not drawn["groups"]:
                raise RequestError(
                    f"--user-features {request.user_features} cannot colour the map: no column "
                    f"has from 2 to {COLOURS} "
                    "different values for the users on it"
                )
        runtime.positions(model, who, request.dimensions, anchors, target)
        if request.map:
            Location(runtime.session, request.map).write_text(page(drawn))
    done = [f"Positions of {counted(model.info.count(who), who)}."]
    if (axes := model.info.position_axes) is not None and axes.dimensions:
        *first, last = (f"{share:.0%}" for share in axes.shares[: axes.shown(request.dimensions)])
        shares = (
            f"dimensions explain {', '.join(first)} and {last}"
            if first
            else f"dimension explains {last}"
        )
        done += [f"The {shares} of the variance of the scores."]
    print_summary(done, clock, request.quiet, {**target.places, "map": request.map})


def evaluate(runtime: Runtime, request: EvaluateRequest) -> None:
    fit_job.refuse_outputs(runtime.session, request)
    clock = Clock()
    wanted = CertificateRequest(
        request.terms, request.max_error, request.certify_by, request.min_precision
    )
    with clock("reading"):
        model = runtime.load(request.model)
        ratings = _judged_by(runtime, request, model, "ratings", wanted)
        seen = None
        if request.exclude_seen is not None:
            try:
                seen = _judged_by(
                    runtime, request, model, "exclude_seen", CertificateRequest(request.terms)
                )
            except NoRatings:
                raise RequestError(
                    NOTHING_SEEN.format(f"--exclude-seen {request.exclude_seen}")
                ) from None
    with clock("evaluating"):
        if request.certify:
            figures, certificates = model.certify_on(ratings, wanted)
            figures["certificate"] = certificates[0].as_dict()
            figures["certificates"] = [item.as_dict() for item in certificates]
        else:
            figures = model.evaluate_on(ratings)
        if request.ranking is not None:
            figures["ranking"] = model.rank_on(ratings, request.ranking, seen)
    if request.output:
        text = json.dumps(figures, indent=2, allow_nan=False) + "\n"
        Location(runtime.session, request.output).write_text(text)
    more = (
        "in the file of --output"
        if request.output
        else "which --output metrics.json writes to a file"
    )
    print_summary(
        evaluation_summary(figures, more), clock, request.quiet, {"metrics": request.output}
    )


def _judged_by(
    runtime: Runtime, request: EvaluateRequest, model: Any, name: str, wanted: CertificateRequest
) -> Any:
    columns = model.info.columns
    types = model.info.id_types
    by = [] if wanted.by is None else [wanted.by]
    weight = [columns["weight"]] if "weight" in columns else []
    needed = tuple(dict.fromkeys((columns["user"], columns["item"], columns["label"], *by)))
    table = runtime.table(request, name, needed, weight)
    fit_job.check_id_types(
        runtime, request, name, table, {columns[who]: types[who] for who in ("user", "item")}
    )
    return runtime.judged_by(model, table, request.threshold, wanted)
