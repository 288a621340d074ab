"""FindCoordinator (10), versions 0-6: the coordinator of a group, a transactional id or a share partition.

1 key type · 3 flexible · 4 several keys at once · 5 transactions v2 · 6 share groups. The first request creates the
coordinator's internal topic. The coordinator is the leader of its partition in the image; between two leaders it is
one of the replicas, which answers NOT_COORDINATOR until it leads. The key of a share partition has the form
`group:topicId:partition`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millpond.base.errors import ErrorCode, Refused
from millpond.base.later import Later
from millpond.base.named_tuple import NamedTuple
from millpond.base.rights import CLUSTER_NAME, AclResource, Operation
from millpond.broker.authorization.required_rights import NOT_AUTHORISED, Need, by_handler
from millpond.broker.loop.steps import Steps, run_steps
from millpond.broker.requests.call import Call
from millpond.broker.requests.replies import Outcome
from millpond.broker.responses.partition_states import likely_leader
from millpond.broker.serving.api import Api
from millpond.broker.serving.pieces import way
from millpond.coordinators.runtime import KEY_LENGTH_MAX
from millpond.coordinators.shares.keys import parse_coordinator_key
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import CoordinationContext, DataContext, MetadataContext, NodeContext
    from millpond.broker.coordination.coordination import Coordination

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY_KEYS_FROM = 4
SHARE_FROM = 6
CHARACTERS_AT_ONCE, CHARACTERS_PER_KEY = 50_000, 100
"""Keys and characters that the loop handles in one step, which takes a few milliseconds."""

NEEDS = {
    GROUP: Need(Operation.DESCRIBE, AclResource.GROUP),
    TRANSACTION: Need(Operation.DESCRIBE, AclResource.TRANSACTIONAL_ID),
}
FOR_NODES = Need(Operation.CLUSTER_ACTION, AclResource.CLUSTER)


def handle(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    coordination: CoordinationContext,
    call: Call,
    request: m.FindCoordinatorRequest,
) -> Outcome:
    keys = request.coordinator_keys if call.version >= MANY_KEYS_FROM else [request.key]
    refused = _refused(call, request.key_type, keys)
    # A key may be named twice. If all of them are refused, not even the coordinator's topic is created.
    coordinator_runtime = _coordinator_runtime(coordination, call, request.key_type)
    if coordinator_runtime is None or all(key in refused for key in keys):
        return _answer(call, keys, [refused.get(key, _UNKNOWN_KIND) for key in keys])

    def find(_: None = None) -> Later[m.FindCoordinatorResponse]:
        check = _check_share_partition if request.key_type == SHARE else _no_check
        return run_steps(node.clock, _find(node, metadata, data, call, coordinator_runtime, keys, check)).map(answer)

    def answer(found: list[_Coordinator]) -> m.FindCoordinatorResponse:
        return _answer(call, keys, [refused.get(key, each) for key, each in zip(keys, found, strict=True)])

    return find() if coordinator_runtime.is_open else coordination.open_coordination(coordinator_runtime).chain(find)


def _coordinator_runtime(coordination: CoordinationContext, call: Call, key_type: int) -> Coordination[Any] | None:
    if key_type == SHARE and call.version < SHARE_FROM:
        return None
    runtimes: dict[int, Coordination[Any]] = {
        GROUP: coordination.groups,
        TRANSACTION: coordination.transactions,
        SHARE: coordination.shares,
    }
    return runtimes.get(key_type)


def _refused(call: Call, key_type: int, keys: list[str]) -> dict[str, _Coordinator]:
    """The keys that the client may not describe; for share groups, all keys unless a node asks."""
    if not call.access.is_on:
        return {}
    need = NEEDS.get(key_type, FOR_NODES)
    refused = _Coordinator(need.refusal, NOT_AUTHORISED)
    return {key: refused for key in keys if not call.demand(*need, CLUSTER_NAME if need is FOR_NODES else key)}


class _Coordinator(NamedTuple):
    """The coordinator of one key, or the error in its place."""

    code: ErrorCode
    message: str
    node_id: int = -1
    host: str = ""
    port: int = -1


_UNKNOWN_KIND = _Coordinator(ErrorCode.INVALID_REQUEST, "this type of key has no coordinator")
_NO_TOPIC = _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's internal topic could not be created")
_NO_LEADER = _Coordinator(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's partition has no leader at the moment"
)


_TOO_LONG = _Coordinator(
    ErrorCode.INVALID_REQUEST, f"no group or transactional id has more than {KEY_LENGTH_MAX} characters here"
)


def _check_share_partition(key: str) -> _Coordinator | None:
    try:
        parse_coordinator_key(key)
    except Refused as refused:
        return _Coordinator(refused.code, str(refused))
    return None


def _no_check(key: str) -> None: ...


def _find(
    node: NodeContext,
    metadata: MetadataContext,
    data: DataContext,
    call: Call,
    coordinator_runtime: Coordination[Any],
    keys: list[str],
    check: Callable[[str], _Coordinator | None],
) -> Steps[list[_Coordinator]]:
    if not coordinator_runtime.is_open:
        return [_NO_TOPIC for _ in keys]
    addresses = node.addresses_for(call.connection, with_fenced=True)
    nodes = {node_id: (host, port) for node_id, host, port, _ in addresses}
    alive = {node_id for node_id in nodes if not metadata.image.brokers[node_id].fenced}
    # Kafka sends the message NONE for a single key, and no message for several.
    message = "NONE" if call.version < MANY_KEYS_FROM else ""
    coordinators = []
    characters = 0
    for key in keys:
        if characters > CHARACTERS_AT_ONCE:
            characters = 0
            yield None
        if len(key) > KEY_LENGTH_MAX:
            coordinators.append(_TOO_LONG)
            continue
        characters += CHARACTERS_PER_KEY + len(key)
        if (malformed := check(key)) is not None:
            coordinators.append(malformed)
            continue
        index = coordinator_runtime.partition_of(key)
        partition = metadata.image.partition(coordinator_runtime.topic, index)
        if partition is None:
            coordinators.append(_NO_LEADER)
            continue
        leader = likely_leader(node, metadata, data, coordinator_runtime.topic, index, partition)
        # librdkafka asks for the coordinator before it commits the offsets of a transaction. After three answers
        # without one it waits forever for a connection to change. Sent to the wrong node, it retries.
        likely = [each for each in (leader, *partition.isr, *partition.elr, *partition.replicas) if each in nodes]
        found = next((each for each in likely if each in alive), likely[0] if likely else None)
        coordinators.append(
            _NO_LEADER if found is None else _Coordinator(ErrorCode.NONE, message, found, *nodes[found])
        )
    return coordinators


def _answer(call: Call, keys: list[str], coordinators: list[_Coordinator]) -> m.FindCoordinatorResponse:
    if call.version < MANY_KEYS_FROM:
        (only,) = coordinators
        return m.FindCoordinatorResponse(
            error_code=only.code, error_message=only.message, node_id=only.node_id, host=only.host, port=only.port
        )
    return m.FindCoordinatorResponse(
        coordinators=[
            m.FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=each.node_id,
                host=each.host,
                port=each.port,
                error_code=each.code,
                error_message=each.message,
            )
            for key, each in zip(keys, coordinators, strict=True)
        ]
    )


API = Api(
    key=10,
    name="FindCoordinator",
    versions=(0, 6),
    handle=handle,
    lists="coordinator_keys",
    pieces=(way("coordinator_keys", "coordinators", once=str, one_by_one=True),),
    rights=by_handler(*NEEDS.values(), FOR_NODES),
)
