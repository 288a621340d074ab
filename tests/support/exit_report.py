"""Repeats at the very end of a test run what aborted it.

An aborted run prints pages of internals last, and no list of failed tests. The end of the output has to show which
tests failed, what aborted the run, and how each worker exited.
"""

from __future__ import annotations

import pytest

LINES_OF_ONE = 12


class ExitReport:
    def __init__(self) -> None:
        self._failed: list[str] = []
        self._broken: list[str] = []
        self._left: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = getattr(crash, "message", None) or str(report.longrepr)
            self._failed.append(f"{report.nodeid} ({report.when}): {why.strip().splitlines()[0] if why else ''}")

    def pytest_internalerror(self, excrepr: object) -> None:
        lines = str(excrepr).rstrip().splitlines()
        self._broken.append("\n".join(lines[-LINES_OF_ONE:]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        told = getattr(node, "workeroutput", None) or {}
        name = getattr(getattr(node, "gateway", None), "id", "a worker")
        self._left.append(f"{name} left with status {told.get('exitstatus')}, error: {error}")

    def pytest_unconfigure(self) -> None:
        if not self._broken:
            return
        print("\nThe run broke off. What broke it, the first first:")
        for each in self._broken:
            print(f"--\n{each}")
        for each in self._left + self._failed:
            print(each)
