"""The parts of the pyspark.ml estimator and its model.

paramkinds ◄ predictionparams ◄ fitparams ◄ fitchoices
scoring ◄ fittedmodel (factors and predictions) ◄ persistence (the model folder), warmstart ◄ checkpoint
selection (what is answered)   ◄ fittedmodel ◄ freshness (of ratings), foldin, recommend, diagnostics ◄ evaluation
"""
