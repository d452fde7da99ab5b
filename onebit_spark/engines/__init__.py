"""The runners of the engine (``core.engine``): in this process, on a GPU, or on the executors of a Spark cluster.

threads (a runner in this process), cuda/ (on a GPU), decide (which exchange) ◄ spark_engine (of a DataFrame of ratings)
blocking (blocks of ratings in both orientations) ◄ spark_runner (tables, and steps as Spark jobs) ◄ spark_engine
"""
