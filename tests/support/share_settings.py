"""Settings of share groups for tests, and which parts of the broker are there."""

from __future__ import annotations

import pytest

from millpond.config.group import GROUP
from millpond.remote.cluster import Cluster
from millpond.wire import messages as m

needs_delay = pytest.mark.skipif("share.delay.enable" not in GROUP, reason="this broker does not delay records")
needs_broker_letters = pytest.mark.skipif(
    "errors.deadletterqueue.topic.name" not in GROUP, reason="this broker writes no dead letters"
)

SHORT_LOCK = "1000"


def configure(bootstrap: str, group: str, **settings: str) -> None:
    """Set a share group's settings; names have underscores."""
    kind = m.IncrementalAlterConfigsRequest
    changes = [
        kind.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = kind.AlterConfigsResource(resource_type=32, resource_name=group, configs=changes)
    with Cluster({"bootstrap.servers": bootstrap}) as cluster:
        (result,) = cluster.any().ask(kind(resources=[resource]), m.IncrementalAlterConfigsResponse).responses
    assert not result.error_code, result.error_message
