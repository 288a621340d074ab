"""Creating a topic, on any cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millpond.base.errors import ErrorCode
from millpond.remote.cluster import Cluster
from millpond.remote.errors import ClientError, check
from millpond.wire import messages as m

BY_DEFAULT: Final = -1
"""The cluster's default number of partitions or replicas."""


class TopicExists(ClientError):
    """A topic of this name exists."""


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = BY_DEFAULT,
    replicas: int = BY_DEFAULT,
    settings: Mapping[str, str] | None = None,
) -> None:
    kind = m.CreateTopicsRequest
    topic = kind.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[kind.CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()],
    )
    request = kind(topics=[topic], timeout_ms=cluster.patience_ms)

    def attempt() -> None:
        (result,) = cluster.controller().ask(request, m.CreateTopicsResponse).topics
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            raise TopicExists(
                f"Topic {name} exists already: see it with `millpond topic describe {name}`, "
                "or add --if-not-exists if that is fine."
            )
        if result.error_code == ErrorCode.NOT_CONTROLLER:
            # On older clusters only the controller creates topics: find out who it is now.
            cluster.topics([])
        check(result.error_code, f"Topic {name} was not created", result.error_message)

    cluster.retrying(f"create topic {name}", attempt)
    cluster.forget(name)
