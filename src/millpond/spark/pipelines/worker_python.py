"""Which Python runs Spark's workers, and how it starts.

Spark puts pyspark on every worker's path as a zip, from which Python compiles each module again at every start: 1.2 s
of CPU time instead of 0.4 s, for every source, sink and worker. On a busy machine that exceeds the ten seconds that
Spark waits for a source. If pyspark is installed anyway, the launcher here removes the zip from the path.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

WORKERS: Final = "PYSPARK_PYTHON"
DRIVER: Final = "PYSPARK_DRIVER_PYTHON"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set if spark-submit started this process."""

_LAUNCHER: Final = """\
#!/bin/sh
# Starts Python for Spark's workers with the pyspark that is installed, not with the zip of it.
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed 's,[^:]*/pyspark\\.zip:*,,')
export PYTHONPATH
exec {python} -P "$@"
"""

_ours: Final[set[str]] = set()
"""Values set here and not by the user."""


def be_sparks_python(environment: MutableMapping[str, str] | None = None) -> None:
    """Use this Python, which has our packages, for Spark's workers, unless the user has chosen another. Spark would
    take the first python3 on the PATH, even if the environment of this one is not activated.
    """
    environment = os.environ if environment is None else environment
    if SUBMITTED in environment:
        # With spark-submit the user has chosen the Python of all machines.
        return
    if WORKERS not in environment:
        environment[WORKERS] = sys.executable
        _ours.add(sys.executable)
    environment.setdefault(DRIVER, sys.executable)


def choose_python(
    settings: Mapping[str, str],
    folder: Path | None = None,
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the Python that runs the workers and looks up data sources, in the environment: Spark reads it only there,
    whatever its settings are, and otherwise takes the first python3 on the PATH, which may lack our packages.

    A user's choice is kept. A remote cluster uses its own Python.
    """
    environment = os.environ if environment is None else environment
    wanted = settings.get("spark.pyspark.python")
    if environment.get(WORKERS) in _ours:
        # From an earlier session, whose folder may be gone.
        del environment[WORKERS]
    if wanted:
        environment[WORKERS] = wanted
    elif WORKERS not in environment and is_here(settings["spark.master"]):
        environment[WORKERS] = launcher(folder) if folder is not None else sys.executable
        _ours.add(environment[WORKERS])
    environment.setdefault(DRIVER, sys.executable)


def is_here(master: str) -> bool:
    """Whether the workers run on this machine."""
    return master.startswith("local") or re.match(r"spark://(127\.|localhost[:/]|\[::1\])", master) is not None


def launcher(folder: Path) -> str:
    """A launcher in `folder` that starts this Python quickly; this Python itself if that is impossible."""
    path = folder / "python"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_LAUNCHER.format(python=shlex.quote(sys.executable)))
        path.chmod(0o755)
    except OSError:
        return sys.executable
    # The folder may be mounted noexec.
    return str(path.resolve()) if os.name == "posix" and os.access(path, os.X_OK) else sys.executable
