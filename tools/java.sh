#!/bin/sh
# Spark needs Java 17 or newer: find it, or install it when we may; otherwise say the one line to run.
# With --must a missing Java is an error; without it the tests that need it skip with a reason.
java="java"
[ -n "$JAVA_HOME" ] && java="$JAVA_HOME/bin/java"
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ -n "$version" ] && [ "$version" -ge 17 ] && exit 0
package=openjdk-17-jre-headless
if command -v apt-cache >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null 2>&1
    # Newer releases of Debian have a newer Java instead.
    apt-cache show "$package" >/dev/null 2>&1 || package=default-jre-headless
fi
exec sh "$(dirname "$0")/system_packages.sh" "$@" "$package"
