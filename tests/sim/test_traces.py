"""A run is decided by its seed alone: neither by the process that plays it nor by what else that has done."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLAY = """
import gc, sys
gc.set_threshold(int(sys.argv[2]))
from millpond.sim.{kind}.scenario import run_seed
print(run_seed(int(sys.argv[1])).trace_hash)
"""


def trace_of(kind: str, seed: int, hash_seed: str, gc_threshold: int) -> str:
    """Run in a separate process, where sets are ordered and garbage is collected differently."""
    words = [sys.executable, "-c", PLAY.format(kind=kind), str(seed), str(gc_threshold)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.boundary
@pytest.mark.parametrize(("kind", "seed"), [("records", 12), ("cluster", 1)])
def test_a_run_is_the_same_in_every_process(kind: str, seed: int) -> None:
    assert trace_of(kind, seed, "1", 700) == trace_of(kind, seed, "2", 100_000) != ""
