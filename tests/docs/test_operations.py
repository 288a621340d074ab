"""The commands of docs/operations.md work, section by section.

Each runs in an empty folder and a network namespace whose loopback also has the addresses 10.0.0.1 to 10.0.0.9.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.page_scripts import block_kinds, run_in_own_network, sections
from support.patience import with_time

PAGE = "operations.md"


@with_time
@pytest.mark.parametrize(("name", "script"), [pytest.param(*each, id=each[0]) for each in sections(PAGE)])
def test_the_commands_of_each_section_work(name: str, script: str, tmp_path: Path) -> None:
    run_in_own_network(script, tmp_path)


FAILOVERS = 20
FAIL_OVER = f"""
up=$(pgrep -P $$ -f 'cluste[r] up')
ready() {{ test "$(pgrep -P $up | wc -l)" = 3 && test "$(millpond cluster status | grep -c ready)" = 3; }}
for round in $(seq {FAILOVERS}); do
    kill -9 $(pgrep -P $up | sed -n "$((round % 3 + 1))p")
    for _ in $(seq 300); do if ready; then break; fi; sleep 0.2; done
    ready
done
"""
PRODUCE = "seq 1000 | millpond produce orders\n"


@with_time
@pytest.mark.parametrize("name", ["Loss of a majority", "A whole cluster from its backups"])
def test_a_rescue_works_after_many_failovers(name: str, tmp_path: Path) -> None:
    """Failovers add metadata records that a new cluster does not have."""
    script = dict(sections(PAGE))[name]
    assert PRODUCE in script
    script = script.replace(PRODUCE, PRODUCE + FAIL_OVER, 1)
    run_in_own_network(script, tmp_path, seconds_max=600)


def test_every_block_has_a_known_language() -> None:
    assert block_kinds(PAGE) <= {"sh", "text", "toml"}
    assert dict(sections(PAGE))
