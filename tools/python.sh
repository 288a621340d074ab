#!/bin/sh
# Print the Python to make .venv with: python3, unless it was built without optimisation and the distribution has a
# better one. Pyenv builds without it unless asked, and a node then needs up to 1.5 times the processor time.
# An active environment is somebody's choice, and stays.
#
# Usage: sh tools/python.sh [PATH-OF-THE-DISTRIBUTION'S-PYTHON]
distribution=${1:-/usr/bin/python3}

# Distributions optimise theirs in /usr, though Debian's does not list the option.
chosen='
import sys, sysconfig
optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
sys.exit(not (optimised or sys.base_prefix == "/usr" or sys.prefix != sys.base_prefix))
'
# Without headers the compiled kernel would be missing, which costs more than the optimisation gains.
usable='
import os, sys, sysconfig
import ensurepip, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))
'
if [ -z "$VIRTUAL_ENV$CONDA_PREFIX" ] && command -v python3 >/dev/null 2>&1 && ! python3 -c "$chosen" 2>/dev/null &&
    "$distribution" -c "$usable" 2>/dev/null; then
    echo "Using $distribution: python3 in PATH was built without optimisation (PYTHON=python3 uses it anyway)." >&2
    echo "$distribution"
else
    echo python3
fi
