"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior, special ◄ losses/, priors ◄ statistics, scales, startlines ◄ spectral ◄ config ◄ solver
randomness (of a rating) ◄ split ◄ draws ◄ newcomers (ids that were never rated)     confidence (of a prediction)
prediction, calibration, metrics, topn, fixedpoint, arrayinput   sketch (of the fitted cells)   factortables, modelinfo
"""
