"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior, special ◄ losses/, priors, row_map, implicit_features, side_features ◄ statistics
statistics ◄ hyper_posterior
spectral ◄ config     hyper_posterior, draws, holdout_loss ◄ engine ◄ solver ◄ model_selection
randomness (of a rating) ◄ draws     statistics ◄ gauge ◄ solver
prediction, calibration, metrics, array_input, factor_tables, model_info, id_index (ids of any type)
sketch (of the fitted cells)
"""
