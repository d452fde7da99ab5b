"""Model folders, read and written without Spark, and folders of vectors.

``model`` says what is in a model.

Vectors have the score as their inner product, for any nearest-neighbour index (docs/serving.md)::

    user   [L, 1, b]
    item   [R, d, 1]        [L, 1, b]·[R, d, 1] = L·R + d + b

Without intercepts they are L and R. ``OneBitCompletionModel.exportVectors`` writes the same two
tables with Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.certify.requests import Document
from onebit_spark.data.hashes import CellSketch
from onebit_spark.data.locations import (
    ESTIMATOR,
    VECTORS,
    Location,
    OutputKind,
    explained,
    replace_folder,
)
from onebit_spark.errors import RequestError
from onebit_spark.model_info import METADATA, SIDE_OF, ModelInfo, factor_columns, plain_lists
from onebit_spark.predict.sides import ModelSide, arrow_type
from onebit_spark.records import Fields, Record
from onebit_spark.settings import Who

REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path without ``file:``.

    Raises a RequestError if it is on another machine, such as hdfs:// or s3://.
    """
    text = os.fspath(path)
    if REMOTE.match(text):
        raise RequestError(
            f"{text} is not a folder of this machine, and without Spark only such folders can be "
            "used: copy it here, "
            "or use OneBitCompletionModel, which reads and writes wherever Spark does"
        )
    return Path(re.sub(r"^file:(//)?(?=/)", "", text))


@contextlib.contextmanager
def replaced_folder(
    path: str | os.PathLike[str], kind: OutputKind, overwrite: bool = False
) -> Iterator[Path]:
    """Yield a new folder to write.

    At the end it is at ``path``, complete; after an error nothing changed.

    With ``overwrite`` it replaces an output of the same kind, and nothing else.
    """
    with replace_folder(None, local_path(path), kind, overwrite) as uri:
        yield Path(uri.removeprefix("file:"))


def write_page(path: str | os.PathLike[str], text: str, kind: OutputKind, overwrite: bool) -> None:
    """Write a file, and the folders above it.

    With ``overwrite`` it replaces an output of the same kind.
    """
    place = Location(None, local_path(path))
    kind.check_target(place, path, overwrite)
    with explained(f"cannot write {path}"):
        place.write_text(text)


CERTIFICATE = "certificate.json"
MODEL_CLASS = "onebit_spark.spark.model.OneBitCompletionModel"
ML_FORMAT = "4.0.0"  # the version of Spark whose form of metadata/ is written
SEAL = "_SUCCESS"  # an empty file, written last
FITTED = "fitted"  # a folder with the sketch of the fitted cells: ``data.hashes``

# Info, users, items, certificate, Params, and the sketch of the cells that were fitted, if it is
# known
Content = tuple[ModelInfo, ModelSide, ModelSide, Document, Record, CellSketch | None]


def read_model(path: str | os.PathLike[str]) -> Content:
    folder = local_path(path)
    check_model(Location(None, folder), path)
    try:
        info = ModelInfo.from_json(_text(folder / METADATA))
        users, items = (_read_side(folder, info, who) for who in SIDE_OF)
        certificate = certificate_of(Location(None, folder))
        params = _params(folder)
        return info, users, items, certificate, params, _read_sketch(folder, info)
    except (RequestError, OSError) as error:
        raise RequestError(f"cannot load {path}: {error}") from None


def check_model(folder: Location, path: object) -> None:
    if not folder.is_folder():
        raise RequestError(f"there is no model at {path}: no such folder")
    if METADATA not in folder.names():
        if ESTIMATOR.is_own(folder):
            raise RequestError(
                f"{path} holds an estimator, not a fitted model: load it with OneBitCompletion.load"
            )
        raise RequestError(f"{path} is not a model (or half-written): it has no {METADATA}")


