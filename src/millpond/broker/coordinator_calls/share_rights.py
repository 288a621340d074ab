"""The rights that requests about the offsets of share groups need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.broker.authorization.required_rights import Need, Rights, on_each

READ_TOPIC = Need(Operation.READ, AclResource.TOPIC)


def on_topics(refuse: Callable[[Any, ErrorCode], Any]) -> Rights:
    """The right to read each topic whose offsets change."""
    return on_each(
        *READ_TOPIC,
        of="topics",
        named=lambda topic: topic.topic_name,
        refuse=refuse,
        into="responses",
    )
