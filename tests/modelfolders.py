"""Model folders written without Spark, and those that earlier versions wrote."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.core.model_info import ModelInfo, factor_table, plain_lists

FOLDERS = Path(__file__).parent / "spark" / "folders"
VERSIONS = ("logistic-1", "logistic-2", "logistic-3", "logistic-4")  # with NAME-predictions beside them


def predictions_of(name):
    """What the version that wrote a folder predicted, for pairs of which some ids are unknown."""
    return pq.read_table(FOLDERS / f"{name}-predictions")


def write_folder(path, info, users, items, certificate=None, params=None):
    """What ``OneBitCompletionModel.save`` writes. ``users`` and ``items`` are pairs of ids and posterior."""
    for name, (ids, posterior) in (("users", users), ("items", items)):
        (path / name).mkdir(parents=True)
        half = len(ids) // 2
        table = plain_lists(factor_table(ids, posterior))
        for part, lines in enumerate((table.slice(0, half), table.slice(half))):
            pq.write_table(lines, path / name / f"part-{part:05}.parquet")
    (path / "metadata").mkdir()
    content = {"class": "onebit_spark.model.OneBitCompletionModel", "uid": "m", "paramMap": params or {}}
    (path / "metadata" / "part-00000").write_text(json.dumps({**content, "defaultParamMap": {}}) + "\n")
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

    One more coordinate √(M² − |x|²) gives all points the length M. Then |q − x|² = |q|² + M² − 2 q·x.
    """
    from scipy.spatial import cKDTree

    length = np.linalg.norm(points, axis=1)
    lifted = np.column_stack([points, np.sqrt(np.maximum(length.max() ** 2 - length**2, 0.0))])
    return cKDTree(lifted).query(np.column_stack([queries, np.zeros(len(queries))]), n)[1]


def info_of(fit, id_types):
    """As if the fit had been made by Spark from 400 ratings of 28 users on 18 items."""
    scales = fit.scales
    return ModelInfo(
        parameters={**dataclasses.asdict(fit.config), "likelihood_weight": fit.config.kappa},
        n_ratings=400,
        n_users=28,
        n_items=18,
        objective_history=fit.objective_history,
        iterations=len(fit.history),
        converged=fit.converged,
        reason=fit.reason,
        effective_rank=fit.effective_rank,
        inverse_gamma=fit.inverse_gamma.tolist(),
        intercept_prior={
            "mean": scales.mean,
            "mean_variance": scales.mean_variance,
            "user_inverse_gamma": scales.row_intercept,
            "item_inverse_gamma": scales.col_intercept,
        }
        if fit.config.intercepts
        else None,
        label_coding="signed",
        threshold=None,
        majority=fit.info.majority,
        columns={"user": "user", "item": "item", "label": "label"},
        id_types=id_types,
        seconds={"fit": 0.5},
        scale_moments=scales.moments.as_dict(),
    )


def model_of(spark, info, users, items):
    """A model on Spark, from factor tables in this process."""
    from onebit_spark.engines.spark_engine import factor_frame, factor_schema
    from onebit_spark.model import OneBitCompletionModel

    tables = {"user": users, "item": items}
    schemas = {who: factor_schema(info, who, table.column_names) for who, table in tables.items()}
    return OneBitCompletionModel(info, *(factor_frame(spark, tables[who], schemas[who]) for who in tables))
