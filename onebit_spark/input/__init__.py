"""Somebody else's ratings: their columns, what can be wrong with them (defects), and the count of them (census).

columns ◄ defects ◄ census
"""
