"""What depends on Spark's own interfaces: files by URI, names of jobs (jobnames), short plans, folders (lending)."""
