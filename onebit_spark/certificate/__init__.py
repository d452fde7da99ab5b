"""Certificates: upper limits on the error rate, and their inputs.

bounds         the theorems, as functions of a few numbers
planning       the paper's explicit bounds, before any rating
certificates   the certificates, in numbers and in words
learnt_prior   a prior from some of the ratings
selective      on which pairs the error is at most r, and which pairs a model answers
held_out       all certificates that held-out ratings give, also within groups of them
certified_fit  from ratings to a fit with its certificates
"""

from onebit_spark.certificate.bounds import (
    catoni,
    catoni_over_grid,
    gibbs_limit,
    holdout,
    prior_split,
    seeger,
    theorem1,
)
from onebit_spark.certificate.planning import plan

__all__ = ["catoni", "catoni_over_grid", "gibbs_limit", "holdout", "plan", "prior_split", "seeger", "theorem1"]
