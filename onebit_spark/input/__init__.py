"""The user's ratings: their columns, what can be wrong with them, and how they are read, by Spark or by Arrow.

rating_checks (what is wrong, in words) ◄ batches (as they arrive: gathered here, or packed on the executors)

    by Arrow, without Spark
tables (files, and tables in memory, in Spark's types) ◄ arrow_ratings

    by Spark
columns (and side features) ◄ rating_files (plain Parquet, by Arrow) ◄ ratings (every defect counted)
    ◄ survey (packed on the executors, ids counted)
    ◄ collect (on the driver, and held out)
"""
