"""What depends on the Spark at hand: files behind URIs, names of jobs (jobnames), short plans, folders lent to them."""
