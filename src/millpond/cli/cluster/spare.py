"""A spare process that has loaded everything a node needs, so that a crashed node restarts sooner.

Loading a node takes a third of a second of processor time, and several times that on a busy machine. The clients of
its partitions wait that long, because no other process has the data.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from typing import Final

from millpond.base.interpreter import PYTHON

PROGRAM: Final = (*PYTHON, "-c", "import sys; from millpond.cli.cluster.spare_process import run; sys.exit(run())")
END_SECONDS: Final = 5.0


def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a child with pipes. The end of its standard input ends it, so it never outlives this process."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Only this process gets Ctrl-C: the nodes are stopped one after the other.
        start_new_session=True,
    )


class Spare:
    """At most one spare process. The end of its standard input ends it, as it does every child."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Starts the process, unless one is running."""
        if self._process is None or self._process.poll() is not None:
            with contextlib.suppress(OSError):
                self._process = begin(PROGRAM)

    def take(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """The process, now running `millpond` with these arguments; None without a spare."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return None
        return process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError):
            process.communicate(timeout=END_SECONDS)
