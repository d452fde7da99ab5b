"""The parts of the pyspark.ml estimator and its model.

params ◄ fit_params
persistence (folders) ◄ checkpoint, warm starts ◄ estimator
spark_factors (factor tables, scores of pairs) ◄ evaluation (figures, certificates), recommend, fold_in (and update)
"""
