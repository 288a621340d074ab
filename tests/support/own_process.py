"""Tests that count what their process holds: descriptors, threads.

The process that runs the suite also holds the clients and nodes of other tests, whose threads open and close things
at any time. Such a count is meaningful only where nothing else runs.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_INSIDE = "MILLPOND_TEST_IN_OWN_PROCESS"


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run this one test in a separate process, and fail with its output."""

    @functools.wraps(test)
    def started(*fixtures: object, **named: object) -> None:
        if _INSIDE in os.environ:
            test(*fixtures, **named)
            return
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
        environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", name]
        ended = subprocess.run(
            command, cwd=_ROOT, env={**environment, _INSIDE: "1"}, capture_output=True, text=True, timeout=280
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
        assert "1 passed" in ended.stdout, ended.stdout[-4000:]

    return started
