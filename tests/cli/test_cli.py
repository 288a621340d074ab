"""The overview, and what it costs to show it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from millpond.cli import COMMANDS, command


@pytest.mark.smoke
def test_the_overview_names_every_command_and_fits_on_80_columns(lonely: Any) -> None:
    result = lonely.succeeds("--help")
    for name in COMMANDS:
        assert re.search(rf"^  {name}  ", result.out, re.MULTILINE), name
    assert max(map(len, result.lines)) <= 80


@pytest.mark.parametrize(
    "path",
    ["up", "produce", "consume", "trace", "plan", "version", "log", "log dump", "topic"]
    + [f"topic {verb}" for verb in ("create", "list", "describe", "alter", "delete")]
    + ["group", *(f"group {verb}" for verb in ("list", "describe", "reset", "delete", "history"))]
    + ["txn", *(f"txn {verb}" for verb in ("list", "describe", "hanging", "abort"))],
)
def test_every_command_shows_an_example_of_itself(path: str) -> None:
    result = CliRunner().invoke(command, [*path.split(), "--help"], prog_name="millpond", terminal_width=80)
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n(?:    .*\n)*?    .*millpond {path}", result.output), result.output
    assert max(map(len, result.output.splitlines())) <= 92, "an example may be long, but not that long"


def test_the_overview_and_up_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom millpond.cli import main\nmain(['--help'])\nimport millpond.cli.up\n"
        "heavy = {'confluent_kafka', 'rich', 'asyncio', 'json'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_overview_starts_fast() -> None:
    code = "import time\nfrom millpond.cli import main\nmain(['--help'])\nprint('seconds', time.process_time())"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert min(float(run.stdout.split("seconds ")[1]) for run in runs) < 0.2


@pytest.mark.smoke
def test_an_unknown_command_suggests_the_nearest_one(lonely: Any) -> None:
    lonely.fails("prodcue", "orders", code=2, error="There is no command 'prodcue'; did you mean produce?")


@pytest.mark.smoke
def test_the_version_says_what_it_runs_on(lonely: Any) -> None:
    from millpond import __version__

    result = lonely.succeeds("version")
    assert result.lines[0] == f"Millpond {__version__}"
    assert [line.split()[0] for line in result.lines[1:]] == ["Python", "kernel", "librdkafka"]
    assert lonely("--version").out == f"Millpond {__version__}\n"
