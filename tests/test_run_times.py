"""A run of tests prints its processor time, and which files took the most of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.file_times import processor_seconds

pytestmark = pytest.mark.boundary

TESTS = Path(__file__).parent
TOOL = TESTS.parent / "tools" / "processor_time.py"

BURN = "import time\nwhile time.process_time() < 0.5: pass"

ORPHAN = f"""
import os, subprocess, sys
if os.fork() == 0:
    # Its parent is gone before it has computed anything.
    subprocess.run([sys.executable, "-c", {BURN!r}])
    os._exit(0)
sys.exit(3)
"""


def measure(budget: str, *command: str) -> tuple[int, str]:
    words = [sys.executable, str(TOOL), "a run", budget, *command]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return run.returncode, run.stdout


def test_what_an_orphan_computes_is_counted() -> None:
    code, output = measure("0.005", sys.executable, "-c", ORPHAN)
    assert code == 3
    assert re.match(r"a run: [1-9]\d* s of processor time \(budget: 0 s\) in \d+ s\na run: over its budget", output)


def test_a_run_within_its_budget_is_one_line() -> None:
    code, output = measure("12", sys.executable, "-c", "")
    assert code == 0
    assert re.fullmatch(r"a run: \d+ s of processor time \(budget: 720 s\) in \d+ s\n", output), output


def test_a_killed_run_fails() -> None:
    code, _ = measure("12", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert code == 128 + 9


CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from support.file_times import FileTimes

def pytest_configure(config):
    config.pluginmanager.register(FileTimes())
"""

BUSY = f"""
import subprocess, sys

def test_burns():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", {BURN!r}])
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_the_files_with_the_most_processor_time_are_listed(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_busy.py").write_text(BUSY)
    (tmp_path / "test_idle.py").write_text("def test_idle():\n    pass\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, str(tmp_path)]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    listed = dict(reversed(each) for each in re.findall(r"(?m)^ +(\d+\.\d)  (\S+)$", run.stdout))
    assert float(listed["test_busy.py"]) >= 1.5, run.stdout
    assert "test_idle.py" not in listed


def test_processes_that_run_are_counted() -> None:
    before = processor_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", f"{BURN}\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1
    ) as burning:
        assert burning.stdout is not None
        burning.stdout.readline()
        assert processor_seconds() - before >= 0.4
        burning.communicate(b"\n")
