"""Allows one run of a pipeline at a time: two queries on one checkpoint would corrupt it.

It is an operating system lock on a file in the pipeline's folder, so it is released however the process ends. The
file contains the process id for people.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE: Final = "run.lock"
TRIES: Final = 5


class AlreadyRunning(Exception):
    """Another process runs this pipeline."""


@contextmanager
def lock_pipeline(folder: Path, name: str) -> Iterator[None]:
    """Lock the pipeline in `folder`. A dead process's lock is taken over."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _try_lock(descriptor):
            pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise AlreadyRunning(
                f"{name} runs already, as process {pid}: see `millpond pipeline status`, or stop it with `kill {pid}`"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    for _ in range(TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A status query also holds it briefly.
            time.sleep(0.05)
        else:
            return True
    return False


def is_held(folder: Path) -> bool:
    """Whether a running process holds the pipeline in `folder`."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
