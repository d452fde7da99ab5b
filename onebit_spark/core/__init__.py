"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior, special ◄ losses/, priors, implicit_features, side_features ◄ statistics ◄ hyper_posterior
randomness, prediction, calibration, hyper_posterior, spectral, config ◄ engine, gauge ◄ solver ◄ model_selection
metrics, array_input, model_info, factor_tables, id_index (ids of any type), hashes (of cells)
"""
