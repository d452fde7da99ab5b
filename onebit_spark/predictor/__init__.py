"""Predictions of a fitted model, on arrays: scores, labels, draws, lists, fold-in, its folder. It imports no Spark."""
