"""A page of the console in a real browser, with everything that went wrong in it."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.console import Console

PHONE = {"width": 390, "height": 844}
MS_MAX = 20_000
READY = "main .card, main table, main .empty"
"""What every page has once it is rendered."""

NPM_SECONDS = 60
AXE = "package/axe.min.js"


class Tab:
    """A page, with its console messages and its requests to other hosts."""

    def __init__(self, browser: Any, console: Console, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(MS_MAX)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda asked: self._check(asked.url, console.url))
        self._url = console.url

    def _check(self, url: str, ours: str) -> None:
        if not url.startswith(ours):
            self.faults.append(f"another host: {url}")

    def open(self, path: str) -> Any:
        self.page.goto(self._url + path)
        return self.page


def unnamed(page: Any) -> list[str]:
    """Controls without an accessible name, as the browser computes it."""
    elements: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('a, button, input, select, textarea')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.textContent.trim() || each.ariaLabel || each.labels?.length || each.title))
            .map((each) => each.outerHTML)"""
    )
    return elements


def axe_source(cache: Path) -> str:
    """axe-core from its npm package, kept in `cache`. Skips if npm or its registry does not answer."""
    kept = cache / "axe.min.js"
    if not kept.exists():
        try:
            packed = subprocess.run(
                ["npm", "pack", "axe-core", "--silent"],
                cwd=cache,
                capture_output=True,
                text=True,
                timeout=NPM_SECONDS,
                check=True,
            )
            with tarfile.open(cache / packed.stdout.split()[-1]) as archive:
                file = archive.extractfile(AXE)
                assert file is not None
                kept.write_bytes(file.read())
        except (OSError, subprocess.SubprocessError, IndexError) as fault:
            pytest.skip(f"npm cannot get axe-core: {fault}")
    return kept.read_text()


def barriers(page: Any, axe: str, *rules: str) -> list[str]:
    """The accessibility violations that axe-core finds, by these rules or by all of them."""
    page.evaluate(f"{axe}; 0")
    elements: list[str] = page.evaluate(
        """async (rules) => (await axe.run(document, {resultTypes: ['violations'], ...rules})).violations
            .map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(' ')}`)""",
        {"runOnly": list(rules)} if rules else {},
    )
    return elements
