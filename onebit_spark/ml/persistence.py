"""The folders of a model, of its vectors and of an estimator: how they are written, read and checked.

MODEL/metadata.json    ModelInfo and format_version; written last
MODEL/metadata/        pyspark.ml's own: class, uid, Params
MODEL/users/           Parquet, one line per id: see ``core.model_info``
MODEL/items/
MODEL/fitted/          Parquet, a sketch of the cells that were fitted: see ``core.hashes``
MODEL/certificate.json upper limits on the error rate: see ``certificates``
MODEL/report.html      if the model was diagnosed: see ``report``

VECTORS/users/         Parquet, ids and vectors: see ``predictor.model_folder``
VECTORS/items/

ESTIMATOR/metadata/      pyspark.ml's own: class, uid, Params; whose side features there are
ESTIMATOR/userFeatures/  Parquet, the side features as they were given
ESTIMATOR/itemFeatures/
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from onebit_spark.core.hashes import CellSketch
from onebit_spark.core.model_info import METADATA, ModelInfo, Who
from onebit_spark.engines.tables import collected_factors
from onebit_spark.errors import RequestError
from onebit_spark.ml.params import set_saved_params
from onebit_spark.platform.files import ESTIMATOR, MODEL, VECTORS, Location, explained, replace_folder
from onebit_spark.platform.sessions import described
from onebit_spark.predictor.model_folder import CERTIFICATE, FITTED, SEAL, certificate_of, check_model
from onebit_spark.report.page import REPORT, page_of

log = logging.getLogger("onebit_spark")

SIDE_FEATURES = "sideFeatures"  # in an estimator's metadata


class ModelWriter(MLWriter):
    """``model.write()``. The folder appears whole or not at all. An old one remains until the new one is complete."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str | os.PathLike[str]) -> None:
        spark = self._model.users.sparkSession
        if Location(spark, path).uri == self._model.source:
            raise RequestError(f"the model was loaded from {path} and still reads its factors there: save it elsewhere")
        with described(spark, "writing"), replace_folder(spark, path, MODEL, self.shouldOverwrite) as folder:
            write_model(self._model, folder)


def write_model(model: Any, folder: str) -> None:
    """Write the model into ``folder``. ``metadata.json`` is written last."""
    spark = model.users.sparkSession
    with ThreadPoolExecutor(1) as beside:  # the report is drawn while Spark writes
        page = beside.submit(page_of, model.info, model.certificate)
        for name, factors in (("users", model.users), ("items", model.items)):
            _write_factors(factors, Location(spark, folder) / name, model.factors.fit_driver(0))
        if model.fitted is not None:
            _write_parquet(model.fitted.table, Location(spark, folder) / FITTED)
        DefaultParamsWriter.saveMetadata(model, folder, spark)
        (Location(spark, folder) / CERTIFICATE).write_text(json.dumps(model.certificate, indent=2, ensure_ascii=False))
        if text := page.result():
            (Location(spark, folder) / REPORT).write_text(text)
    (Location(spark, folder) / METADATA).write_text(model.info.to_json())


def _write_factors(factors: DataFrame, folder: Location, small: bool) -> None:
    """Write Parquet: a small table in this process, which is faster than a Spark job, a large one on the executors."""
    if small:
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):  # ids of a type that only Spark can write
            _write_parquet(collected_factors(factors), folder)
            return
    factors.write.parquet(folder.uri)


def _write_parquet(table: pa.Table, folder: Location) -> None:
    content = io.BytesIO()
    pq.write_table(table, content)
    (folder / "part-00000.parquet").write_bytes(content.getvalue())


