"""What every thread of a process and its children is doing, for the message of a test that timed out.

Uses py-spy for Python and jstack for Java; the connections of both show most clearly which process waits for which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

SECONDS_MAX = 30.0
CHARACTERS_MAX = 60_000
"""Of one process: a JVM has some forty threads."""


def stacks_of_session(session: int) -> str:
    """All processes of a session, whose leader may be dead."""
    return "\n".join(_of(each) for each in processes_of_session(session))


def stacks_of_process(pid: int) -> str:
    return _of(psutil.Process(pid))


def processes_of_session(session: int) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _session_of(each.pid) == session]


def kill_session(session: int) -> None:
    """Kill what a test has started, and everything below it."""
    for each in processes_of_session(session):
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _of(process: psutil.Process) -> str:
    try:
        words = " ".join(process.cmdline())
        head = f"=== {process.pid} (child of {process.ppid()}), {process.status()}: {words[:200]}"
        connections = "\n".join(f"    {each.laddr} {each.raddr} {each.status}" for each in process.net_connections())
    except psutil.Error as fault:
        return f"=== {process.pid}: {fault!r}"
    tool = ["jstack", "-l"] if "java" in words.split(" ")[0] else [_py_spy(), "dump", "--pid"]
    return f"{head}\n{connections}\n{_said([*tool, str(process.pid)])[:CHARACTERS_MAX]}"


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def _said(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, timeout=SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"no stacks: {fault}"
    return (done.stdout + done.stderr).decode(errors="replace")
