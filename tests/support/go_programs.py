"""Small Go programs of ours: compiled once with the clients they use, run with arguments, checked by their output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "clients" / "go"
BUILD_SECONDS_MAX = 280
RUN_SECONDS_MAX = 150


def built(folder: Path) -> Path:
    """The program in tests/clients/go; skips without a Go compiler or the modules that it needs."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go compiler here")
    # Another toolchain would be downloaded from elsewhere.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    fetched = _run(["go", "mod", "download"], environment)
    if fetched.returncode != 0:
        pytest.skip(f"its Go modules cannot be had here: {fetched.stderr.strip().splitlines()[-1:]}")
    program = folder / "program"
    done = _run(["go", "build", "-o", str(program), "."], environment)
    assert done.returncode == 0, done.stderr
    return program


def run_go(program: Path, *words: str) -> list[str]:
    """The lines that the program prints; it must succeed."""
    done = subprocess.run(
        [str(program), *words], capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
