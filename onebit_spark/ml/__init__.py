"""The parts of the pyspark.ml estimator and its model.

params (of both), scoring (factor tables, scores, figures, certificates) ◄ recommend, fold_in (and update) ◄ model
fold_in ◄ positions ◄ model
checkpoint (and warm starts) ◄ estimator
"""
