"""docs/analysis.md runs from the first line to the last: its programs in order, then its queries."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="pip install 'millpond[sql]'")
pytest.importorskip("pandas")

from millpond.cli import main
from support.pages import blocks

PAGE = [each for each in blocks() if each.page == "docs/analysis.md"]


def test_the_page_runs(
    millpond: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", millpond.bootstrap)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    millpond.create_topic("orders")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in PAGE:
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec"), names)
    assert "c0    83416.5" in capsys.readouterr().out
    queries = [line for block in PAGE if block.kind == "sh" for line in block.text.splitlines() if "millpond" in line]
    outputs = []
    for line in queries:
        words = shlex.split(re.sub(r"^pip .*", "", line), comments=True)
        if words:
            assert main(words[1:]) == 0, line
            outputs.append(capsys.readouterr())
    assert len(outputs) == 8
    assert sorted(line.split() for line in outputs[0].out.splitlines()[1:]) == [
        ["c0", "83416.5"],
        ["c1", "83083.5"],
        ["c2", "83250.0"],
    ]
    assert "1,000 of 1,000 offsets read" in outputs[1].err
    assert len(outputs[2].out.splitlines()) == 10
    assert "1,000 rows written to orders.parquet" in outputs[3].err
    assert "100 of 1,000 offsets would be read" in outputs[5].out
