"""What depends on Spark's own interfaces: files by URI, Arrow batches, names of jobs, short plans, lent folders."""
