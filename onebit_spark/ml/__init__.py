"""The parts of the pyspark.ml estimator and its model.

paramkinds ◄ predictionparams ◄ fitparams ◄ fitchoices     persistence (the model folder) ◄ checkpoint, warmstart
foldin, recommend, diagnostics, evaluation     what a fitted model can do     freshness, selection (what it may certify)
"""
