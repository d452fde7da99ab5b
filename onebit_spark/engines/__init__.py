"""Engines: they hold ratings and run work on them, in this process, on a GPU, or on the executors of a cluster.

base (what an engine is), layout (rows of tables), start (of a fit) ◄ threads (this process), cuda/ (a GPU)
threads, blocking (blocks of ratings in both orientations) ◄ spark_runner (tables, and work as Spark jobs)
spark_runner, decide (which exchange) ◄ spark_engine (the state of a fit of a DataFrame of ratings)
"""
