"""The mathematics: blocks of ratings, posteriors, losses, priors and the loop that fits them. It imports no Spark.

compiled, blocks, posterior ◄ losses/, priors, features ◄ statistics ◄ hyper_posterior
randomness, prediction, hyper_posterior, spectral, config ◄ work, gauge
work ◄ engines.base ◄ fit_state ◄ solver ◄ model_selection
user_data, model_info, id_index (ids of any type), hashes (of cells)
"""
