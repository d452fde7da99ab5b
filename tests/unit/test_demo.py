"""The demonstration: what it tells a newcomer about two ways of the same fit."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from onebit_spark.demo import agreement, comparison


def test_the_times_are_those_of_the_fits(tmp_path):
    """Not of the jobs, of which one draws a report and predicts."""
    for name, objective, fit in (("driver", 1000.0, 5.0), ("blocks", 1000.0001, 36.0)):
        seconds = {"survey": 3.0, "blocking": 1.0, "fit": fit, "start": 2.0}  # the start is a part of the fit
        (tmp_path / name).mkdir()
        info = {"objective_history": [2000.0, objective], "seconds": seconds}
        (tmp_path / name / "metadata.json").write_text(json.dumps(info))
    told = agreement(tmp_path / "driver", tmp_path / "blocks")
    assert told.startswith("Both agree: the objectives, 1000.000000 and 1000.000100, differ by 1e-07 of their size.\n")
    assert "The fit took 9 s on the driver and 40 s by blocks." in told


def test_two_models_are_compared_line_by_line(tmp_path):
    for name, mean in (("one", 0.5), ("two", 0.5), ("other", 0.25)):
        for side in ("users", "items"):
            (tmp_path / name / side).mkdir(parents=True)
            ids = ["a", "b"] if name == "one" else ["b", "a"]
            pq.write_table(pa.table({"id": ids, "mean": [mean, mean]}), tmp_path / name / side / "part-0.parquet")
    told = comparison(tmp_path / "one", tmp_path / "two", 31.2, 4.4)
    assert told.startswith("The two models are the same to the last bit.")
    assert "it took 31 s,\nand without Spark 4 s." in told
    assert "DIFFER" in comparison(tmp_path / "one", tmp_path / "other", 1, 1)
