"""Java archives for the tests, from `bench/jars.py`: a test that needs unavailable ones is skipped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Code shared by tests and benchmarks is imported from the root of the repository, also in programs that tests start.
if (ROOT := str(Path(__file__).parents[2])) not in sys.path:
    sys.path.append(ROOT)

from bench.jars import NoJars, fetched, java_command

__all__ = ["NoJars", "class_path", "fetched", "jars", "java_command"]


def jars(name: str) -> list[Path]:
    """The archives of this set; skips the calling test if they are unavailable."""
    try:
        return fetched(name)
    except NoJars as reason:
        pytest.skip(str(reason))


def class_path(name: str) -> str:
    return os.pathsep.join(map(str, jars(name)))
