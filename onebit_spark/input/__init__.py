"""The user's ratings: their columns, what can be wrong with them (defects), and how they come in.

columns ◄ defects ◄ ratings (under inside names), accumulators (of columns as they arrive)
    ◄ collect (on the driver) ◄ holdout
    ◄ packing (in the executors), id_counts ◄ survey
    ◄ id_index (of the ids of ratings among all ids)
"""
