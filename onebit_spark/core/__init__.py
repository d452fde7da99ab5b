"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It
imports no Spark.
"""
