#!/bin/sh
# Install Debian packages when they are missing and we may; otherwise say the one line to run.
# With --must a missing package is an error; without it the tests that need the package skip with a reason.
must=no
if [ "$1" = "--must" ]; then
    must=yes
    shift
fi
missing=""
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing$missing …"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing; } >/dev/null 2>&1 && exit 0
fi
echo "Missing$missing: run  sudo apt-get install -y$missing"
[ "$must" = no ]
