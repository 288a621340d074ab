"""Versions that Kafka 4.4 added and the other oracles do not know: bytes as franz-go (kmsg 1.15) writes them."""

from __future__ import annotations

import pytest

from millpond.wire import messages as m


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "data"),
    [
        (None, -1, "046b676f07312e32322e3200ffffffff00"),
        ("pond", 3, "046b676f07312e32322e3205706f6e640000000300"),
    ],
)
def test_api_versions_request_5(cluster_id: str | None, node_id: int, data: str) -> None:
    request = m.ApiVersionsRequest(
        client_software_name="kgo", client_software_version="1.22.2", cluster_id=cluster_id, node_id=node_id
    )
    assert request.encode(5).hex() == data
    assert m.ApiVersionsRequest.decode(bytes.fromhex(data), 5) == (request, len(data) // 2)
