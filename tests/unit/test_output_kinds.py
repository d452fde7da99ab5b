"""Which outputs may be overwritten by which: those of the same kind, and what is empty."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paper import job

from onebit_spark import RequestError
from onebit_spark.data import locations as files
from onebit_spark.data.locations import Location, OutputKind

KINDS = {
    name: kind
    for of in (files, job)
    for name, kind in vars(of).items()
    if isinstance(kind, OutputKind)
}
PREDICTED = pa.table(
    {
        "user": [1],
        "item": [2],
        "score": [0.5],
        "std": [1.0],
        "probability": [0.6],
        "prediction": [1],
    }
)
RATED = pa.table({"user": [1], "item": [2], "label": [1]})
FIGURES = json.dumps({"n": 5, "error": 0.25, "majority_error": 0.5}, indent=2)
FOLDERS = {name: kind for name, kind in KINDS.items() if not kind.is_file}


def marked(kind, **more):
    return {files.MARKER: KINDS[kind].name, **more}


# name: (the files that are there, or a text for a file; the kinds that may replace it)
CASES = {
    "an empty folder": ({}, set(FOLDERS)),
    "a folder of a job without results": ({"_SUCCESS": ""}, set(FOLDERS)),
    "an empty file": ("", set(KINDS) - set(FOLDERS)),
    "predictions as CSV": (
        '"user","item","score","std","probability"\n1,2,.1,.2,.3\n',
        {"PREDICTIONS_CSV"},
    ),
    "predictions as CSV of Spark": (
        "user,item,score,std,probability\n1,2,.1,.2,.3\n",
        {"PREDICTIONS_CSV"},
    ),
    "another CSV": ("user,item,score\n1,2,.1\n", set()),
    "another CSV with the words below": ("user,item\nscore,std,probability\n", set()),
    "a foreign folder": ({"precious.txt": "mine"}, set()),
    "a foreign hidden folder": ({".git/config": "mine"}, set()),
    "a foreign marker": ({files.MARKER: "mine"}, set()),
    "a foreign file": ("mine", set()),
    "a foreign JSON": ('{"error": 404}', set()),
    "a JSON list": ("[1, 2]", set()),
    "figures": (FIGURES, {"METRICS"}),
    **{f"a marked folder, {kind}": (marked(kind, **{"part-0": ""}), {kind}) for kind in FOLDERS},
    "a model with notes": (marked("MODEL", **{"notes.txt": "rank 5 was better"}), {"MODEL"}),
    "a foreign metadata": ({"metadata.json": '{"title": "photos"}', "users/a.txt": "mine"}, set()),
    "an Iceberg table": ({"metadata/v1.metadata.json": "{}", "data/part-0.parquet": RATED}, set()),
    "predictions of another tool": ({"part-0.parquet": PREDICTED, "_SUCCESS": ""}, set()),
    "positions as CSV": ('"user","n_ratings","dim1","dim1_std"\n1,2,.1,.2\n', {"POSITIONS_CSV"}),
    "a map": (f"<!doctype html>{files.MAP_MARK}<title>", {"MAP"}),
    "a report": (f"<!DOCTYPE html><head>{files.PAGE_MARK}9 ratings</title>", {"PAGE"}),
    "ratings": ({"part-0.parquet": RATED, "_SUCCESS": ""}, set()),
    "a Delta table of predictions": (
        {"part-0.parquet": PREDICTED, "_delta_log/0.json": "{}"},
        set(),
    ),
    "predictions that became a Delta table": (
        marked("PREDICTIONS", **{"part-0.parquet": PREDICTED, "_delta_log/0.json": "{}"}),
        set(),
    ),
    "a foreign users and items": ({"users/part-0.parquet": "", "items/part-0.parquet": ""}, set()),
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
    assert set().union(
        *(kinds for name, (_, kinds) in CASES.items() if "empty" not in name)
    ) == set(KINDS)


def test_what_is_said(tmp_path):
    message = (
        "--output x is not a model of onebit_spark, and nothing else is overwritten: "
        "choose another path, or delete"
    )
    with pytest.raises(RequestError, match=message):
        files.MODEL.check(Location(None, made("mine", tmp_path / "out")), "--output x")
