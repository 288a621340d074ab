"""Pages of the documentation as scripts.

The ```sh blocks of a section form one script. A line that ends with `# in a separate terminal` runs in the
background; the next one starts when its output shows `Millpond …`. A block with a title is a file of that name.
Hidden comments are assertions: `<!-- check: COMMAND -->` is retried for half a minute.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs"
SEPARATE_TERMINAL = "# in a separate terminal"
SECONDS_MAX = 240
PART = re.compile(
    r"^```sh\n(?P<sh>.*?)^```$"
    r"|^```\w+ title=\"(?P<title>[^\"]+)\"\n(?P<file>.*?)^```$"
    r"|^<!-- check: (?P<check>.*?) -->$",
    re.DOTALL | re.MULTILINE,
)
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")
ADDRESSES = """ip link set lo up
for number in 1 2 3 4 5 6 7 8 9; do ip address add 10.0.0.$number/32 dev lo; done
"""

BEGIN = """set -eu
begin() {  # start a command in the background and wait until it is ready
    number=$((${number:-9} + 1))
    sh -c "exec $1" > terminal-$number.txt 2>&1 &
    for _ in $(seq 300); do
        if grep -q "Millpond [0-9]" terminal-$number.txt; then return; fi
        sleep 0.1
    done
    cat terminal-$number.txt; echo "did not start: $1"; exit 1
}
check() {
    for _ in $(seq 60); do
        if sh -c "$1" > check.txt 2>&1; then return; fi
        sleep 0.5
    done
    cat check.txt; echo "check failed: $1"; exit 1
}
end() { for job in $(jobs -p); do kill $job; done; wait; }
trap end EXIT
"""


def sections(page: str) -> Iterator[tuple[str, str]]:
    """The name and script of each section with commands."""
    for section in re.split(r"^## ", (PAGES / page).read_text(), flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        script = "".join(_lines(text))
        if script:
            yield name, script


def _lines(text: str) -> Iterator[str]:
    for part in PART.finditer(text):
        if part["check"]:
            yield f"check {shlex.quote(part['check'])}\n"
        if part["title"]:
            yield f"cat > {shlex.quote(part['title'])} << 'END OF FILE'\n{part['file']}END OF FILE\n"
        for line in (part["sh"] or "").splitlines():
            command, is_background, _ = line.partition(SEPARATE_TERMINAL)
            yield f"begin {shlex.quote(command.strip())}\n" if is_background else f"{line}\n"


def block_kinds(page: str) -> set[str]:
    return set(re.findall(r"^```(\w+)$", (PAGES / page).read_text(), re.MULTILINE))


def run_in_own_network(script: str, folder: Path, seconds_max: float = SECONDS_MAX) -> str:
    """Run in a new network namespace, where every port is free; skip if that is not possible."""
    if not shutil.which("ip") or not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"]).returncode:
        pytest.skip("network namespaces are not available (unshare, ip)")
    return run_script(ADDRESSES + script, folder, OWN_NETWORK, seconds_max)


def run_script(script: str, folder: Path, around: Sequence[str] = (), seconds_max: float = SECONDS_MAX) -> str:
    """Return the output of the script, which must succeed. `around` is the command that runs the shell."""
    programs = Path(sys.executable).parent
    process = subprocess.Popen(
        [*around, "bash", "-c", BEGIN + script],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    print(output)
    assert process.returncode == 0, output
    return output
