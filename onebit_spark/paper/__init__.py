"""The paper's experiments (Section 6), and the page that compares them with the published figures.

baselines/ ◄ methods (what is fitted) ◄ experiments (as tasks) ◄ reproduction_page     published, comparison, movielens
"""
