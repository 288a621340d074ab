"""Which functions of each package its own tests call, measured with coverage.py. `make coverage`.

python tools/function_coverage.py log wire
python tools/function_coverage.py --missed log

Processes that tests start count too. Packages that mostly run inside a node, Spark or a command line have no floor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Package(NamedTuple):
    floor: int
    """Percent of its functions that must be called."""
    tests: tuple[str, ...] = ()
    """Beside its own folder."""


PACKAGES = {
    "base": Package(85, ("metadata/test_scram.py", "broker/security/test_mechanisms.py")),
    "config": Package(75),
    "wire": Package(96),
    "log": Package(95),
    "metadata": Package(90),
    "coordinators": Package(90),
    "quorum": Package(95, ("sim/machines/quorum/test_scenario.py",)),
    "replication": Package(95, ("sim/machines/replication/test_scenario.py",)),
    "broker": Package(80, ("sim/records/test_scenario.py", "sim/coordination/test_scenario.py")),
}


def main(arguments: list[str]) -> int:
    shows_missed = "--missed" in arguments
    is_short = False
    for name in [each for each in arguments if not each.startswith("-")] or PACKAGES:
        called = functions(name)
        missed = [function for function, is_called in called.items() if not is_called]
        percent = 100 * (len(called) - len(missed)) // max(len(called), 1)
        verdict = "" if percent >= PACKAGES[name].floor else f", less than {PACKAGES[name].floor}"
        is_short = is_short or bool(verdict)
        print(f"{name:14} {percent:3} % of {len(called):4} functions{verdict}", flush=True)
        if shows_missed or verdict:
            print("\n".join(f"    {each}" for each in missed))
    return int(is_short)


def functions(name: str) -> dict[str, bool]:
    """Every function of the package with statements, and whether its tests call it."""
    tests = [str(ROOT / "tests" / each) for each in (name, *PACKAGES[name].tests)]
    with tempfile.TemporaryDirectory() as folder:
        data, report, settings = (Path(folder, each) for each in ("data", "report.json", "settings.ini"))
        settings.write_text(
            f"[run]\ndata_file = {data}\nsource = {ROOT}/src/millpond/{name}\nparallel = true\npatch = subprocess\n"
        )
        coverage = [sys.executable, "-m", "coverage"]
        ran = run(*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-n", "2", *tests)
        if ran.returncode:
            print(ran.stdout[-2000:], ran.stderr[-2000:])
        run(*coverage, "combine", f"--rcfile={settings}")
        run(*coverage, "json", f"--rcfile={settings}", "-q", "-o", str(report))
        files = json.loads(report.read_text())["files"]
    return {
        f"{os.path.relpath(path, ROOT)}: {function}": bool(lines["executed_lines"])
        for path, file in files.items()
        for function, lines in file["functions"].items()
        if function and lines["summary"]["num_statements"]
    }


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
