"""Experiments: many fits as Spark tasks. The paper's (jobs/reproduce.py), and the user's own (jobs/tune.py).

sample, methods (what is fitted)  ◄ tasks (each done once, resumable)  ◄ paper ─► page, figures     reproducejob
                                                                      ◄ crossvalidation, tuning    tunejob
"""
