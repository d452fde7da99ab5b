"""How the JVMs of the tests are started."""

# They see each plan a few times only: what the optimising compiler takes is more than it saves.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# For SPARK_SUBMIT_OPTS. Most of what a driver allocates is garbage at once: a large young generation.
SHORT_LIVED = f"{QUICK} -Xmn400m"
