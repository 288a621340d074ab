"""docs/operations.md is tried as it stands: each section in an empty folder and in a network of its own, whose
loopback also has the addresses 10.0.0.1 to 10.0.0.9."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.page_scripts import block_kinds, run_script, sections
from support.patience import with_time

PAGE = "operations.md"
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
ADDRESSES = """ip link set lo up
for number in 1 2 3 4 5 6 7 8 9; do ip address add 10.0.0.$number/32 dev lo; done
"""


@with_time
@pytest.mark.parametrize(("name", "script"), [pytest.param(*each, id=each[0]) for each in sections(PAGE)])
def test_the_commands_do_what_the_page_says(name: str, script: str, tmp_path: Path) -> None:
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"]).returncode:
        pytest.skip("there can be no network of its own here (unshare, ip)")
    run_script(ADDRESSES + script, tmp_path, OWN_NETWORK)


def test_every_block_is_of_a_known_kind() -> None:
    assert block_kinds(PAGE) <= {"sh", "text", "toml"}
    assert dict(sections(PAGE))
