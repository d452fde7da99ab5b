"""The parts of the pyspark.ml estimator and its model.

params ◄ fit_params
fitted_model (factors and predictions) ◄ persistence (folders) ◄ checkpoint, warm starts ◄ estimator
selection (what is answered) ◄ fitted_model ◄ freshness (of ratings), fold_in, recommend, evaluation (and certificates)
"""
