"""Cross-validation: many fits as Spark tasks, to choose the settings.

grid ◄ folds (ratings as arrays, one fold, the choice) ◄ cross_validation ─► tasks (each done once, resumable)
"""
