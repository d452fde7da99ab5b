"""The paper's experiments (Section 6), the page that compares them with the published figures, and
its explicit bounds.

baselines/ ◄ methods (what is fitted) ◄ experiments (as tasks) ◄ reproduction_page     published, comparison, movielens
requests (flags) ◄ job (`jobs/reproduce.py`)          planning: how many ratings a given risk needs

The workers of a session get this folder as a zip. It is imported as ``paper``: `benchmarks` must be
on the path.
"""
