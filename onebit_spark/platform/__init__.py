"""What depends on Spark's own interfaces: sessions, files by URI, Arrow batches, short plans, temporary folders."""
