"""One engine: it runs the map steps in this process, on the driver or on the executors of a Spark cluster.

steps (what a block computes) ◄ runner (where steps run), start ◄ engine ◄ threads (a runner; no Spark)
block_frames ◄ routes ◄ tables ◄ blocking (both orientations) ◄ numbering, spark_runner ◄ spark_engine
    ◄ decide (which exchange), exchange (its engine)
"""
