"""Which outputs may be overwritten by which: those of the same kind, and what is empty."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paper import job

from onebit_spark import RequestError
from onebit_spark.data import locations as files
from onebit_spark.data.locations import Location, OutputKind

KINDS = {name: kind for of in (files, job) for name, kind in vars(of).items() if isinstance(kind, OutputKind)}
PREDICTED = pa.table({"user": [1], "item": [2], "score": [0.5], "std": [1.0], "probability": [0.6], "prediction": [1]})
PLACED = pa.table({"item": [2], "n_ratings": [9], "slope1": [0.5], "slope1_std": [0.1]})
RATED = pa.table({"user": [1], "item": [2], "label": [1]})
INFO = json.dumps({"format_version": 1, "n_ratings": 9})
FIGURES = json.dumps({"n": 5, "error": 0.25, "majority_error": 0.5})


def saved(class_name):
    return {"metadata/part-00000": json.dumps({"class": class_name, "uid": "x"}), "metadata/_SUCCESS": ""}


# name: (the files that are there, or a text for a file; the kinds that may replace it)
CASES = {
    "an empty folder": ({}, {name for name, kind in KINDS.items() if not kind.is_file}),
    "a folder of a job without results": ({"_SUCCESS": ""}, {name for name, kind in KINDS.items() if not kind.is_file}),
    "an empty file": ("", {"METRICS", "PREDICTIONS_CSV", "POSITIONS_CSV", "MAP", "PAGE"}),
    "predictions as CSV": ('"user","item","score","std","probability"\n1,2,.1,.2,.3\n', {"PREDICTIONS_CSV"}),
    "another CSV": ("user,item,score\n1,2,.1\n", set()),
    "a foreign folder": ({"precious.txt": "mine"}, set()),
    "a foreign hidden folder": ({".git/config": "mine"}, set()),
    "a foreign file": ("mine", set()),
    "a foreign JSON": ('{"error": 404}', set()),
    "a JSON list": ("[1, 2]", set()),
    "figures": (FIGURES, {"METRICS"}),
    "a model": ({"metadata.json": INFO, "users/part-0": "", "items/part-0": ""}, {"MODEL"}),
    "a model with notes": ({"metadata.json": INFO, "notes.txt": "rank 5 was better"}, {"MODEL"}),
    "a half-written model": (saved("onebit_spark.spark.model.OneBitCompletionModel"), {"MODEL"}),
    "a foreign metadata": ({"metadata.json": '{"title": "photos"}', "users/a.txt": "mine"}, set()),
    "rotten metadata": ({"metadata.json": "{"}, set()),
    "an estimator": (saved("onebit_spark.spark.estimator.OneBitCompletion"), {"ESTIMATOR"}),
    "a model of pyspark.ml": (saved("org.apache.spark.ml.recommendation.ALSModel"), set()),
    "an Iceberg table": ({"metadata/v1.metadata.json": "{}", "data/part-0.parquet": RATED}, set()),
    "predictions": ({"part-0.parquet": PREDICTED, ".part-0.parquet.crc": "", "_SUCCESS": ""}, {"PREDICTIONS"}),
    "positions": ({"part-0.parquet": PLACED, "_SUCCESS": ""}, {"POSITIONS"}),
    "positions as CSV": ('"user","n_ratings","dim1","dim1_std"\n1,2,.1,.2\n', {"POSITIONS_CSV"}),
    "a map": (f"<!doctype html>{files.MAP_MARK}<title>", {"MAP"}),
    "a report": (f"<!DOCTYPE html><head>{files.PAGE_MARK}9 ratings</title>", {"PAGE"}),
    "ratings": ({"part-0.parquet": RATED, "_SUCCESS": ""}, set()),
    "a Delta table of predictions": ({"part-0.parquet": PREDICTED, "_delta_log/0.json": "{}"}, set()),
    "predictions among others": ({"part-0.parquet": PREDICTED, "precious.txt": "mine"}, set()),
    "part files of another format": ({"part-0.csv": "score,std,probability"}, set()),
    "vectors": ({"users/part-0.parquet": "", "items/part-0.parquet": "", "_SUCCESS": ""}, {"VECTORS"}),
    "a foreign users and items": ({"users/part-0.parquet": "", "items/part-0.parquet": ""}, set()),
    "a foreign tasks": ({"tasks/todo.txt": "mine"}, set()),
    "a ledger": ({"code-1a2b/x.json": "{}"}, {"LEDGER"}),
    "experiments": ({"tasks/noise/code-1a2b/x.json": "{}", "noise.csv": ""}, {"REPRODUCTION"}),
}


def made(found, place):
    if isinstance(found, str):
        place.write_text(found)
    else:
        place.mkdir()
        for name, content in found.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (pq.write_table if isinstance(content, pa.Table) else write)(content, place / name)
    return place


def write(text, path):
    path.write_text(text)


@pytest.mark.parametrize("case", CASES)
def test_what_may_be_replaced(tmp_path, case):
    found, kinds = CASES[case]
    view = Location(None, made(found, tmp_path / "out"))
    assert {name for name, kind in KINDS.items() if kind.may_replace(view)} == kinds


def test_every_kind_is_recognised():
    assert set().union(*(kinds for name, (_, kinds) in CASES.items() if "empty" not in name)) == set(KINDS)


def test_what_is_said(tmp_path):
    message = (
        "--output x is not a model of onebit_spark, and nothing else is overwritten: choose another path, or delete"
    )
    with pytest.raises(RequestError, match=message):
        files.MODEL.check(Location(None, made("mine", tmp_path / "out")), "--output x")
