"""The engine on Spark: ratings packed into blocks, and work on them by jobs."""
