"""The user's ratings: their columns, what can be wrong with them (defects), and how they come in.

columns ◄ defects ◄ ratings (under inside names), readings (of columns as they arrive)
    ◄ gathering (on the driver) ◄ holdout
    ◄ packing (in the executors), idcounts ◄ census
    ◄ idpositions (of the ids of ratings among all ids)
"""
