"""What a fitted model says, on arrays: scores, labels, draws, lists, fold-in, its folder. It imports no Spark."""
