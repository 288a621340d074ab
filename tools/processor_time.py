"""Run a command, then print the processor time that it and all processes below it took, beside its budget.

Processor time hardly depends on what else the machine does, so a test run that became slower shows here. Descendants
whose parent has exited are reaped here, as init would do; their time would be lost otherwise.

Usage: python tools/processor_time.py NAME BUDGET-IN-MINUTES COMMAND …
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_CHILD_SUBREAPER = 36
LINGER_SECONDS_MAX = 10.0
"""How long processes may take to end after the command."""


def main(name: str, budget_minutes: float, command: Sequence[str]) -> int:
    started = time.monotonic()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(command)
    # Ctrl-C reaches the command as well, which decides when to end.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(process.pid, signal.SIGTERM))
    code = _reap_until(process.pid)
    seconds = time.monotonic() - started
    remaining = _reap_the_rest()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_seconds, budget_seconds = used.ru_utime + used.ru_stime, budget_minutes * 60
    print(f"{name}: {processor_seconds:.0f} s of processor time (budget: {budget_seconds:.0f} s) in {seconds:.0f} s")
    if processor_seconds > budget_seconds:
        print(f"{name}: over its budget; the files with the most processor time are listed above")
    if remaining:
        print(f"{name}: processes that it left running are not counted")
    return code if code >= 0 else 128 - code


def _reap_until(pid: int) -> int:
    while True:
        reaped, status = os.wait()
        if reaped == pid:
            return os.waitstatus_to_exitcode(status)


def _reap_the_rest() -> bool:
    """Whether processes remain that have not ended in time."""
    deadline = time.monotonic() + LINGER_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
