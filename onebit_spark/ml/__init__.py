"""The parts of the pyspark.ml estimator and its model.

param_types ◄ prediction_params ◄ fit_params
fitted_model (factors and predictions) ◄ persistence (folders) ◄ checkpoint, warm starts ◄ fit_run (around a fit)
selection (what is answered) ◄ fitted_model ◄ freshness (of ratings), fold_in, recommend, diagnostics ◄ evaluation,
    certification
"""
