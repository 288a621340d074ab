"""Topic creation through this node, for a client or for the node itself.

The controller decides. The client is answered once this node's image has the topics, too, because it will ask this
node for their leaders next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done
from millpond.broker.peers.controller_channel import SHOWN_MS
from millpond.metadata.image import INTERNAL_TOPICS
from millpond.metadata.topics import NewTopic
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

VERSION = 7
"""The CreateTopics version of a node's own requests."""

CREATE_MS = 10_000

UNFENCED_WAIT_MS_MAX = 5_000
"""How long a client's new partitions wait for brokers when none can lead one."""


def once_placeable(metadata: MetadataContext, timeout_ms: int) -> Later[None]:
    """Ends once most brokers are unfenced, or when the time is over. It does not wait if any broker can lead now.

    A cluster that was just started names its brokers in Metadata before the first of them is unfenced. A client that
    creates a topic then would be refused, which no client retries. The node that the client asked waits, not the
    controller: the connection between the two also carries heartbeats, whose responses would be held up.
    """

    def active() -> int:
        return sum(each.is_active for each in metadata.image.brokers.values())

    if active():
        return done(None)
    within_ms = min(max(timeout_ms, 0), UNFENCED_WAIT_MS_MAX)
    return metadata.once_shown(lambda: 2 * active() > len(metadata.image.brokers), within_ms)


def create_topics(
    metadata: MetadataContext, request: m.CreateTopicsRequest, version: int, timeout_ms: int
) -> Later[m.CreateTopicsResponse]:
    """The controller's response, once this node's image shows the topics. Refused where there is no controller."""
    return once_made(metadata, request, metadata.controller_channel.ask(request, version, timeout_ms))


def once_made(
    metadata: MetadataContext, request: m.CreateTopicsRequest, asked: Later[m.CreateTopicsResponse]
) -> Later[m.CreateTopicsResponse]:
    """The same for a response that is on its way."""

    def once_shown(response: m.CreateTopicsResponse) -> Later[m.CreateTopicsResponse]:
        there = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        names = [each.name for each in response.topics if each.error_code in there and not request.validate_only]
        shown = metadata.once_shown(lambda: all(name in metadata.image.topics for name in names), SHOWN_MS)
        return shown.map(lambda _: response)

    return asked.chain(once_shown)


def try_create(
    metadata: MetadataContext, topics: Sequence[NewTopic], *, by_broker: bool = False
) -> Later[m.CreateTopicsResponse | None]:
    """The controller's response, or None where there is no controller. Clients cannot create internal topics."""
    request = request_for([each for each in topics if by_broker or each.name not in INTERNAL_TOPICS])
    return create_topics(metadata, request, VERSION, CREATE_MS).recover(Refused, lambda _: None)


def request_for(topics: Sequence[NewTopic]) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(
        topics=[
            m.CreateTopicsRequest.CreatableTopic(
                name=topic.name,
                num_partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=[],
                configs=[
                    m.CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs
                ],
            )
            for topic in topics
        ],
        timeout_ms=CREATE_MS,
    )
