"""Quotas of users, client ids and addresses: finds, sets and removes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from millpond.remote.cluster import Cluster
from millpond.remote.errors import check
from millpond.wire import messages as m

USER: Final = "user"
CLIENT_ID: Final = "client-id"
ADDRESS: Final = "ip"
KINDS: Final = (USER, CLIENT_ID, ADDRESS)

LIMITS: Final[Mapping[str, str]] = {
    "producer_byte_rate": "bytes written per second",
    "consumer_byte_rate": "bytes read per second",
    "request_percentage": "percent of a core for requests",
    "controller_mutation_rate": "partitions created or deleted per second",
    "connection_creation_rate": "new connections per second",
}
"""The limits, by Kafka's names, and their units."""

_EXACTLY, _DEFAULT, _SPECIFIED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Quota:
    """The entity, by kind, and its limits. A name of None means the default of that kind."""

    entity: Mapping[str, str | None]
    limits: Mapping[str, float] = field(default_factory=dict)


def list_quotas(cluster: Cluster, entity: Mapping[str, str | None] | None = None) -> list[Quota]:
    """All quotas, or exactly those of one entity."""
    components = [
        m.DescribeClientQuotasRequest.ComponentData(
            entity_type=kind, match_type=_DEFAULT if name is None else _EXACTLY, match=name
        )
        for kind, name in (entity or {}).items()
    ]

    def ask() -> list[Quota]:
        response = cluster.any().ask(
            m.DescribeClientQuotasRequest(components=components, strict=entity is not None),
            m.DescribeClientQuotasResponse,
        )
        check(response.error_code, "the quotas cannot be listed", response.error_message)
        quotas = [
            Quota(
                {each.entity_type: each.entity_name for each in entry.entity},
                {each.key: each.value for each in sorted(entry.values, key=lambda value: value.key)},
            )
            for entry in response.entries or ()
        ]
        return sorted(quotas, key=_order)

    return cluster.retrying("ask for the quotas", ask)


def alter_quota(
    cluster: Cluster, entity: Mapping[str, str | None], limits: Mapping[str, float], removed: Collection[str] = ()
) -> None:
    """Sets these limits of the entity and removes those that are `removed`."""
    op = m.AlterClientQuotasRequest.OpData
    entry = m.AlterClientQuotasRequest.EntryData(
        entity=[
            m.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ],
        ops=[
            *(op(key=key, value=value) for key, value in limits.items()),
            *(op(key=key, value=0.0, remove=True) for key in removed),
        ],
    )

    def ask() -> None:
        response = cluster.controller().ask(m.AlterClientQuotasRequest(entries=[entry]), m.AlterClientQuotasResponse)
        for each in response.entries:
            check(each.error_code, "the quota was not changed", each.error_message)

    cluster.retrying("change a quota", ask)


def _order(quota: Quota) -> tuple[tuple[str, bool, str], ...]:
    return tuple((kind, name is not None, name or "") for kind, name in sorted(quota.entity.items()))
