"""Kafka's own tools, run against a cluster of ours."""

from __future__ import annotations

import os
import subprocess

from millpond.testing import Ponds
from support.jars import class_path, java_command

SECONDS_MAX = 90


def kafka_tool(name: str) -> list[str]:
    """The command line of a tool; skips the test if its archives are unavailable."""
    archives = os.pathsep.join([class_path("broker"), class_path("tools")])
    return [java_command(), "-Xmx128m", "-cp", archives, name]


def try_tool(tool: list[str], cluster: Ponds, *words: str) -> tuple[int, str]:
    """The tool's exit code and output."""
    done = subprocess.run(
        [*tool, "--bootstrap-server", cluster.bootstrap, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    return done.returncode, done.stdout + done.stderr


def run_tool(tool: list[str], cluster: Ponds, *words: str) -> str:
    code, told = try_tool(tool, cluster, *words)
    assert code == 0, told
    return told
