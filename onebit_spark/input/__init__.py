"""The user's ratings: their columns, what can be wrong with them, and how they are read, by Spark or by Arrow.

    by Arrow, without Spark
tables (files, and tables in memory, in Spark's types) ◄ ratings (columns, defects in words, all ratings in memory)

    by Spark
ratings ◄ spark_ratings (every defect counted; on the driver, held out, or packed on the executors)
"""
