"""Fits on Spark that several files make, interrupt and compare."""

import numpy as np

from onebit_spark.spark.estimator import OneBitCompletion


class Interrupted(Exception):
    pass


def interrupt_after(number):
    def stop(iteration):
        if iteration.number == number:
            raise Interrupted

    return stop


BLOCKS = {"numUserBlocks": 3, "numItemBlocks": 2}


def estimator(exchange, **settings):
    params = {"rank": 3, "likelihoodWeight": 1.0, "maxIter": 2, "tol": 0.0, **BLOCKS}
    return OneBitCompletion(exchange=exchange, **{**params, **settings})


def assert_same_bits(one, other):
    assert one.info.objective_history == other.info.objective_history
    assert one.certificate == other.certificate
    assert one.info.thresholds == other.info.thresholds
    for found, expected in ((one.users, other.users), (one.items, other.items)):
        assert found.schema.simpleString() == expected.schema.simpleString()
        assert found.toArrow().sort_by("id") == expected.toArrow().sort_by("id")


ALL_USERS, ALL_ITEMS = (index.ravel() for index in np.indices((28, 18)))


def table_of(recommended, who, other):
    """{id: [(partner, rating, std, probability), …]}, the best first."""
    return {
        line[who]: [
            (one[other], one["rating"], one["std"], one["probability"])
            for one in line["recommendations"]
        ]
        for line in recommended.toArrow().to_pylist()
    }
