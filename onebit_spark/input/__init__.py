"""The user's ratings: their columns, what can be wrong with them (defects), and their counts (census).

columns ◄ defects ◄ census ◄ gathering ◄ holdout
        defects ◄ readings ◄ gathering
"""
