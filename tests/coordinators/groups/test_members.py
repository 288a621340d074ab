"""Members: from a request, to a record and back."""

from millpond.coordinators.groups.members import (
    member_from_join,
    member_from_record,
    new_member_id,
    protocols_of,
    rebalance_timeout_of,
)
from millpond.coordinators.shard import Request
from millpond.wire.messages import GroupMetadataValue, JoinGroupRequest

Protocol = JoinGroupRequest.JoinGroupRequestProtocol


def body() -> JoinGroupRequest:
    protocols = [
        Protocol(name="b", metadata=b"1"),
        Protocol(name="a", metadata=b"2"),
        Protocol(name="b", metadata=b"3"),
    ]
    return JoinGroupRequest(session_timeout_ms=5, rebalance_timeout_ms=7, group_instance_id="i", protocols=protocols)


def test_first_protocol_of_a_name_counts_and_order_stays() -> None:
    assert protocols_of(body()) == (("b", b"1"), ("a", b"2"))


def test_votes_for_what_it_likes_best() -> None:
    member = member_from_join(Request(body(), 9, None), body(), "m")
    assert member.vote({"a", "b", "c"}) == "b"
    assert member.vote({"a"}) == "a"


def test_record_keeps_the_protocol_that_was_chosen() -> None:
    member = member_from_join(Request(body(), 9, None, "client", "/host"), body(), "m")
    assert member.is_new
    back = member_from_record(member.as_record("a", b"given"), "a")
    assert back.protocols == (("a", b"2"),)
    assert (back.id, back.instance_id, back.client_id, back.client_host) == ("m", "i", "client", "/host")
    assert (back.session_timeout_ms, back.rebalance_timeout_ms, back.assignment) == (5, 7, b"given")
    assert not back.is_new


def test_session_timeout_stands_for_a_rebalance_timeout_that_is_not_there() -> None:
    assert rebalance_timeout_of(JoinGroupRequest(session_timeout_ms=5)) == 5
    record = GroupMetadataValue.MemberMetadata(session_timeout=5, rebalance_timeout=-1)
    assert member_from_record(record, None).rebalance_timeout_ms == 5


def test_ids_stay_short() -> None:
    assert new_member_id("client", None, "u") == "client-u"
    assert new_member_id("client", "instance", "u") == "instance-u"
    assert len(new_member_id("c" * 30_000, None, "u")) == 251
