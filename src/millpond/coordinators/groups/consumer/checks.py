"""Request checks of a consumer group. A failed check is a `Refused`."""

from __future__ import annotations

from typing import NoReturn

from millpond.base.errors import ErrorCode, LimitMet, Refused
from millpond.base.words import quoted
from millpond.config.node import GROUP_CONSUMER_MAX_SIZE
from millpond.config.quota import GROUP_MEMBER_MAX_BYTES
from millpond.coordinators.groups.classic_size import check_classic_growth, member_record_bytes
from millpond.coordinators.groups.consumer.members import (
    AWAY_EPOCH,
    LEAVING_EPOCH,
    Member,
    MemberMetadata,
    Partitions,
)
from millpond.coordinators.groups.consumer.pattern_topics import PatternTopics
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.consumer.state import GroupState
from millpond.coordinators.patterns import BadPattern
from millpond.wire import messages as m

OWN_ID_VERSION = 1
"""From this version on members choose their ids, so that a retried join can be recognised."""


def check_request(
    body: m.ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerGroupSettings, patterns: PatternTopics
) -> None:
    """Checks that do not need the group."""
    if not body.group_id:
        _invalid("a group id cannot be empty")
    if body.instance_id == "":
        _invalid("an instance id cannot be empty")
    if body.rack_id == "":
        _invalid("a rack id cannot be empty")
    if body.member_epoch < AWAY_EPOCH:
        _invalid(f"{body.member_epoch} is not a valid member epoch")
    if not body.member_id and (body.member_epoch != 0 or version >= OWN_ID_VERSION):
        _invalid("a member id cannot be empty")
    if body.member_epoch == AWAY_EPOCH and body.instance_id is None:
        _invalid("only a static member (with an instance id) can leave temporarily")
    if body.member_epoch == 0:
        _check_first(body)
    if body.member_epoch >= 0:
        _check_choices(body, settings, patterns)


def _check_first(body: m.ConsumerGroupHeartbeatRequest) -> None:
    if body.rebalance_timeout_ms == -1:
        _invalid("a joining member must send a rebalance timeout")
    if body.topic_partitions is None or body.topic_partitions:
        _invalid("a joining member cannot own partitions")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        _invalid("a joining member must send its subscription")


def _check_choices(
    body: m.ConsumerGroupHeartbeatRequest, settings: ConsumerGroupSettings, patterns: PatternTopics
) -> None:
    if body.server_assignor is not None and body.server_assignor not in settings.assignors:
        offered = ", ".join(settings.assignors)
        raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, f"unknown assignor {body.server_assignor}; there are {offered}")
    if sum(map(len, body.subscribed_topic_names or ())) > settings.member_max_bytes:
        raise LimitMet(
            ErrorCode.POLICY_VIOLATION,
            GROUP_MEMBER_MAX_BYTES.name,
            settings.member_max_bytes,
            f"the topic names of the subscription exceed {GROUP_MEMBER_MAX_BYTES.name}={settings.member_max_bytes}",
        )
    if body.subscribed_topic_regex:
        try:
            patterns.admit(body.subscribed_topic_regex)
        except BadPattern as fault:
            pattern = quoted(body.subscribed_topic_regex)
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern}: {fault}") from None


def _invalid(why: str) -> NoReturn:
    raise Refused(ErrorCode.INVALID_REQUEST, why)


def check_epoch(member: Member, epoch: int, owned: Partitions | None) -> None:
    """A member must send its current epoch. If it missed the last response, it may still send the previous one."""
    if epoch == member.epoch:
        return
    missed_a_reply = (
        epoch == member.current.previous_epoch
        and epoch < member.epoch
        and owned is not None
        and owned <= member.current.assigned
    )
    if not missed_a_reply:
        raise Refused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"the member's epoch is {member.epoch}, not {epoch}; revoke all partitions and join again",
        )


def check_room(state: GroupState, size_max: int) -> None:
    if len(state.members) >= size_max:
        raise LimitMet(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            GROUP_CONSUMER_MAX_SIZE.name,
            size_max,
            f"the group has all of its {GROUP_CONSUMER_MAX_SIZE.name}={size_max} members",
        )


def check_classic_bytes(state: GroupState, old: Member, metadata: MemberMetadata, bytes_max: int) -> None:
    """Refused if its classic members have more metadata than a classic group may: left alone, they become one."""
    before_bytes = _classic_bytes(old.id, old.metadata) if old.id in state.members else 0
    more_bytes = _classic_bytes(old.id, metadata) - before_bytes
    # Most members repeat what they sent before: then the others need not be checked.
    if more_bytes > 0:
        known_bytes = sum(_classic_bytes(each.id, each.metadata) for each in state.members.values())
        check_classic_growth(known_bytes, more_bytes, bytes_max)


def _classic_bytes(member_id: str, metadata: MemberMetadata) -> int:
    if metadata.classic is None:
        return 0
    return member_record_bytes(
        (member_id, metadata.instance_id, metadata.client_id, metadata.client_host), metadata.classic.supported
    )


def known_member(state: GroupState, member_id: str, instance_id: str | None) -> Member:
    """The member that a request claims to come from."""
    if instance_id is not None:
        member = state.static_member(instance_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
        if member.id != member_id:
            raise Refused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} has since joined as another member")
        return member
    if member_id not in state.members:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")
    return state.members[member_id]


def check_member_epoch(state: GroupState, member_id: str, epoch: int, *, stale: ErrorCode) -> None:
    """Check that a member of this epoch may commit or fetch offsets. Without an epoch only while the group is
    empty."""
    if epoch < 0 and not state.members:
        return
    member = state.members.get(member_id)
    if member is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")
    if epoch != member.epoch:
        code = ErrorCode.ILLEGAL_GENERATION if member.is_classic else stale
        raise Refused(code, f"the member's epoch is {member.epoch}, not {epoch}")


assert LEAVING_EPOCH > AWAY_EPOCH, "the least epoch that a request may carry"