def certificate_of(folder: Location) -> Document:
    """The content of ``certificate.json`` in the folder of a model."""
    if CERTIFICATE not in folder.names():
        raise RequestError(f"damaged model folder: it has no {CERTIFICATE}")
    try:
        content = json.loads(folder.text(CERTIFICATE))
    except ValueError as error:
        raise RequestError(f"damaged model folder: {CERTIFICATE} is not JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("certificates"), list):
        raise RequestError(f"damaged model folder: {CERTIFICATE} holds no certificates")
    return content


def _read_side(folder: Path, info: ModelInfo, who: Who) -> ModelSide:
    name = f"{who}s"
    if not (folder / name).is_dir():
        raise RequestError(f"damaged model folder: it has no {name}/")
    try:
        table = pq.read_table(folder / name, partitioning=None)
        columns = "id", *factor_columns(*info.table_form)
        if absent := [column for column in columns if column not in table.column_names]:
            raise RequestError(f"damaged model folder: {name}/ lacks {', '.join(absent)}")
        table = table.set_column(
            table.column_names.index("id"), "id", _ids(table["id"], info.id_types[who])
        )
        side = ModelSide.of(table, info, who)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"damaged model folder: {name}/: {str(error).splitlines()[0]}") from None
    if len(side.ids) != info.count(who):
        raise RequestError(
            f"damaged model folder: {name}/ has {len(side.ids):,} ids, and {info.count(who):,} "
            "were saved"
        )
    return side


def _read_sketch(folder: Path, info: ModelInfo) -> CellSketch | None:
    if info.fitted is None:
        return None
    try:
        return CellSketch.of_table(pq.read_table(folder / FITTED, partitioning=None), **info.fitted)
    except (pa.ArrowException, OSError, LookupError) as error:
        raise RequestError(
            f"damaged model folder: {FITTED}/: {str(error).splitlines()[0]}"
        ) from None


def _ids(ids: pa.ChunkedArray, spark_type: str) -> pa.ChunkedArray:
    """The ids in the type that Spark has for them.

    Spark's own files hold instants as UTC without saying so.
    """
    expected = arrow_type(spark_type)
    if pa.types.is_timestamp(expected) and pa.types.is_timestamp(ids.type):
        return ids.cast(pa.timestamp("us", ids.type.tz)).cast(expected)
    if ids.type != expected:
        raise RequestError(
            f"damaged model folder: ids of type {ids.type}, where metadata.json says {spark_type}"
        )
    return ids


def _params(folder: Path) -> Fields:
    # One line of JSON; all parts but one may be empty
    parts = sorted((folder / "metadata").glob("part-*"))
    try:
        content = json.loads("".join(map(_text, parts)))
        return {**content["defaultParamMap"], **content["paramMap"]}
    except (LookupError, TypeError, OSError, ValueError) as error:
        raise RequestError(
            f"damaged model folder: metadata/: {type(error).__name__} {error}"
        ) from None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def write_into(folder: Path, content: Content, files: Mapping[str, str] | None = None) -> None:
    """Write a model into a folder that exists. ``metadata.json`` is written last."""
    info, users, items, certificate, params, fitted = content
    metadata = {
        "class": MODEL_CLASS,
        "timestamp": round(1000 * time.time()),
        "sparkVersion": ML_FORMAT,
        "uid": f"OneBitCompletionModel_{uuid.uuid4().hex[:12]}",
        "paramMap": {name: value for name, value in params.items() if value is not None},
        "defaultParamMap": {},
    }
    for name, side in (("users", users), ("items", items)):
        _write_table(plain_lists(side.table), folder / name)
    (folder / "metadata").mkdir()
    (folder / "metadata" / "part-00000").write_text(json.dumps(metadata) + "\n", encoding="utf-8")
    (folder / "metadata" / SEAL).touch()
    if fitted is not None:
        _write_table(fitted.table, folder / FITTED)
    texts = {CERTIFICATE: json.dumps(certificate, indent=2, ensure_ascii=False), **(files or {})}
    texts[METADATA] = replace(info, fitted=None if fitted is None else fitted.described).to_json()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_vectors(
    path: str | os.PathLike[str], users: ModelSide, items: ModelSide, overwrite: bool = False
) -> None:
    with replaced_folder(path, VECTORS, overwrite) as folder:
        for name, side in (("users", users), ("items", items)):
            vectors = side.known.mean
            intercept = side.known.intercept
            if intercept is not None:
                ends = [np.ones_like(intercept), intercept]
                vectors = np.column_stack([vectors, *(ends if name == "users" else reversed(ends))])
            numbers = pa.array(np.ascontiguousarray(vectors, np.float32).ravel())
            starts = pa.array(np.arange(len(side.ids) + 1, dtype=np.int32) * vectors.shape[1])
            table = pa.table({"id": side.ids, "vector": pa.ListArray.from_arrays(starts, numbers)})
            _write_table(table, folder / name)
        (folder / SEAL).touch()


def _write_table(table: pa.Table, folder: Path) -> None:
    folder.mkdir()
    pq.write_table(table, folder / "part-00000.parquet")
