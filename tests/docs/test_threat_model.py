"""Every row of the threat model names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = [line for line in TEXT.partition("## The threat model")[2].partition("###")[0].splitlines() if "`" in line]
ROWS = [line for line in TABLE if line.startswith("| ")]
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def test_the_table_is_complete() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("line", ROWS, ids=[line.split("|")[1].strip()[:40] for line in ROWS])
def test_the_named_tests_exist(line: str) -> None:
    tests = line.split("|")[3]
    names = TEST_NAME.findall(tests)
    assert names, f"no test named: {line}"
    path = ""
    for folder, function in names:
        path = folder or path
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{path} has no {function}"
