"""Many fits as Spark tasks: settings chosen by cross-validation.

sample, grid ◄ folds (one fold, and the choice) ◄ crossvalidation ─► tasks (each done once, resumable)     figures
"""
