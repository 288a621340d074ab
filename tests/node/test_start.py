"""What a default node reads until it is ready. Counted, not timed: so the start stays short on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

OURS_MAX = 301
"""Modules of our own. Who needs more of them at the start should know why; what clients need comes right after."""

MESSAGES_MAX = 8
"""Messages whose schema was parsed: those kinds of metadata records that a node writes first, or finds."""

AVOIDED = {
    *("confluent_kafka", "rich", "prometheus_client", "structlog", "starlette", "msgspec", "cryptography"),
    *("decimal", "difflib", "email", "http", "importlib.metadata", "shutil", "tempfile", "urllib.request"),
    *("millpond.broker.apis", "millpond.coordinators.groups", "millpond.coordinators.transactions"),
    *("millpond.client", "millpond.console", "millpond.remote", "millpond.sim"),
}

READY = """
import json, os, sys
from millpond.cli import main, up
{before}
def on_ready(broker, *_):
    {then}
up._announce = on_ready
main(["up", "--data", sys.argv[1], "--listen", "127.0.0.1:0", "--metrics", "off", "--no-console"])
"""

TELL = """from millpond.wire import messages as m
    built = [name for name, each in vars(m).items() if isinstance(each, type) and issubclass(each, m.Message)]
    print(json.dumps([sorted(sys.modules), built]), flush=True)
    os._exit(0)"""

WATCH = """
import threading, time
readers = {}
sys.addaudithook(
    lambda event, facts: event == "import" and readers.setdefault(facts[0], threading.current_thread().name)
)
def tell():
    while "millpond.broker.apis.k82_update_raft_voter" not in readers or "millpond.broker.apis" not in sys.modules:
        time.sleep(0.01)
    print(json.dumps(readers), flush=True)
    os._exit(0)
"""


def ask_node(folder: Path, then: str, before: str = "") -> object:
    """What a node says that does so when it is ready."""
    code = READY.format(before=before, then=then)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_default_node_is_ready_with_few_modules(tmp_path: Path) -> None:
    for _ in range(2):  # in a new folder, and in one that was left by a crash
        told = ask_node(tmp_path / "data", TELL)
        assert isinstance(told, list)
        loaded, built = told
        assert AVOIDED.isdisjoint(loaded), AVOIDED & set(loaded)
        ours = [name for name in loaded if name.startswith("millpond")]
        assert 0 < len(ours) <= OURS_MAX, f"{len(ours)} modules: {ours}"
        assert len(built) <= MESSAGES_MAX, built


def test_what_clients_need_is_read_beside_the_loop(tmp_path: Path) -> None:
    readers = ask_node(tmp_path / "data", "threading.Thread(target=tell, daemon=True).start()", WATCH)
    assert isinstance(readers, dict)
    apis = {name: thread for name, thread in readers.items() if name.startswith("millpond.broker.apis")}
    assert "millpond.broker.apis.k00_produce" in apis
    assert all(thread.startswith("millpond-worker") for thread in apis.values()), apis
