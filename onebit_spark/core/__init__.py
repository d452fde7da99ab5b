"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior, special ◄ losses/, priors ◄ statistics, scales, spectral_rows ◄ spectral ◄ config ◄ solver
randomness (of a rating) ◄ split ◄ draws ◄ cold_start_draws (ids that were never rated)     confidence (of a prediction)
prediction, calibration, metrics, top_n, fixed_point, array_input, factor_tables, model_info
sketch (of the fitted cells)
"""
