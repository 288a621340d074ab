"""`pip install` with one line per step, and pip's full output on failure.

The first install takes a minute or two, and a newcomer should see progress. It runs before anything is installed, so
it needs nothing but Python.

Usage: python tools/installation.py ARGUMENTS-OF-PIP-INSTALL
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

DOWNLOAD = re.compile(r"Downloading (?P<name>\S+?)-\d\S* \((?P<size>[^)]+)\)$")
BUILD = re.compile(r"Building (?:wheel|editable) for (?P<name>\S+) .*started$")
TOOLS = re.compile(r"Installing build dependencies.*started$")
ALL = re.compile(r"Installing collected packages: (?P<names>.+)$")


def step_of(line: str) -> str | None:
    """The step that a line of pip's output reports, if any."""
    line = line.strip()
    if ".metadata (" in line:
        return None
    if found := DOWNLOAD.match(line):
        return f"downloading {found['name']} ({found['size']})"
    if found := BUILD.match(line):
        return f"building {found['name']}"
    if TOOLS.match(line):
        return "downloading build dependencies"
    if found := ALL.match(line):
        count = len(found["names"].split(","))
        return f"installing {count} package{'s' if count > 1 else ''}"
    return None


def run_showing_steps(command: Sequence[str]) -> int:
    output: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if step := step_of(line):
                print(f"  {step} …", flush=True)
    if process.returncode:
        sys.stderr.write("".join(output))
    return process.returncode


if __name__ == "__main__":
    sys.exit(run_showing_steps([sys.executable, "-m", "pip", "install", "--progress-bar", "off", *sys.argv[1:]]))
