"""Profiles a running node with py-spy.

`ROW.collapsed.txt` has whole stacks, one per line, for speedscope and flame graphs; `ROW.top.txt` has the most
expensive functions, with and without their callees.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

RESULTS = os.path.join(os.path.dirname(__file__), "results")
SAMPLES_PER_SECOND = 500
SECONDS_MAX = 120
TOP = 25
IDLE = "SimpleQueue_get"
"""The function in which an idle worker thread waits; py-spy counts it as busy."""

C_LINE = re.compile(r"(\.(?:c|h|pyx|c\.h)):\d+")


class Profiler:
    """Samples one process while a row is measured."""

    def __init__(self, row: str, folder: str = RESULTS) -> None:
        os.makedirs(folder, exist_ok=True)
        self.stacks_path = os.path.join(folder, f"{row}.collapsed.txt")
        self.top_path = os.path.join(folder, f"{row}.top.txt")

    @contextmanager
    def watching(self, pid: int) -> Iterator[None]:
        spy = subprocess.Popen(
            [
                os.path.join(os.path.dirname(sys.executable), "py-spy"),
                *("record", "--pid", str(pid), "--format", "raw", "--output", self.stacks_path),
                *("--rate", str(SAMPLES_PER_SECOND), "--duration", str(SECONDS_MAX), "--function", "--native"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            yield
        finally:
            # It writes its file on SIGINT.
            spy.send_signal(signal.SIGINT)
            _, told = spy.communicate()
        if not os.path.exists(self.stacks_path):
            raise RuntimeError(f"py-spy saw nothing: {told.decode(errors='replace').strip()}")
        with open(self.stacks_path, encoding="utf-8") as stacks:
            text = top_of(stacks)
        with open(self.top_path, "w", encoding="utf-8") as top:
            top.write(text)


def top_of(stacks: Iterable[str], count: int = TOP) -> str:
    """The costliest functions of collapsed stacks, as text."""
    leaves: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, number = line.rstrip("\n").rpartition(" ")
        frames = [_plain(frame) for frame in stack.split(";")]
        if any(IDLE in frame for frame in frames):
            continue
        samples += int(number)
        leaves[frames[-1]] += int(number)
        own[next((frame for frame in reversed(frames) if _is_python(frame)), "?")] += int(number)
        for frame in set(filter(_is_python, frames)):
            whole[frame] += int(number)
    lines = [f"{samples} samples, idle worker threads left out"]
    for title, counter in (
        ("by itself", leaves),
        ("by Python function, with the C that it calls", own),
        ("with all that it calls", whole),
    ):
        lines += ["", f"{title}:"]
        lines += [f"{100 * number / samples:6.1f} %  {name}" for name, number in counter.most_common(count)]
    return "\n".join(lines) + "\n"


def _plain(frame: str) -> str:
    """A frame without C line numbers and addresses, so that equal frames are counted together."""
    if frame.startswith("0x"):
        return frame.partition(" ")[2].strip("()")
    return C_LINE.sub(r"\1", frame)


def _is_python(frame: str) -> bool:
    return ".py" in frame or frame.startswith("<")
