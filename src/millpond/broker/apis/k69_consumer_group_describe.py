"""ConsumerGroupDescribe (69), versions 0-1: state, epochs, members and assignments of groups of the new protocol.

1 which protocol each member speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, Screened, both
from millpond.broker.coordinator_calls.group_calls import handler_for_groups
from millpond.broker.coordinator_calls.group_rights import on_groups
from millpond.broker.requests.call import Call
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext

SEE_TOPIC = Need(Operation.DESCRIBE, AclResource.TOPIC)


def _screen(metadata: MetadataContext, call: Call, request: m.ConsumerGroupDescribeRequest) -> Screened | None:
    """A group that reads a topic which the client may not describe is not described."""
    if call.is_unlimited:
        return None

    def adjust(response: m.ConsumerGroupDescribeResponse) -> m.ConsumerGroupDescribeResponse:
        for group in response.groups:
            if not all(call.may(*SEE_TOPIC, name) for name in _topics_of(group)):
                group.error_code, group.error_message = (
                    SEE_TOPIC.refusal,
                    "the group reads topics that you may not see",
                )
                group.members = []
        return response

    return Screened(request, adjust=adjust)


def _topics_of(group: m.ConsumerGroupDescribeResponse.DescribedGroup) -> set[str]:
    assignments = [part for each in group.members for part in (each.assignment, each.target_assignment)]
    names = {topic.topic_name for each in assignments for topic in each.topic_partitions}
    return names.union(*(each.subscribed_topic_names for each in group.members))


API = Api(
    key=69,
    name="ConsumerGroupDescribe",
    versions=(0, 1),
    handle=handler_for_groups("group_ids", "groups"),
    lists="group_ids",
    pieces=(way("group_ids", "groups", once=str, one_by_one=True),),
    rights=both(
        on_groups(Operation.DESCRIBE, "group_ids", "groups", m.ConsumerGroupDescribeResponse.DescribedGroup),
        Rights((SEE_TOPIC,), _screen),
    ),
)
