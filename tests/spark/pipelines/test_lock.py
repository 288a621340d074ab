"""One run at a time, and a lock that goes with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.spark.pipelines.lock import FILE, AlreadyRunning, is_held, locked

HOLDER = """
import sys, time
from pathlib import Path
from millpond.spark.pipelines.lock import locked
with locked(Path(sys.argv[1]), "orders"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(tmp_path)
        with pytest.raises(
            AlreadyRunning, match=f"orders runs already, as process {holder.pid}: .*kill {holder.pid}"
        ):
            locked(tmp_path, "orders").__enter__()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert not is_held(tmp_path)
    with locked(tmp_path, "orders"):
        assert (tmp_path / FILE).read_text() == f"{os.getpid()}\n"
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_failed_run_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ValueError), locked(tmp_path / "new", "orders"):
        raise ValueError
    assert not is_held(tmp_path / "new")


def test_where_nothing_ran_nothing_is_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
