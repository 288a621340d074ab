"""Makes a step of an exactly-once write fail: in a task, on the driver, or on the node.

The sink calls it in the process that does a step (`MILLPOND_SPARK_STEPS=support.spark_faults:strike`). The faults
wait in a folder, one file each, in order: only the first is considered, and the process that removes its file carries
it out.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FOLDER = "MILLPOND_TEST_FAULTS"
WITNESS = "support.spark_faults:strike"

RAISE = "raise"
KILL_PYTHON = "kill this Python process"
KILL_DRIVER = "kill the driver"
KILL_NODE = "kill the node"

NODE_BACK_SECONDS = 60.0


class Struck(Exception):
    """A step that was made to fail."""


def plan(folder: Path, faults: list[tuple[str, str]]) -> None:
    """Let each (step, way) happen once, in this order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (step, way) in enumerate(faults):
        (folder / f"{number:04}.fault").write_text(f"{step}\n{way}")


def waiting(folder: Path) -> list[str]:
    """The faults that have not happened yet."""
    return [each.read_text().replace("\n", ": ") for each in sorted(folder.glob("*.fault"))]


def strike(step: str) -> None:
    folder = Path(os.environ[FOLDER])
    with (folder / "steps.txt").open("a") as told:
        told.write(f"{time.strftime('%X')} {os.getpid()} {step}\n")
    for first in sorted(folder.glob("*.fault"))[:1]:
        try:
            wanted, way = first.read_text().split("\n")
            if wanted != step:
                return
            first.unlink()
        except FileNotFoundError:
            return
        _carry_out(folder, step, way)


def _carry_out(folder: Path, step: str, way: str) -> None:
    if way == RAISE:
        raise Struck(f"made to fail after: {step}")
    if way == KILL_PYTHON:
        os.kill(os.getpid(), signal.SIGKILL)
    if way == KILL_DRIVER:
        # The JVM first: it would clean up after its Python side.
        for pid in (folder / "driver.pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(60)
    if way == KILL_NODE:
        pid = (folder / "node.pid").read_text()
        os.kill(int(pid), signal.SIGKILL)
        deadline = time.monotonic() + NODE_BACK_SECONDS
        while (folder / "node.pid").read_text() == pid and time.monotonic() < deadline:
            time.sleep(0.05)
