# Finds Java 17 or newer (Spark 4 needs it), installs it where that is possible (Debian, as root),
# and otherwise says in one line what to install. Sourced by the Makefile, or run on its own.

java_version() { "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }

java_is_ready() {
    found=${JAVA_HOME:+$JAVA_HOME/bin/java}
    found=${found:-$(command -v java || true)}
    [ -n "$found" ] && [ -x "$found" ] && [ "$(java_version "$found")" -ge 17 ] 2>/dev/null
}

if ! java_is_ready; then
    if [ -n "${JAVA_HOME:-}" ]; then
        # A stale or too old JAVA_HOME hides a good java on the PATH.
        unset JAVA_HOME
    fi
fi
if ! java_is_ready && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Java 17+ not found: installing Debian's OpenJDK ..." >&2
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null 2>&1 ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null 2>&1 || true
fi
if ! java_is_ready; then
    echo "onebit_spark needs Java 17 or newer for Spark: install a JDK (e.g. openjdk-17) and set JAVA_HOME." >&2
    exit 1
fi
