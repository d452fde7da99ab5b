"""How the JVMs of the tests are started."""

# They see each plan a few times only: what the optimising compiler takes is more than it saves.
# Classes of Spark need no verification: 15.5 s of CPU until the first two jobs of a session are
# done, 12.8 s without it, as measured.
QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote"
)

# For SPARK_SUBMIT_OPTS. Most of what a driver allocates is garbage at once: a large young
# generation. What is compiled stays: the 48 MB that this compiler has are full after fifty tests of
# fits, and then it compiles again and again.
SHORT_LIVED = f"{QUICK} -Xmn400m -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing"
