"""What members of share groups may read and acknowledge, while their rights change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.test_rights import ADMIN, ALICE, TEXTS, AclNode
from tests.support.rights_cases import READ_CREW, READ_POND
from tests.support.share_members import ACCEPT, Member, acquired, codes, initialize, results

from millpond.base.errors import ErrorCode


class Crew:
    def __init__(self, make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> None:
        self.node = AclNode(make_server(dict(TEXTS)))
        self.server = self.node.server
        initialize(self.server, group="crew", start_offset=1)
        self.batch = make_batch

    def append(self, value: bytes) -> None:
        self.server.broker.partitions.get("pond", 0).append(self.batch(value), zstd=True)

    def member(self, member_id: str, principal: Any = ALICE) -> Member:
        return Member(self.server, member_id, group="crew", caller=self.node.caller(principal))


@pytest.fixture
def crew(make_server: Callable[..., Any], make_batch: Callable[..., memoryview]) -> Crew:
    return Crew(make_server, make_batch)


def test_a_member_that_loses_its_right_gets_nothing_more(crew: Crew) -> None:
    crew.node.only(READ_CREW, READ_POND)
    member = crew.member("m")
    crew.append(b"a")
    assert len(acquired(member.fetch(0))) == 1
    member.send_fetch(max_wait_ms=5_000)
    crew.server.run(100)
    crew.node.only(READ_CREW)
    crew.append(b"b")
    crew.server.run(100)
    (response,) = member.caller.replies()
    assert codes(response) == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)]
    assert results(member.acknowledge((1, 1, ACCEPT))) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    response = member.fetch(acknowledgements=[(1, 1, ACCEPT)])
    assert codes(response) == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    crew.node.only()
    assert member.fetch().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert member.acknowledge((1, 1, ACCEPT)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_the_member_id_of_another_client_cannot_be_taken(crew: Crew) -> None:
    crew.node.only(READ_CREW, READ_POND)
    crew.append(b"a")
    member, thief = crew.member("m", ADMIN), crew.member("m")
    assert len(acquired(member.fetch(0))) == 1
    assert thief.fetch(0).error_code == ErrorCode.INVALID_REQUEST
    assert thief.acknowledge((1, 1, ACCEPT), epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert results(member.acknowledge((1, 1, ACCEPT))) == [0]
