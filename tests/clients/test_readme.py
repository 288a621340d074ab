"""The quick start in the README, on a clean copy of the tree: make up, then the commands of the second terminal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.patience import with_time

TREE = Path(__file__).parent.parent.parent
INSTALL_SECONDS_MAX = 300
STEP_SECONDS_MAX = 60


def packages_fault(folder):
    """Why pip, as this machine configures it, cannot get packages; None if it can."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", str(folder), "click"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=STEP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return f"no answer within {STEP_SECONDS_MAX} s"
    return None if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def clean_copy(tmp_path):
    """What a fresh clone would hold: every file that is tracked or about to be, and no build output."""
    if not (TREE / ".git").exists() or shutil.which("git") is None or shutil.which("make") is None:
        pytest.skip("needs git, make and a checkout to copy")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=TREE, capture_output=True, text=True, check=True, timeout=STEP_SECONDS_MAX,
    )  # fmt: skip
    copy = tmp_path / "clone"
    for name in listed.stdout.splitlines():
        if (TREE / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, copy / name)
    return copy


def address_announced_by(process, log):
    """The address that the node reports, once it listens."""
    deadline = time.monotonic() + INSTALL_SECONDS_MAX
    while time.monotonic() < deadline:
        text = log.read_text()
        found = re.search(r"listens on\s+(127\.0\.0\.1:\d+)", text)
        stop = re.search(r"kill (\d+)", text)
        if found and stop:
            return found.group(1), int(stop.group(1))
        assert process.poll() is None, f"make up ended: {text[-3000:]}"
        time.sleep(0.05)
    raise AssertionError(f"make up took more than {INSTALL_SECONDS_MAX} s: {log.read_text()[-3000:]}")


@with_time
@pytest.mark.timeout(INSTALL_SECONDS_MAX + 6 * STEP_SECONDS_MAX)
def test_the_start_of_the_readme_works_on_a_clean_copy(clean_copy, tmp_path):
    if fault := packages_fault(tmp_path / "packages"):
        pytest.skip(f"pip gets no packages: {fault}")
    log = tmp_path / "make.txt"
    # As from a plain terminal, without the environment of these tests. But without optimization, for a quick build.
    environment = {name: text for name, text in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= {"CFLAGS": "-O0", "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["make", "up", f"ARGS=--listen 127.0.0.1:0 --data {tmp_path / 'pond'}"],
            cwd=clean_copy, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        address, node_pid = address_announced_by(process, log)
        steps = re.findall(
            r"(?m)^ *(making|updating|installing|downloading|building)\b", log.read_text(), re.IGNORECASE
        )
        assert len(steps) >= 5, "each wait says what it waits for"

        def millpond(*words, text=None):
            done = subprocess.run(
                [clean_copy / ".venv/bin/millpond", *words, "-b", address],
                input=text, capture_output=True, text=True, check=False, timeout=STEP_SECONDS_MAX, env=environment,
            )  # fmt: skip
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            return done.stdout

        millpond("topic", "create", "purchases", "--partitions", "3")
        millpond("produce", "purchases", text='{"purchase": 1}\n')
        assert '{"purchase": 1}' in millpond("consume", "purchases", "--from", "beginning", "--until-end")
        os.kill(node_pid, signal.SIGTERM)
        assert process.wait(STEP_SECONDS_MAX) == 0, log.read_text()[-2000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "Traceback" not in log.read_text()


def test_every_command_of_the_readme_is_tried_above():
    readme = (TREE / "README.md").read_text()
    for words in (
        "make up",
        "topic create purchases --partitions 3",
        "consume purchases --from beginning --until-end",
    ):
        assert words in readme


def test_no_address_of_a_registry_stands_in_the_tree():
    """Packages come through pip, Maven and apt with the machine's settings, which may name better registries."""
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("repo", "maven"), ("maven", "org"), ("npmjs", "org"))]
    listed = subprocess.run(["git", "ls-files"], cwd=TREE, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs git and a checkout")
    for name in listed.stdout.splitlines():
        if (TREE / name).is_file():
            text = (TREE / name).read_text(encoding="utf-8", errors="ignore")
            assert not [host for host in hosts if host in text], name
