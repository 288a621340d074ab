"""Finds functions, classes, methods and module constants of `src` that nothing uses, with vulture. Part of `tidy.py`.

Uses in tests do not count, except for the packages that exist for tests. Vulture compares names and does not resolve
them, so some dead code goes unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parent.parent
USERS = ("src", "bench", "tools", "examples", "setup.py")
FOR_TESTS = ("src/millpond/sim/", "src/millpond/testing/")
DECLARED = ("@*.command", "@click.command", "@*.fixture", "@pytest.hookimpl")
"""Decorators that register what they decorate."""

CALLED_BY_OTHERS = {
    "click": ["format_commands"],
    "the import system": ["__dir__"],
    "urllib and http.server": ["redirect_request", "do_GET", "log_message"],
    "asyncio, for a protocol": ["eof_received"],
    "DuckDB, for a dataset": ["scanner"],
    "pytest, for a plugin": ["pytest_addoption", "pytest_configure"],
    "Spark, for a data source": [
        "getDefaultReadLimit",
        "initialOffset",
        "latestOffset",
        "prepareForTriggerAvailableNow",
        "reportLatestOffset",
        "streamReader",
        "streamWriter",
    ],
    "Spark, for a stateful processor": ["handleExpiredTimer", "handleInputRows"],
    "the scenarios of sim/machines, by the name of a fault": ["_fault_*"],
    "Spark's users, by the option's name": [
        "GROUP_ID_PREFIX",
        "FETCH_OFFSET_RETRIES",
        "FETCH_OFFSET_RETRY_INTERVAL_MS",
    ],
    "programs that receive from a queue": ["ack"],
    "nobody yet: Kafka's special timestamps": ["EARLIEST_LOCAL", "LATEST_TIERED", "EARLIEST_PENDING_UPLOAD"],
    "tests, to inspect the producers of a log": ["producer_states"],
}
"""Names that nothing in the repository calls, by who does."""


def faults() -> Iterator[str]:
    allowed = [name for names in CALLED_BY_OTHERS.values() for name in names]
    vulture = Vulture(ignore_names=allowed, ignore_decorators=DECLARED)
    vulture.scavenge([ROOT / each for each in USERS])
    tested = {word for path in (ROOT / "tests").rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    for item in vulture.get_unused_code():
        where = item.filename.relative_to(ROOT).as_posix()
        is_field = item.typ in ("attribute", "variable") and _is_indented(item.filename, item.first_lineno)
        if not where.startswith("src/") or is_field or (where.startswith(FOR_TESTS) and item.name in tested):
            continue
        users = "only tests use" if item.name in tested else "nothing uses"
        yield f"{where}:{item.first_lineno}: {users} the {item.typ} {item.name}; delete it"


def _is_indented(path: Path, line: int) -> bool:
    """Fields may be read as a whole, and those of messages are read by the other side."""
    return path.read_text().splitlines()[line - 1].startswith(" ")
