"""One run at a time; the lock ends with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.spark.pipelines.lock import FILE, AlreadyRunning, is_held, lock_pipeline

HOLDER = """
import sys, time
from pathlib import Path
from millpond.spark.pipelines.lock import lock_pipeline
with lock_pipeline(Path(sys.argv[1]), "orders"):
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
            lock_pipeline(tmp_path, "orders").__enter__()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert not is_held(tmp_path)
    with lock_pipeline(tmp_path, "orders"):
        assert (tmp_path / FILE).read_text() == f"{os.getpid()}\n"
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_failed_run_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError), lock_pipeline(tmp_path / "new", "orders"):
        raise ValueError
    assert not is_held(tmp_path / "new")


def test_a_new_folder_is_not_locked(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
