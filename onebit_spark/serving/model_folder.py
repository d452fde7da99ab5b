"""The model folder, read without Spark. ``ml.persistence`` writes it, and says what is in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.certificate.certificates import document
from onebit_spark.core.factor_tables import factor_columns, prior_row
from onebit_spark.core.losses import SIDES
from onebit_spark.core.model_info import METADATA, ModelInfo
from onebit_spark.errors import RequestError
from onebit_spark.serving.id_types import arrow_type
from onebit_spark.serving.local_folder import local_path
from onebit_spark.serving.served_model import ServedModel
from onebit_spark.serving.side import ResidentSide

CERTIFICATE = "certificate.json"
ESTIMATOR = "onebit_spark.estimator.OneBitCompletion"


def load(path: str | os.PathLike[str]) -> ServedModel:
    """The model of a folder on this machine, without Spark.

    Parameters
    ----------
    path : str or path
        What ``jobs/fit.py`` or ``OneBitCompletionModel.save`` wrote, in this or an earlier version.

    Returns
    -------
    ServedModel
        The whole model, in memory. It does not read the folder again.

    Raises
    ------
    RequestError
        There is no model, or it is damaged, newer than this package, or on another machine (hdfs://, s3://).
    """
    folder = local_path(path)
    if not folder.is_dir():
        raise RequestError(f"there is no model at {path}: no such folder")
    if not (folder / METADATA).is_file():
        if _saved_class(folder) == ESTIMATOR:
            raise RequestError(f"{path} holds an estimator, not a fitted model: fit it, and save the model")
        raise RequestError(f"{path} is not a model (or half-written): it has no {METADATA}")
    try:
        return _read(folder)
    except (RequestError, OSError) as error:
        raise RequestError(f"cannot load {path}: {error}") from None


def certificate_of(text: str | None) -> dict[str, Any]:
    """The content of ``certificate.json``, from its text. None: there is no such file."""
    if text is None:
        return document([])
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RequestError(f"damaged model folder: {CERTIFICATE} is not JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("certificates"), list):
        raise RequestError(f"damaged model folder: {CERTIFICATE} holds no certificates")
    return content


def _read(folder: Path) -> ServedModel:
    info = ModelInfo.from_json(_text(folder / METADATA))
    certificate = folder / CERTIFICATE
    users, items = (_side(folder, info, side) for side in ("user", "item"))
    params = _params(folder)
    return ServedModel(
        info,
        users,
        items,
        certificate_of(_text(certificate) if certificate.is_file() else None),
        cold_start=params.get("coldStartStrategy", "prior"),
        max_error=params.get("maxError"),
    )


def _side(folder: Path, info: ModelInfo, side: str) -> ResidentSide:
    name, config = f"{side}s", info.config
    if not (folder / name).is_dir():
        raise RequestError(f"damaged model folder: it has no {name}/")
    form = info.kind, config.intercepts, config.implicit_features
    columns = factor_columns(*form)
    try:
        table = pq.read_table(folder / name, partitioning=None)
        if absent := [column for column in ("id", *columns) if column not in table.column_names]:
            raise RequestError(f"damaged model folder: {name}/ lacks {', '.join(absent)}")
        table = table.set_column(table.column_names.index("id"), "id", _ids(table["id"], info.id_types[side]))
        prior = prior_row(info.scales, SIDES[0] if side == "user" else SIDES[1], *form)
        resident = ResidentSide.of(table, prior, columns)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"damaged model folder: {name}/: {str(error).splitlines()[0]}") from None
    expected = info.n_users if side == "user" else info.n_items
    if len(resident.ids) != expected:
        raise RequestError(f"damaged model folder: {name}/ has {len(resident.ids):,} ids, and {expected:,} were saved")
    return resident


def _ids(ids: pa.ChunkedArray, spark_type: str) -> pa.ChunkedArray:
    """The ids in the type that Spark has for them. Spark's own files hold instants as UTC without saying so."""
    expected = arrow_type(spark_type)
    if pa.types.is_timestamp(expected) and pa.types.is_timestamp(ids.type):
        return ids.cast(pa.timestamp("us", ids.type.tz)).cast(expected)
    if ids.type != expected:
        raise RequestError(f"damaged model folder: ids of type {ids.type}, where metadata.json says {spark_type}")
    return ids


def _params(folder: Path) -> dict[str, Any]:
    """The Params in pyspark.ml's own metadata, as they were set or by default."""
    try:
        content = _ml_metadata(folder)
        return {**content["defaultParamMap"], **content["paramMap"]}
    except (LookupError, TypeError, OSError, ValueError) as error:
        raise RequestError(f"damaged model folder: metadata/: {type(error).__name__} {error}") from None


def _saved_class(folder: Path) -> str | None:
    """The Python class in pyspark.ml's own metadata, or None."""
    try:
        return str(_ml_metadata(folder)["class"])
    except (LookupError, TypeError, OSError, ValueError):
        return None


def _ml_metadata(folder: Path) -> dict[str, Any]:
    """pyspark.ml writes one line of JSON, and with it empty files for other partitions."""
    parts = (_text(part) for part in sorted((folder / "metadata").glob("part-*")))
    lines = [line for text in parts for line in text.splitlines() if line.strip()]
    content = json.loads(lines[0])
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
