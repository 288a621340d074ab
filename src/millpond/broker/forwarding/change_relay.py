"""A client's change that is forwarded to the controller, and answered once this node has applied it, too.

The client sends its next request to this node, which must not return the old value of a setting just changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later, done, failed
from millpond.broker.peers.controller_channel import SHOWN_MS, forward_ms
from millpond.metadata.topics import METADATA_TOPIC
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext
    from millpond.broker.requests.call import Call

QUORUM_VERSION = 1


def relay_change(metadata: MetadataContext, call: Call, request: m.Message) -> Later[Any]:
    """The controller's response, once what was committed by then is applied here. Refused without a controller."""
    asked = metadata.controller_channel.ask(request, call.version, forward_ms(request), is_change=True)
    return asked.chain(lambda response: caught_up(metadata).map(lambda _: response))


def caught_up(metadata: MetadataContext) -> Later[None]:
    """Ends once what is committed now is applied here, or if this node cannot find out or stays behind."""
    return catch_up(metadata).recover(Refused, lambda _: None)


def catch_up(metadata: MetadataContext) -> Later[None]:
    """Ends once what is committed now is applied here. Refused if this node cannot find out, or stays behind."""
    partition = m.DescribeQuorumRequest.PartitionData(partition_index=0)
    topic = m.DescribeQuorumRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    asked = metadata.controller_channel.ask(
        m.DescribeQuorumRequest(topics=[topic]), QUORUM_VERSION, SHOWN_MS, is_final=_tells_what_is_committed
    )

    def wait(response: m.DescribeQuorumResponse) -> Later[None]:
        committed_offset = response.topics[0].partitions[0].high_watermark

        def is_shown() -> bool:
            return metadata.controller.applied_offset >= committed_offset

        def check(_: None) -> Later[None]:
            behind = Refused(ErrorCode.REQUEST_TIMED_OUT, "this node is behind the controller: try again")
            return done(None) if is_shown() else failed(behind)

        return metadata.once_shown(is_shown, SHOWN_MS).chain(check)

    return asked.chain(wait)


def _tells_what_is_committed(response: m.DescribeQuorumResponse) -> bool:
    """Whether the response has the high watermark of an active controller.

    A leader that has not committed a record of its own epoch may not know the last records its predecessor committed.
    """
    partitions = [each for topic in response.topics for each in topic.partitions]
    return [each.error_code for each in partitions] == [ErrorCode.NONE] and partitions[0].high_watermark >= 0
