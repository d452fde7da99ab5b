"""Certificates: upper limits on the error rate, and their inputs.

bounds         the theorems, as functions of a few numbers
certificates   the certificates, in numbers and in words
held_out       the certificates that held-out ratings give: of all predictions, of the confident ones, within groups
learnt_prior   a prior that is learnt from some of the ratings
certified_fit  from ratings to a fit with its certificates
"""
