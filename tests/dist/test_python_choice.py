"""Which Python `make` makes .venv with, by the answers of stand-ins for both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "python.sh"

STAND_IN = """#!/bin/sh
exec {python} -c '
import sys, sysconfig
{setup}
exec(sys.argv[1])
' "$2"
"""

PLAIN = """
sysconfig.get_config_vars()["CONFIG_ARGS"] = "--enable-shared"
sys.prefix = sys.base_prefix = "/home/somebody/versions/3.12"
sysconfig.get_path = lambda name: "/nonexistent"
"""
OPTIMISED = PLAIN + 'sysconfig.get_config_vars()["CONFIG_ARGS"] = "--enable-optimizations"'
IN_ENVIRONMENT = PLAIN + 'sys.prefix = "/home/somebody/environment"'
DISTRIBUTED = PLAIN + 'sys.prefix = sys.base_prefix = "/usr"'
WITH_HEADERS = """
sys.modules["ensurepip"] = sys
sysconfig.get_path = lambda name: "{headers}"
"""
OLD = WITH_HEADERS + "sys.version_info = (3, 10)"
WITHOUT_VENV = WITH_HEADERS + 'sys.modules["ensurepip"] = None'


@pytest.mark.parametrize(
    ("in_path", "distributed", "variables", "other"),
    [
        (PLAIN, WITH_HEADERS, {}, True),
        (OPTIMISED, WITH_HEADERS, {}, False),
        (DISTRIBUTED, WITH_HEADERS, {}, False),
        (IN_ENVIRONMENT, WITH_HEADERS, {}, False),
        (PLAIN, WITH_HEADERS, {"VIRTUAL_ENV": "/home/somebody/environment"}, False),
        (PLAIN, WITH_HEADERS, {"CONDA_PREFIX": "/opt/conda"}, False),
        (PLAIN, PLAIN, {}, False),
        (PLAIN, OLD, {}, False),
        (PLAIN, WITHOUT_VENV, {}, False),
        (PLAIN, None, {}, False),
        (None, WITH_HEADERS, {}, False),
    ],
    ids=[
        "python3 is not optimised",
        "python3 is optimised",
        "python3 is the distribution's",
        "python3 is of an environment",
        "an environment is active",
        "a conda environment is active",
        "the distribution's has no headers",
        "the distribution's is too old",
        "the distribution's has no venv",
        "the distribution has none",
        "there is no python3",
    ],
)
def test_the_distribution_s_python_replaces_only_one_that_is_not_optimised(
    in_path: str | None, distributed: str | None, variables: dict[str, str], other: bool, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, setup in (("python3", in_path), ("distributed", distributed)):
        if setup is not None:
            text = STAND_IN.format(python=sys.executable, setup=setup.format(headers=tmp_path))
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
    # The stand-ins name their interpreter in full, and `sh` is found without PATH.
    run = subprocess.run(
        ["/bin/sh", str(SCRIPT), str(folder / "distributed")],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    if other:
        assert run.stdout == f"{folder / 'distributed'}\n"
        assert run.stderr.startswith(
            f"Using {folder / 'distributed'}: python3 in PATH was built without optimisation"
        )
    else:
        assert run.stdout == "python3\n"
        assert run.stderr == ""


def test_an_explicit_python_wins(tmp_path: Path) -> None:
    for name in ("python3", "explicit"):
        maker = tmp_path / name
        maker.write_text(
            f'#!/bin/sh\nmkdir -p "$3/bin"; echo "echo {name}" > "$3/bin/python"; chmod +x "$3/bin/python"\n'
        )
        maker.chmod(0o755)
    (tmp_path / "tools").symlink_to(SCRIPT.parent)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VIRTUAL_ENV": "active"}

    def made(*arguments: str) -> str:
        words = ["make", "-B", "-f", str(SCRIPT.parents[1] / "Makefile"), ".venv/bin/python", *arguments]
        run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return run.stdout.splitlines()[-1]

    assert made() == "python3"
    assert made(f"PYTHON={tmp_path / 'explicit'}") == "explicit"
