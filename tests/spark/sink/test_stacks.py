"""The diagnosis of the crash test: if a run hangs, its message has the stacks of every process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.node import eventually
from support.stacks import kill_session, processes_of_session, stacks_of_process, stacks_of_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); input()"
CHILD = """
import time
def stand_still():
    time.sleep(600)
stand_still()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="py-spy needs the right to trace")
def test_a_child_that_outlives_its_parent_is_found_with_its_stack() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert eventually(lambda: len(processes_of_session(parent.pid)) == 2)
        parent.kill()
        parent.wait()
        assert eventually(lambda: "stand_still" in stacks_of_session(parent.pid))
    finally:
        kill_session(parent.pid)
    assert eventually(lambda: not processes_of_session(parent.pid))


def test_a_java_process_has_a_thread_dump(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    assert "Full thread dump" in stacks_of_process(gateway.proc.pid)
