"""The demonstration: what it tells a newcomer about two ways of the same fit."""

import json

from onebit_spark.demo import agreement


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
