"""The user's ratings: their columns, what can be wrong with them (defects), and how they come in.

columns, hashes ◄ defects ◄ ratings (under inside names; what is read off a batch of them)
    ◄ packing (in the executors) ◄ survey (their ids counted)     ◄ prepared_ratings (the same in a folder)
    ◄ collect (on the driver)    ◄ holdout                        ◄ rating_sources (where a fit takes its ratings from)
"""
