"""The checks that transcripts do not reach one by one."""

from __future__ import annotations

from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode, Refused
from millpond.coordinators.groups.consumer.checks import check_epoch, check_member_epoch, check_request, known_member
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import (
    ClassicProtocols,
    CurrentAssignment,
    Member,
    MemberMetadata,
    Partitions,
    TopicIdPartition,
)
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.metadata.image import Image
from millpond.wire import messages as m

P0, P1 = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=1), 1)


@pytest.mark.parametrize(
    ("epoch", "owned", "passes"),
    [
        (5, None, True),
        (5, frozenset([P1]), True),
        (4, frozenset([P0]), True),
        (4, frozenset(), True),
        (4, None, False),
        (4, frozenset([P0, P1]), False),
        (3, frozenset(), False),
        (6, frozenset(), False),
    ],
)
def test_epochs(epoch: int, owned: Partitions | None, passes: bool) -> None:
    member = Member("m", current=CurrentAssignment(5, 4, assigned=frozenset([P0])))
    if passes:
        check_epoch(member, epoch, owned)
        return
    with pytest.raises(Refused) as refused:
        check_epoch(member, epoch, owned)
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_one_that_is_away_is_not_behind() -> None:
    member = Member("m", current=CurrentAssignment(-2, 4, assigned=frozenset([P0])))
    with pytest.raises(Refused, match="join again"):
        check_epoch(member, 4, frozenset())


def test_an_empty_group_id() -> None:
    with pytest.raises(Refused, match="group id"):
        check_request(
            m.ConsumerGroupHeartbeatRequest(member_id="m", member_epoch=1),
            1,
            ConsumerGroupSettings(),
            PatternTopics(Image()),
        )


def test_choices_are_not_looked_at_when_a_member_leaves() -> None:
    body = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1, server_assignor="gone")
    check_request(body, 1, ConsumerGroupSettings(), PatternTopics(Image()))


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("m", None, None),
        ("m", "i", None),
        ("n", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("m", "j", ErrorCode.UNKNOWN_MEMBER_ID),
        ("n", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_sends(member_id: str, instance_id: str | None, code: ErrorCode | None) -> None:
    draft = Draft("g", GroupState())
    draft.set_metadata("m", MemberMetadata(instance_id="i"))
    if code is None:
        assert known_member(draft.state, member_id, instance_id).id == "m"
        return
    with pytest.raises(Refused) as refused:
        known_member(draft.state, member_id, instance_id)
    assert refused.value.code is code


def test_each_protocol_has_its_own_word_for_an_old_epoch() -> None:
    draft = Draft("g", GroupState())
    draft.set_metadata("classic", MemberMetadata(classic=ClassicProtocols(1, ())))
    draft.set_metadata("new", MemberMetadata())
    codes = []
    for member_id in ("classic", "new"):
        with pytest.raises(Refused) as refused:
            check_member_epoch(draft.state, member_id, 9, stale=ErrorCode.STALE_MEMBER_EPOCH)
        codes.append(refused.value.code)
    assert codes == [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH]
