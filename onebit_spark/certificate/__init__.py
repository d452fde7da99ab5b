"""Certificates: upper limits on the error rate, and their inputs.

bounds         the theorems, as functions of a few numbers
certificates   the certificates of a fit and of held-out ratings, in numbers and in words
draw_certificates  those of draws from the posterior of a fit
"""
