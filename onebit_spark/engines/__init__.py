"""Engines: they hold ratings and run work on them, in this process, on a GPU, or on the executors
of a cluster.
"""
