"""How the JVMs of the tests are started."""

# For SPARK_SUBMIT_OPTS. They see each plan a few times only: what the optimising compiler takes is more than it saves.
# Most of what they allocate is garbage at once: a large young generation.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn400m"
