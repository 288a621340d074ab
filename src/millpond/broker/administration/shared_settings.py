"""Settings that decide which records are committed and who may lead: they must be the same on every node.

The controller elects leaders by its own values, and a leader commits by its own. Where a node was started with
another value than the controller, and the cluster has none in its metadata, records may be acknowledged that an
election loses. The same holds for the times from which both sides compute leases (`quorum/lease.py`). The node logs
the difference when it registers.

The metadata of a cluster has `min.insync.replicas` from its formation on. A node that was started with another value
logs that its own has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millpond.base.errors import Refused, RemoteError
from millpond.broker.peers.controller_channel import NO_NODE, SHOWN_MS
from millpond.config.node import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS, NODE
from millpond.config.topic import FLUSH_ACK, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE
from millpond.metadata.image import ALL_BROKERS
from millpond.metadata.records import ResourceType
from millpond.wire import messages as m

if TYPE_CHECKING:
    from millpond.broker.context import MetadataContext, NodeContext

VERSION: Final = 4

SHARED: Final = tuple(str(each.inherits) for each in (MIN_INSYNC_REPLICAS, FLUSH_ACK, UNCLEAN_LEADER_ELECTION_ENABLE))

SET_FOR_ALL: Final = (
    "a setting differs from the controller's: set it for the whole cluster (`millpond config set node all {}=VALUE`)"
)
SET_ON_EACH: Final = (
    "a setting differs from the controller's: set it equally on all nodes and restart them, or two nodes may "
    "briefly lead one partition"
)
LEASE_TIMES: Final = (BROKER_HEARTBEAT_INTERVAL_MS.name, BROKER_SESSION_TIMEOUT_MS.name)
"""Read once at start, so they cannot be set for the whole cluster."""


def compare_with_controller(node: NodeContext, metadata: MetadataContext) -> None:
    """Log each shared setting that has another value on this node than on the controller or in the metadata."""
    for name in SHARED:
        in_force = metadata.image.config_of(ALL_BROKERS).get(name)
        setting = NODE.get(name)
        if in_force is None or name not in node.layers.static.overrides:
            continue
        at_start = setting.show(node.layers.static.overrides[name])
        if at_start != in_force:
            node.journal(
                "a setting of this node has no effect: the cluster's value is in force, change it there "
                f"(`millpond config set node all {name}=VALUE`)",
                setting=name,
                here=at_start,
                cluster=in_force,
            )
    controller_id = metadata.controller.leader_id
    if controller_id in (NO_NODE, node.node_id):
        return
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=ResourceType.BROKER,
        resource_name=str(controller_id),
        configuration_keys=[*SHARED, *LEASE_TIMES],
    )

    def compare(response: m.DescribeConfigsResponse) -> None:
        for result in response.results:
            for theirs in result.configs:
                ours = node.layers.effective(NODE.get(theirs.name)).text
                if theirs.value != ours:
                    node.journal(
                        SET_FOR_ALL.format(theirs.name) if theirs.name in SHARED else SET_ON_EACH,
                        setting=theirs.name,
                        here=ours,
                        controller=theirs.value,
                        controller_id=controller_id,
                    )

    def give_up(fault: Exception) -> None:
        if not isinstance(fault, Refused | RemoteError):
            raise fault

    metadata.controller_channel.ask(m.DescribeConfigsRequest(resources=[resource]), VERSION, SHOWN_MS).then(
        compare, give_up
    )
