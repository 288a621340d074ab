"""The Java client, which speaks transactions v2: fill, copy exactly once, read, fence; in both group protocols.

Its archives come from Maven Central into a folder of the user's cache. Without Java or the network this is skipped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.groups import NODE_SETTINGS as GROUP_SETTINGS
from support.groups import fetch_offsets
from support.node import Node
from support.raw_transactions import NODE_SETTINGS, committed_values, state_of

SOURCE = Path(__file__).parent / "java" / "CopyExactlyOnce.java"
REGISTRY = "https://repo.maven.apache.org/maven2/"
ARCHIVES = {
    "org/apache/kafka/kafka-clients/4.4.0/kafka-clients-4.4.0.jar": (
        "1ab07317eb6633241392449d329dbdc5d9251e6ffc4926860f42dd966e88bdf9"
    ),
    "org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36.jar": (
        "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0"
    ),
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millpond-tests"
RECORDS = 100


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    running = Node(tmp_path_factory.mktemp("java"), {**GROUP_SETTINGS, **NODE_SETTINGS}).start()
    yield running
    running.kill9()


@pytest.fixture(scope="module")
def classpath(tmp_path_factory):
    """Our program, compiled, and what it needs."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("there is no Java here")
    archives = [str(archive(path, digest)) for path, digest in ARCHIVES.items()]
    folder = tmp_path_factory.mktemp("classes")
    words = ["javac", "-nowarn", "-cp", os.pathsep.join(archives), "-d", str(folder), str(SOURCE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return os.pathsep.join([str(folder), *archives])


def archive(path: str, digest: str) -> Path:
    found = CACHE / path.rpartition("/")[2]
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(REGISTRY + path, timeout=30) as reply:
                data = reply.read()
        except (urllib.error.URLError, OSError) as fault:
            pytest.skip(f"Maven Central does not answer: {fault}")
        # Two test processes may fetch it at the same time.
        partial = found.with_name(f"{found.name}.{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(found)
    assert hashlib.sha256(found.read_bytes()).hexdigest() == digest, f"{found} is not what it should be"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_client_copies_exactly_once(node, raw, topic, classpath, protocol):
    source, target = f"{topic}-in", f"{topic}-out"
    raw.create_topic(source, 2)
    raw.create_topic(target, 2)
    words = ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath, "CopyExactlyOnce"]
    done = subprocess.run(
        [*words, node.bootstrap, source, target, protocol], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *values, fencing = done.stdout.split("\n")[:-1]
    assert fencing == "fenced"
    assert sorted(map(int, values)) == list(range(RECORDS))
    for partition in range(2):
        copied = [int(value) for value in committed_values(raw, target, partition)]
        assert copied == list(range(partition, RECORDS, 2))
    committed = fetch_offsets(raw, source)
    assert committed.keys() == {(source, 0), (source, 1)}
    assert min(committed.values()) > RECORDS // 2
    # Every end of a transaction has raised the epoch: this was version 2 of the protocol.
    assert state_of(raw, "java-filler").producer_epoch >= 10
