"""What a leader remembers of partitions that a follower no longer fetches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.test_replica_sessions import COUNT, FOLLOWER, ReplicatedLeader

from millpond.broker.fetch import replica_sessions


def test_a_session_remembers_a_limited_number_of_forgotten_partitions(
    make_server: Callable[..., Any], make_batch: Callable[..., memoryview], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deleted partition once stayed in the memory of the session."""
    monkeypatch.setattr(replica_sessions, "FORGOTTEN_MAX", 1, raising=False)
    replicas = ReplicatedLeader(make_server(), make_batch)
    replicas.begin({0: 0})
    session = replicas.server.broker.contexts.data.replica_sessions._sessions[FOLLOWER]
    for index in range(COUNT):
        replicas.write(index)
        replicas.ask({index: 0}, wait_ms=0)
        replicas.settle()
        assert len(session._sent) <= 2
        replicas.ask(forgotten=(index,), wait_ms=0)
        replicas.settle()
    assert len(session._sent) == 1