def export_vectors(model: Any, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write the vectors of ``predictor.model_folder``: tables ``users`` and ``items``. Nothing is collected."""
    spark = model.users.sparkSession
    if Location(spark, path).uri == model.source:
        raise RequestError(f"the model was loaded from {path} and still reads its factors there: export them elsewhere")
    one, intercept = F.lit(1.0).cast("float"), F.col("intercept")
    ends = {"users": (one, intercept), "items": (intercept, one)}
    with described(spark, "writing"), replace_folder(spark, path, VECTORS, overwrite) as folder:
        for name, factors in (("users", model.users), ("items", model.items)):
            vector = F.concat("mean", F.array(*ends[name])) if model.info.config.intercepts else F.col("mean")
            factors.select("id", vector.alias("vector")).write.parquet((Location(spark, folder) / name).uri)
        (Location(spark, folder) / SEAL).write_text("")


class ModelReader(MLReader[Any]):
    """``OneBitCompletionModel.read()``. A damaged folder raises a RequestError of one line."""

    def __init__(self, model_class: type[Any]) -> None:
        super().__init__()
        self._class = model_class

    def load(self, path: str | os.PathLike[str]) -> Any:
        folder = Location(self.sparkSession, path)
        check_model(folder, path)
        try:
            info = ModelInfo.from_json((folder / METADATA).read_text())
            factors = []
            for part in (self._part(folder, name) for name in ("users", "items")):
                with explained(f"damaged model folder: {part.name}/"):
                    factors.append(_read_parquet(part))
            certificate = certificate_of(folder)
            with explained("damaged model folder"):
                model = self._class(info, *factors, certificate)
            if info.fitted is not None:
                model.readFitted = partial(_read_sketch, self._part(folder, FITTED), **info.fitted)
            self._set_params(model, folder)
        except RequestError as error:
            raise RequestError(f"cannot load {path}: {error}") from None
        model.source = folder.uri
        return model

    def _part(self, folder: Location, name: str) -> Location:
        if not (folder / name).is_folder():
            raise RequestError(f"damaged model folder: it has no {name}/")
        return folder / name

    def _set_params(self, model: Any, folder: Location) -> None:
        try:
            with explained("damaged model folder: metadata/"):
                params = DefaultParamsReader.loadMetadata(folder.uri, self.sparkSession)
            model._resetUid(params["uid"])
            set_saved_params(model, params)
        except (AssertionError, AttributeError, LookupError, TypeError, json.JSONDecodeError) as error:
            raise RequestError(f"damaged model folder: metadata/: {type(error).__name__} {error}") from None


class EstimatorWriter(MLWriter):
    """``OneBitCompletion.write()``. The folder appears whole or not at all. A warning names what is ``unsaved``."""

    def __init__(self, estimator: Any, features: Mapping[Who, DataFrame], unsaved: Sequence[str]) -> None:
        super().__init__()
        self._estimator, self._features, self._unsaved = estimator, features, unsaved

    def save(self, path: str | os.PathLike[str]) -> None:
        spark = self.sparkSession
        if self._features and Location(spark, path).uri == self._estimator.source:
            raise RequestError(
                f"the estimator was loaded from {path} and may still read its side features there: save it elsewhere"
            )
        with replace_folder(spark, path, ESTIMATOR, self.shouldOverwrite) as folder:
            for who, frame in self._features.items():
                with explained(f"cannot save the {who} features"):
                    frame.write.parquet((Location(spark, folder) / f"{who}Features").uri)
            DefaultParamsWriter.saveMetadata(self._estimator, folder, spark, {SIDE_FEATURES: list(self._features)})
        if self._unsaved:
            log.warning("not saved in %s: %s (set again after loading)", path, " and ".join(self._unsaved))


class EstimatorReader(MLReader[Any]):
    """``OneBitCompletion.read()``. If the folder has something else, the error says what it is."""

    def __init__(self, estimator_class: type[Any]) -> None:
        super().__init__()
        self._class = estimator_class

    def load(self, path: str | os.PathLike[str]) -> Any:
        folder = Location(self.sparkSession, path)
        if (folder / METADATA).exists():
            raise RequestError(f"{path} holds a fitted model: load it with OneBitCompletionModel.load")
        if not ESTIMATOR.is_own(folder):
            what = "nothing that pyspark.ml saved"
            if (folder / "metadata").is_folder():
                with explained(f"cannot load {folder.uri}: metadata/"):
                    saved = DefaultParamsReader.loadMetadata(folder.uri, folder.spark)["class"]
                what = f"a {saved.rpartition('.')[2]}"
            raise RequestError(f"cannot load {path}: it holds {what}, not an OneBitCompletion")
        params = DefaultParamsReader.loadMetadata(folder.uri, self.sparkSession)
        estimator = self._class()
        estimator._resetUid(params["uid"])
        set_saved_params(estimator, params)
        for who in params.get(SIDE_FEATURES, ()):  # an older version saved none
            with explained(f"cannot load {path}: {who}Features/"):
                frame = _read_parquet(folder / f"{who}Features")
            (estimator.setUserFeatures if who == "user" else estimator.setItemFeatures)(frame)
        estimator.source = folder.uri
        return estimator


def _read_sketch(folder: Location, limit: int, complete: bool) -> CellSketch:
    with explained("damaged model folder: fitted/"):
        cells = folder.spark.read.schema("hash bigint, ratings bigint").parquet(folder.uri).toArrow()
    return CellSketch.of_table(cells, limit, complete)


def _read_parquet(folder: Location) -> DataFrame:
    frame = folder.spark.read.parquet(folder.uri)
    _ = frame.schema  # Spark Connect looks at the files only now
    return frame
