"""The user's ratings: their columns, what can be wrong with them, and how they come in, by Spark or by Arrow.

rating_checks (what is wrong, in words), batches (ratings as they arrive) ◄ gathering (numbered and packed here)
batches ◄ packing (8 bytes each, in lines for files) ◄ id_counts, unpacking (lines gathered here)

    by Arrow, without Spark
file_formats, arrow_types ◄ data_files ◄ file_readers ◄ arrow_table ◄ arrow_ratings
prepared_facts, unpacking ◄ prepared_here (packed ratings in a folder)

    by Spark
columns ◄ defects ◄ ratings (under inside names)
    ◄ packed_frames (in the executors) ◄ survey (ids counted)     ◄ prepared_ratings (the same in a folder)
    ◄ collect (on the driver)    ◄ holdout                        ◄ rating_sources (where a fit takes its ratings from)

labels: the settings of the labels. features, feature_checks: side features.
"""
