"""The short paths of consumers and members check the same permissions as the general ones, on every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.test_rights import TEXTS, AclNode
from tests.support.rights_cases import build

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource, Operation
from millpond.wire import messages as m

READ_POND = (Operation.READ, AclResource.TOPIC, "pond")
READ_CREW = (Operation.READ, AclResource.GROUP, "crew")
FETCH = {"max_wait_ms": 1_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
KEYS = (1, 8, 12, 68)


class CountingNode(AclNode):
    """The node of the permission tests, which counts requests on the short path."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.taken = dict.fromkeys(KEYS, 0)
        for key in KEYS:
            entry = server.broker.dispatcher._entries[key]
            entry.api = replace(entry.api, short=self._counted(key, entry.api.short))

    def _counted(self, key: int, short: Callable[..., bool]) -> Callable[..., bool]:
        def counted(*args: Any) -> bool:
            is_taken = short(*args)
            self.taken[key] += is_taken
            return is_taken

        return counted

    def fetch(self, offset: int) -> dict[str, Any]:
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        return FETCH | {"topics": [{"topic": "pond", "partitions": [wanted]}]}

    def commit(self, member: dict[str, Any]) -> int:
        committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        values = {
            "group_id": "crew",
            "member_id": member["member_id"],
            "generation_id_or_member_epoch": member["generation_id"],
            "topics": [{"name": "pond", "partitions": [committed]}],
        }
        return int(self.ask(self.alice, 8, 8, values).topics[0].partitions[0].error_code)

    def joined(self) -> dict[str, Any]:
        joins = {
            "group_id": "crew",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        reply = self.ask(self.alice, 11, 3, joins)
        member = {"group_id": "crew", "generation_id": reply.generation_id, "member_id": reply.member_id}
        self.ask(self.alice, 14, 3, {**member, "assignments": []})
        return member


@pytest.fixture
def host(make_server: Callable[..., Any]) -> CountingNode:
    return CountingNode(make_server(dict(TEXTS)))


def test_a_fetch_by_who_may_not_read_is_refused_and_noted(host: CountingNode) -> None:
    (partition,) = host.ask(host.alice, 1, 12, host.fetch(0)).responses[0].partitions
    assert (partition.error_code, partition.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert host.taken[1] == 0
    host.grant(READ_POND)
    (partition,) = host.ask(host.alice, 1, 12, host.fetch(0)).responses[0].partitions
    assert partition.error_code == 0
    assert len(partition.records) > 0
    assert host.taken[1] == 1


def test_a_pending_fetch_that_loses_its_right_returns_only_the_error(host: CountingNode) -> None:
    host.grant(READ_POND)
    end_offset = host.server.broker.partitions.get("pond", 0).log.end_offset
    host.ask(host.alice, 1, 12, host.fetch(0))
    host.alice.send(build(m.FetchRequest, host.fetch(end_offset)), 12)
    assert host.taken[1] == 2
    host.take_all()
    assert host.alice.replies() == []
    host.ask(host.admin, 0, 9, {"acks": 1, "topic_data": [host._to_pond()]})
    (answer,) = host.alice.replies()
    (partition,) = answer.responses[0].partitions
    assert (partition.error_code, partition.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


def test_members_need_the_right_each_time(host: CountingNode) -> None:
    host.grant(READ_CREW, READ_POND)
    member = host.joined()
    assert host.ask(host.alice, 12, 4, member).error_code == 0
    assert host.commit(member) == 0
    assert (host.taken[12], host.taken[8]) == (1, 1)
    host.take_all()
    assert host.ask(host.alice, 12, 4, member).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert host.commit(member) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    host.grant(READ_CREW)
    assert host.ask(host.alice, 12, 4, member).error_code == 0
    assert host.commit(member) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (host.taken[12], host.taken[8]) == (2, 1)
