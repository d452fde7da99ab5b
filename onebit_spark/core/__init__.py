"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior, special ◄ losses/, priors ◄ statistics, scales, spectral ◄ config ◄ solver
randomness (of a rating) ◄ draws
prediction, calibration, metrics, array_input, factor_tables, model_info, id_index (ids of any type)
sketch (of the fitted cells)
"""
