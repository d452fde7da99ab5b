"""The user's ratings: their columns, what can be wrong with them, and how they are read, by Spark or by Arrow.

rating_checks (what is wrong, in words) ◄ batches (ratings as they arrive) ◄ packing (8 bytes each, in lines for files)

    by Arrow, without Spark
tables (files and tables in memory, in Spark's types) ◄ arrow_ratings

    by Spark
columns ◄ rating_files (plain Parquet, by Arrow) ◄ ratings (under inside names, every defect counted)
    ◄ survey (packed in the executors, ids counted)
    ◄ collect (on the driver) ◄ holdout

features: side features.
"""
