"""pyspark.ml: the estimator, its model, and the Params."""
