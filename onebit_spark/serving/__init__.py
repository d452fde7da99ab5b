"""A fitted model without Spark: read from its folder, asked by the ids of the ratings. It imports no Spark."""
