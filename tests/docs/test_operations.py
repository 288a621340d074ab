"""docs/operations.md is tried as it stands: each section in an empty folder and in a network of its own, whose
loopback also has the addresses 10.0.0.1 to 10.0.0.9."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.page_scripts import block_kinds, run_in_own_network, sections
from support.patience import with_time

PAGE = "operations.md"


@with_time
@pytest.mark.parametrize(("name", "script"), [pytest.param(*each, id=each[0]) for each in sections(PAGE)])
def test_the_commands_do_what_the_page_says(name: str, script: str, tmp_path: Path) -> None:
    run_in_own_network(script, tmp_path)


def test_every_block_is_of_a_known_kind() -> None:
    assert block_kinds(PAGE) <= {"sh", "text", "toml"}
    assert dict(sections(PAGE))
