"""The program of a spare process: loads what a node needs, waits for the arguments of `millpond`, and runs them."""

from __future__ import annotations

import gc
import json
import os
from typing import Final

LINE_BYTES_MAX: Final = 1 << 20


def run() -> int:
    import millpond.cli.up  # noqa: F401
    from millpond.cli import main
    from millpond.node.serve import load

    load()
    # A node collects garbage once it has started: frozen objects are skipped then.
    gc.collect()
    gc.freeze()
    line = _first_line()
    if line is None:
        return 0
    return main(json.loads(line))


def _first_line() -> bytes | None:
    """Reads byte by byte: the rest of standard input belongs to the node, which watches for its end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > LINE_BYTES_MAX or not (byte := os.read(0, 1)):
            return None
        line += byte
    return bytes(line)
