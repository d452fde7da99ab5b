"""Cross-validation: many fits as Spark tasks, to choose the settings.

sample, grid ◄ folds (one fold, and the choice) ◄ cross_validation ─► tasks (each done once, resumable)     figures
"""
