"""The parts of the pyspark.ml estimator and its model.

params (of the estimator and its model), persistence (folders) ◄ checkpoint, warm starts ◄ estimator
spark_factors (factor tables, scores of pairs) ◄ evaluation (figures, certificates), recommend, fold_in (and update)
"""
