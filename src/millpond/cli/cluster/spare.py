"""A process that has loaded everything and waits to be told what to run: a node that dies is back that much sooner.

To load a node takes a third of a second of processor time, and several times that on a busy machine. Nobody else has
what is on a core, so its clients wait for as long.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Final

from millpond.base.interpreter import PYTHON

PROGRAM: Final = (*PYTHON, "-c", "import sys; from millpond.cli.cluster.spare import run; sys.exit(run())")
END_SECONDS: Final = 5.0
LINE_BYTES_MAX: Final = 1 << 20


def begin(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A child that is listened to, and hears by the end of its standard input that we are gone, however we went."""
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C is for us alone: the nodes end one after the other.
        start_new_session=True,
    )


class Spare:
    """One such process, or none yet. It ends with its standard input, as every child does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Have one ready in a moment."""
        if self._process is None or self._process.poll() is not None:
            with contextlib.suppress(OSError):
                self._process = begin(PROGRAM)

    def take(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """The process, which runs `millpond` with these arguments from now on; None where there is none."""
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


def run() -> int:
    """In the process itself: load what a node needs, wait for a line with the arguments, run them."""
    import millpond.cli.up  # noqa: F401
    from millpond.cli import main
    from millpond.node.serve import load

    load()
    # A node walks all that is there once it has started: what is there by now need not be walked then.
    gc.collect()
    gc.freeze()
    line = _first_line()
    if line is None:
        return 0
    return main(json.loads(line))


def _first_line() -> bytes | None:
    """Not a byte more: what comes later tells the node that its parent is gone."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > LINE_BYTES_MAX or not (byte := os.read(0, 1)):
            return None
        line += byte
    return bytes(line)
