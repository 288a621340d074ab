"""Metadata in process: small responses at once, large ones from a worker, both the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millpond.broker.apis import k03_metadata
from millpond.wire import messages as m


@pytest.mark.parametrize("version", range(14))
def test_a_worker_describes_what_the_loop_would(
    make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Ten thousand partitions took a tenth of a second of loop time."""
    server = make_server()
    server.create("pond", 3)
    server.create("weir", 2, cleanup_policy="compact")
    caller = server.connect()
    request = m.MetadataRequest(topics=[] if version == 0 else None)
    at_once = caller.ask(request, version)
    assert [(topic.name, len(topic.partitions)) for topic in at_once.topics] == [("pond", 3), ("weir", 2)]
    monkeypatch.setattr(k03_metadata, "PARTITIONS_AT_ONCE_MAX", 4)
    caller.send(request, version)
    assert caller.replies() == [], "it is with a worker"
    server.run(100)
    assert caller.replies() == [at_once]
