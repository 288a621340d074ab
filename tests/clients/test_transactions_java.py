"""The Java client, which uses transactions v2: fill, copy exactly once, read, fence; in both group protocols.

Without Java or Maven this is skipped.
"""

from __future__ import annotations

import pytest

from support.groups import NODE_SETTINGS as GROUP_SETTINGS
from support.groups import fetch_offsets
from support.java_programs import compiled, run_java
from support.raw_transactions import NODE_SETTINGS, committed_values, state_of

SETTINGS = {**GROUP_SETTINGS, **NODE_SETTINGS}

RECORDS = 100


@pytest.fixture(scope="module")
def classpath(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("classes"))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_client_copies_exactly_once(node, raw, topic, classpath, protocol):
    source, target = f"{topic}-in", f"{topic}-out"
    raw.create_topic(source, 2)
    raw.create_topic(target, 2)
    *values, fencing = run_java(classpath, "CopyExactlyOnce", node.bootstrap, source, target, protocol)
    assert fencing == "fenced"
    assert sorted(map(int, values)) == list(range(RECORDS))
    for partition in range(2):
        copied = [int(value) for value in committed_values(raw, target, partition)]
        assert copied == list(range(partition, RECORDS, 2))
    committed = fetch_offsets(raw, source)
    assert committed.keys() == {(source, 0), (source, 1)}
    assert min(committed.values()) > RECORDS // 2
    # The end of every transaction has bumped the epoch: this was version 2 of the protocol.
    assert state_of(raw, "java-filler").producer_epoch >= 10
