"""Looks into a running node with py-spy and writes where its time goes.

`ROW.collapsed.txt` holds whole stacks, one a line, which speedscope and flame graph tools read; `ROW.top.txt` the
functions that cost most, by themselves and with all they call.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

RESULTS = os.path.join(os.path.dirname(__file__), "results")
SAMPLES_PER_SECOND = 500
SECONDS_MAX = 120
TOP = 20


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
            # It writes its file when it is interrupted.
            spy.send_signal(signal.SIGINT)
            _, told = spy.communicate()
        if not os.path.exists(self.stacks_path):
            raise RuntimeError(f"py-spy saw nothing: {told.decode(errors='replace').strip()}")
        with open(self.stacks_path, encoding="utf-8") as stacks:
            text = top_of(stacks)
        with open(self.top_path, "w", encoding="utf-8") as top:
            top.write(text)


def top_of(stacks: Iterator[str] | list[str], count: int = TOP) -> str:
    """The costliest functions of collapsed stacks, as text."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, number = line.rstrip("\n").rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(number)
        samples += int(number)
        for frame in set(frames):
            whole[frame] += int(number)
    lines = [f"{samples} samples while busy", "", "by itself:"]
    lines += [f"{100 * number / samples:6.1f} %  {name}" for name, number in own.most_common(count)]
    lines += ["", "with all that it calls:"]
    lines += [f"{100 * number / samples:6.1f} %  {name}" for name, number in whole.most_common(2 * count)]
    return "\n".join(lines) + "\n"
