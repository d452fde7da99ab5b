"""One engine: it runs the map steps in this process, on a GPU, on the driver or on the executors of a Spark cluster.

steps (work on a block) ◄ engine (which steps run on which tables) ◄ start ◄ threads (a runner in this process)
block_frames ◄ tables ◄ blocking (both orientations) ◄ spark_runner (steps as Spark jobs)
decide (which exchange) ◄ spark_engine (the engine of a DataFrame of ratings)
"""
