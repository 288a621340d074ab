"""The settings of a share group that its members should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m

OFFSET_RESET: Final = "share.auto.offset.reset"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
DELAY: Final = "share.delay.enable"
"""Only Millpond has it: without it, a release takes effect at once."""
DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"

_GROUP: Final = 32
_OWN_SOURCE: Final = 8
_SET: Final = 0


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    delivery_limit: int | None
    """None if the cluster does not say."""
    delays: bool
    """Whether a release may be delayed."""
    dead_letters: str
    """Where the broker writes what is rejected; empty: nowhere."""
    offset_reset: str
    is_offset_reset_set: bool
    """Whether the group has a value of its own."""


def read_group_settings(cluster: Cluster, group: str) -> ShareGroupSettings:
    kind = m.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(resource_type=_GROUP, resource_name=group, configuration_keys=None)

    def ask() -> dict[str, tuple[str, int]]:
        (result,) = cluster.any().ask(kind(resources=[resource]), m.DescribeConfigsResponse).results
        check(result.error_code, f"the settings of the group {group}", result.error_message)
        return {each.name: (each.value or "", each.config_source) for each in result.configs}

    values = cluster.retrying(f"read the settings of the group {group}", ask)
    limit = values.get(DELIVERY_LIMIT, ("", 0))[0]
    reset, source = values.get(OFFSET_RESET, ("latest", 0))
    return ShareGroupSettings(
        int(limit) if limit.isdecimal() else None,
        values.get(DELAY, ("", 0))[0] == "true",
        values.get(DEAD_LETTERS, ("", 0))[0],
        reset,
        source == _OWN_SOURCE,
    )


def set_offset_reset(cluster: Cluster, group: str, value: str) -> None:
    """Where the group begins to read a partition. Has no effect on partitions that it reads already."""
    kind = m.IncrementalAlterConfigsRequest
    change = kind.AlterableConfig(name=OFFSET_RESET, config_operation=_SET, value=value)
    request = kind(resources=[kind.AlterConfigsResource(resource_type=_GROUP, resource_name=group, configs=[change])])

    def ask() -> None:
        (result,) = cluster.any().ask(request, m.IncrementalAlterConfigsResponse).responses
        check(result.error_code, f"{OFFSET_RESET} of the group {group}", result.error_message)

    cluster.retrying(f"set {OFFSET_RESET} of the group {group}", ask)
