"""The runners of the engine (``core.engine``): in this process, on a GPU, or on the executors of a Spark cluster.

start (of a fit) ◄ threads (a runner in this process)
block_frames ◄ tables ◄ blocking (both orientations) ◄ spark_runner (steps as Spark jobs)
decide (which exchange) ◄ spark_engine (the engine of a DataFrame of ratings)
"""
