"""A decision under construction: records in order, and the state after they are replayed.

A response often depends on records that the same request produces. So the first record copies the group's state, and
each one is replayed into the copy by the same `replay` that will later change the group; the response is read from
there. The group itself changes only when the runtime replays the records. A refusal just drops the draft.
"""

from __future__ import annotations

from millpond.coordinators.groups.consumer.members import CurrentAssignment, Member, MemberMetadata, Partitions
from millpond.coordinators.groups.consumer.records import current_value, encode_record, metadata_value, target_value
from millpond.coordinators.groups.consumer.state import GroupState, ResolvedPattern
from millpond.coordinators.shard import CoordinatorRecord
from millpond.wire import messages as m


class Draft:
    def __init__(self, group_id: str, state: GroupState) -> None:
        self.group_id = group_id
        self.state = state
        self.records: list[CoordinatorRecord] = []
        self.replaced: list[str] = []
        """Members that others have replaced."""
        self._copied = False

    def write(self, key: m.Message, value: m.Message | None) -> None:
        if not self._copied:
            self.state = self.state.copy()
            self._copied = True
        self.state.replay(key, value)
        self.records.append(encode_record(key, value))

    def write_other(self, record: CoordinatorRecord) -> None:
        """Add a record of another kind, in order."""
        self.records.append(record)

    # One method for each kind of record.

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        self.write(
            m.ConsumerGroupMetadataKey(group_id=self.group_id),
            m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    def set_assignment_epoch(self, epoch: int) -> None:
        self.write(
            m.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id),
            m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )

    def set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        self.write(
            m.ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=member_id), metadata_value(metadata)
        )

    def set_current(self, member_id: str, current: CurrentAssignment) -> None:
        self.write(
            m.ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member_id),
            current_value(current),
        )

    def set_target(self, member_id: str, target: Partitions) -> None:
        self.write(
            m.ConsumerGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id),
            target_value(target),
        )

    def set_pattern(self, pattern: str, resolved: ResolvedPattern) -> None:
        self.write(
            m.ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=pattern),
            m.ConsumerGroupRegularExpressionValue(
                topics=list(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
            ),
        )

    def forget_pattern(self, pattern: str) -> None:
        self.write(m.ConsumerGroupRegularExpressionKey(group_id=self.group_id, regular_expression=pattern), None)

    def remove_member(self, member_id: str) -> None:
        self.write(m.ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group_id, member_id=member_id), None)
        self.write(m.ConsumerGroupTargetAssignmentMemberKey(group_id=self.group_id, member_id=member_id), None)
        self.write(m.ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=member_id), None)

    def replace_member(self, old: Member, new: Member) -> None:
        """Transfer everything of a static member to its new member id."""
        target = self.state.target(old.id)
        self.remove_member(old.id)
        self.replaced.append(old.id)
        self.set_metadata(new.id, new.metadata)
        self.set_target(new.id, target)
        self.set_current(new.id, new.current)

    def remove_group(self) -> None:
        for member_id in list(self.state.members):
            self.remove_member(member_id)
        for pattern in list(self.state.patterns):
            self.forget_pattern(pattern)
        self.write(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=self.group_id), None)
        self.write(m.ConsumerGroupMetadataKey(group_id=self.group_id), None)
