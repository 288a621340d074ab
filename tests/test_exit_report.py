"""A run of tests that breaks off says at its end what broke it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.boundary

HOUSE = Path(__file__).parent

CONFTEST = """
import sys
import pytest
sys.path.insert(0, {support!r})
from support.exit_report import ExitReport

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ExitReport())

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if report.nodeid.endswith("test_breaks") and report.when == "call" and not hasattr(report, "item_index"):
        raise LookupError("nobody catches this")
"""

TESTS = """
import time

def test_fails():
    assert 1 == 2, "one is not two"

def test_breaks():
    time.sleep(1)

def test_takes_long():
    time.sleep(3)

def test_waits():
    pass

def test_waits_too():
    pass
"""


def test_a_run_that_breaks_off_says_why_last(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(support=str(HOUSE)))
    (tmp_path / "test_two.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"]
    run = subprocess.run([*words, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 3, run.stdout
    said = run.stdout.partition("The run broke off.")[2]
    assert said.index("LookupError: nobody catches this") < said.index("left with status 3")
    assert "test_fails (call): AssertionError: one is not two" in said.splitlines()[-1]
