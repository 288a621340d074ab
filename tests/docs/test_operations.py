"""docs/operations.md is tried as it stands: the commands of each section, as a user would type them.

The ```sh blocks of a section are one script, run in an empty folder and in a network of its own, whose loopback also
has the addresses 10.0.0.1 to 10.0.0.9. A line that ends with `# in a terminal of its own` goes on in the background;
the next one begins when its panel (`Millpond …`) is there. What must be true stands in comments that nobody sees:
`<!-- check: COMMAND -->`, tried for half a minute.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import with_time

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
OWN_TERMINAL = "# in a terminal of its own"
SECONDS_MAX = 240
PART = re.compile(r"^```sh\n(.*?)^```$|^<!-- check: (.*?) -->$", re.DOTALL | re.MULTILINE)

BEGIN = """set -eu
ip link set lo up
for number in 1 2 3 4 5 6 7 8 9; do ip address add 10.0.0.$number/32 dev lo; done
begin() {  # a command in a terminal of its own, until it is ready
    number=$((${number:-9} + 1))
    sh -c "exec $1" > terminal-$number.txt 2>&1 &
    for _ in $(seq 300); do
        if grep -q "Millpond [0-9]" terminal-$number.txt; then return; fi
        sleep 0.1
    done
    cat terminal-$number.txt; echo "it did not begin: $1"; exit 1
}
check() {
    for _ in $(seq 60); do
        if sh -c "$1" > check.txt 2>&1; then return; fi
        sleep 0.5
    done
    cat check.txt; echo "it is not so: $1"; exit 1
}
end() { for job in $(jobs -p); do kill $job; done; wait; }
trap end EXIT
"""


def sections() -> Iterator[tuple[str, str]]:
    """The name of each section that has something to run, with its script."""
    for section in re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        script = "".join(_lines(text))
        if script:
            yield name, script


def _lines(text: str) -> Iterator[str]:
    for block, check in PART.findall(text):
        if check:
            yield f"check {shlex.quote(check)}\n"
        for line in block.splitlines():
            command, is_own, _ = line.partition(OWN_TERMINAL)
            yield f"begin {shlex.quote(command.strip())}\n" if is_own else f"{line}\n"


@with_time
@pytest.mark.parametrize(("name", "script"), [pytest.param(*each, id=each[0]) for each in sections()])
def test_the_commands_do_what_the_page_says(name: str, script: str, tmp_path: Path) -> None:
    own_network = ("unshare", "--user", "--map-root-user", "--net")
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.run([*own_network, "true"]).returncode:
        pytest.skip("there can be no network of its own here (unshare, ip)")
    programs = Path(sys.executable).parent
    process = subprocess.Popen(
        [*own_network, "bash", "-c", BEGIN + script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        told, _ = process.communicate()
    print(told)
    assert process.returncode == 0, f"{name}:\n{told}"


def test_every_block_is_of_a_known_kind() -> None:
    text = DOCUMENT.read_text()
    kinds = set(re.findall(r"^```(\w+)$", text, re.MULTILINE))
    assert kinds <= {"sh", "text", "toml"}
    assert dict(sections())
