"""How the JVMs of the tests are started."""

# For SPARK_SUBMIT_OPTS. They see each plan a few times only: what the optimising compiler takes is more than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
