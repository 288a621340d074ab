"""The site of the docs: its pages, their links, and the build if mkdocs is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("site_tool", ROOT / "tools" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_pages_of_the_site(tool: Any, tmp_path: Path) -> None:
    tool.gather(ROOT, tmp_path)
    broken = []
    for page in tmp_path.rglob("*.md"):
        text = tool.FENCE.sub("", page.read_text(encoding="utf-8"))
        for match in [*tool.LINK.finditer(text), *tool.IMAGE.finditer(text)]:
            target = match["target"].partition("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (page.parent / target).is_file():
                broken.append(f"{page.relative_to(tmp_path)}: {target}")
    assert broken == []


def test_every_page_is_in_the_menu(tool: Any) -> None:
    menu = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    missing = [page for page in tool.pages(ROOT).values() if f"'{page}'" not in menu]
    assert [page for page in missing if not page.startswith(("decisions/", "examples/"))] == []


@pytest.mark.slow
def test_the_site_builds_without_warnings(tool: Any, tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install 'millpond[docs]'")
    tool.gather(ROOT, tmp_path / "build" / "pages")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Twenty minutes" in (tmp_path / "build" / "site" / "index.html").read_text(encoding="utf-8")
