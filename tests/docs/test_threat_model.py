"""Every line of the threat model names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = [line for line in TEXT.partition("## The threat model")[2].partition("###")[0].splitlines() if "`" in line]
LINES = [line for line in TABLE if line.startswith("| ")]
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def test_there_is_a_table() -> None:
    assert len(LINES) > 15


@pytest.mark.parametrize("line", LINES, ids=[line.split("|")[1].strip()[:40] for line in LINES])
def test_what_would_fail_is_there(line: str) -> None:
    tests = line.split("|")[3]
    named = NAMED.findall(tests)
    assert named, f"no test is named: {line}"
    path = ""
    for folder, function in named:
        path = folder or path
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{path} has no {function}"
