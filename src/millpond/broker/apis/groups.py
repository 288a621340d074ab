"""The APIs that are one question to the coordinator of a group, or of each of several groups, a line each.

OffsetCommit (8), how far a group has read: 5 no retention time · 6 leader epoch · 7 static members · 8 flexible ·
9 member epochs of the new protocol · 10 topic ids.
JoinGroup (11), a consumer joins, or comes back after a rebalance began: 1 rebalance timeout · 4 a member id is handed
out first · 5 static members · 6 flexible · 7 protocol type · 8 a reason · 9 the leader may be told not to assign.
Heartbeat (12), a member is alive and learns of a rebalance: 1 throttle time · 3 static members · 4 flexible.
LeaveGroup (13), members leave at once instead of timing out: 1 throttle time · 3 several members, static ones too ·
4 flexible · 5 a reason.
SyncGroup (14), the leader hands in the assignment, every member gets its part: 1 throttle time · 3 static members ·
4 flexible · 5 protocol type and name.
DescribeGroups (15), state, protocol and members of classic groups: 3 authorised operations · 4 static members ·
5 flexible · 6 error messages, unknown groups are an error.
DeleteGroups (42), forget empty groups and their offsets: 2 flexible.
OffsetDelete (47), forget offsets of topics that the group no longer reads.
ConsumerGroupHeartbeat (68), join, stay in, and leave by the new protocol (KIP-848): 1 subscription by pattern, the
client makes its own member id.
ConsumerGroupDescribe (69), state, epochs, members and assignments of groups of the new protocol: 1 which protocol
each member speaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode
from millpond.base.later import gather
from millpond.broker.coordination.group_calls import ask_group
from millpond.broker.serving.api import Api
from millpond.broker.serving.authorised_operations import ON_GROUP
from millpond.broker.serving.call import Call
from millpond.broker.serving.replies import Outcome
from millpond.metadata.features import GROUP_VERSION
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.services import Services


def ask(broker: Services, call: Call, request: Any) -> Outcome:
    return ask_group(broker, call, request.group_id, request)


def each_of(names: str, results: str) -> Callable[[Services, Call, Any], Outcome]:
    """Asks for each of the groups that a request has in `names`, and joins what the answers have in `results`."""

    def ask_each(broker: Services, call: Call, request: Any) -> Outcome:
        kind = type(request)
        groups = dict.fromkeys(getattr(request, names))
        parts = [ask_group(broker, call, each, kind(**{names: [each]})) for each in groups]
        return gather(parts).map(lambda answers: join(request, answers))

    def join(request: Any, answers: list[Any]) -> Any:
        joined = [each for answer in answers for each in getattr(answer, results)]
        for each in joined:
            if getattr(request, "include_authorized_operations", False) and not each.error_code:
                each.authorized_operations = ON_GROUP
        return m.response_class(request.API_KEY)(**{results: joined})

    return ask_each


def assigned_by_us(broker: Services, call: Call, request: Any) -> Outcome:
    """Groups of the new protocol are served once group.version says that all nodes read their records."""
    if broker.image.features.get(GROUP_VERSION, 0):
        return ask(broker, call, request)
    return m.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="group.version is 0: use group.protocol=classic, or raise it (millpond cluster upgrade)",
    )


APIS = (
    Api(8, "OffsetCommit", (2, 10), ask, lists="topics"),
    Api(11, "JoinGroup", (0, 9), ask),
    Api(12, "Heartbeat", (0, 4), ask),
    Api(13, "LeaveGroup", (0, 5), ask),
    Api(14, "SyncGroup", (0, 5), ask),
    Api(15, "DescribeGroups", (0, 6), each_of("groups", "groups"), lists="groups"),
    Api(42, "DeleteGroups", (0, 2), each_of("groups_names", "results"), lists="groups_names"),
    Api(47, "OffsetDelete", (0, 0), ask, lists="topics"),
    Api(68, "ConsumerGroupHeartbeat", (0, 1), assigned_by_us),
    Api(69, "ConsumerGroupDescribe", (0, 1), each_of("group_ids", "groups"), lists="group_ids"),
)
