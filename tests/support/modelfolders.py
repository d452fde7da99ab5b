"""Model folders written without Spark, and what is in them."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark import FitConfig, fit_table
from onebit_spark.core.setup import kappa_of
from onebit_spark.model_info import ModelInfo, factor_table, plain_lists, scale_fields
from onebit_spark.simulate import simulate


def save_small_model(path, max_error=None):
    """A model of 14 users, whose ids are text, and 10 items, in a folder.

    With ``max_error``, it has a selective certificate of this request, by a quarter of the ratings.
    """
    drawn = simulate("B2", rank=2, shape=(14, 10), fraction=0.6, seed=4)
    users = [f"u{row}" for row in drawn.rows]
    ratings = pa.table({"user": users, "item": drawn.cols, "label": drawn.labels})
    kept = ratings[: 0 if max_error is None else len(ratings) // 4]
    model = fit_table(ratings[len(kept) :], FitConfig(rank=2, max_iter=5, tol=0))
    if max_error is not None:
        model = model.with_certificates(model.certify(kept, max_error=max_error))
    model.save(path)
    return path


def write_folder(path, info, users, items, certificate=None, params=None):
    """What ``OneBitCompletionModel.save`` writes.

    ``users`` and ``items`` are pairs of ids and posterior.
    """
    for name, (ids, posterior) in (("users", users), ("items", items)):
        (path / name).mkdir(parents=True)
        half = len(ids) // 2
        table = plain_lists(factor_table(ids, posterior))
        for part, lines in enumerate((table.slice(0, half), table.slice(half))):
            pq.write_table(lines, path / name / f"part-{part:05}.parquet")
    (path / "metadata").mkdir()
    content = {
        "class": "onebit_spark.spark.model.OneBitCompletionModel",
        "uid": "m",
        "paramMap": params or {},
    }
    (path / "metadata" / "part-00000").write_text(
        json.dumps({**content, "defaultParamMap": {}}) + "\n"
    )
    (path / "metadata" / "_SUCCESS").touch()
    if certificate is not None:
        (path / "certificate.json").write_text(json.dumps(certificate))
    (path / "metadata.json").write_text(info.to_json())
    return path


def text_ids(prefix, n):
    """u00, u01, …"""
    return pa.array([f"{prefix}{i:02}" for i in range(n)])


def nearest_by_inner_product(queries, points, n):
    """Positions of the n points with the largest inner product, by a tree for Euclidean distances.

    One more coordinate √(M² − |x|²) gives all points the length M. Then |q − x|² = |q|² + M² − 2
    q·x.
    """
    from scipy.spatial import cKDTree

    length = np.linalg.norm(points, axis=1)
    lifted = np.column_stack([points, np.sqrt(np.maximum(length.max() ** 2 - length**2, 0.0))])
    return cKDTree(lifted).query(np.column_stack([queries, np.zeros(len(queries))]), n)[1]


def info_of(fit, id_types):
    """As if the fit had been made by Spark from 400 ratings of 28 users on 18 items."""
    return ModelInfo(
        parameters={**dataclasses.asdict(fit.config), "likelihood_weight": kappa_of(fit.config)},
        n_ratings=400,
        n_users=28,
        n_items=18,
        objective_history=fit.objective_history,
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=fit.effective_rank,
        **scale_fields(fit.scales),
        label_coding="signed",
        threshold=None,
        majority=fit.info.majority,
        columns={"user": "user", "item": "item", "label": "label"},
        id_types=id_types,
        seconds={"fit": 0.5},
        repeats={"repeated_cells": 0, "repeated": 0, "conflicting": 0},
    )


def model_of(spark, info, users, items):
    """A model on Spark, from factor tables in this process."""
    from onebit_spark.engines.spark.engine import factor_frame, factor_schema
    from onebit_spark.spark.model import OneBitCompletionModel

    tables = {"user": users, "item": items}
    schemas = {who: factor_schema(info, who, table.column_names) for who, table in tables.items()}
    return OneBitCompletionModel(
        info, *(factor_frame(spark, tables[who], schemas[who]) for who in tables)
    )
