"""Certificates: upper limits on the error rate, and what they rest on.

bounds      the theorems, as functions of a few numbers       planning    the paper's explicit bounds, before any rating
streams ◄ split, gibbs   coins and draws that belong to a rating          learnt      a prior from some of the ratings
certified   from a fit to its certificates, in words
confidence ◄ selective ◄ bygroup   answer only where the error is at most what was asked, also within groups
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
