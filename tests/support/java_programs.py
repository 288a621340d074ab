"""Small Java programs of ours: compiled once with the Java client, run with arguments, checked by their output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.jars import class_path

FOLDER = Path(__file__).parent.parent / "clients" / "java"
COMPILE_SECONDS_MAX = 150
RUN_SECONDS_MAX = 150


def compiled(folder: Path) -> str:
    """The class path of our programs and their dependencies; skips without a compiler or the client."""
    archives = class_path("client")
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler here: apt-get install openjdk-17-jdk-headless")
    words = ["javac", "-nowarn", "-cp", archives, "-d", str(folder), *map(str, FOLDER.glob("*.java"))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return os.pathsep.join([str(folder), archives])


def run_java(classes: str, program: str, *words: str) -> list[str]:
    """The lines that the program prints; it must succeed."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
