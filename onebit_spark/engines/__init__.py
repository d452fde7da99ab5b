"""One engine: it runs the map steps in this process, on the driver or on the executors of a Spark cluster.

steps (what a block computes) ◄ line_format ◄ runner (where steps run), start ◄ engine ◄ threads (a runner; no Spark)
layout, block_frames ◄ blocking ◄ routes, tables ◄ sides, numbering ◄ spark_runner ◄ spark_engine
    ◄ decide (which exchange), exchange (its engine), held_out_loss ◄ validation
"""
