"""What is forgotten with time."""

from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups import shard
from millpond.wire import messages as m

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def short(make_coordinator: Callable):
    return make_coordinator(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1000)


def test_offsets_of_a_simple_consumer_expire_after_their_commit(short) -> None:
    short.commit(1)
    short.pass_time(30_000)
    short.commit(2, partition=1)
    short.pass_time(31_000)
    assert (short.committed(), short.committed(1)) == (-1, 2)
    short.pass_time(60_000)
    assert short.shard.groups == short.loaded_again().groups == {}


def test_offsets_of_a_living_group_stay(short) -> None:
    (member,), generation = short.stable()
    short.commit(1, member, generation)
    for _ in range(20):
        short.pass_time(9000)
        assert short.heartbeat(member, generation) == 0
    assert short.committed() == 1


def test_offsets_of_a_topic_that_a_living_group_no_longer_reads_expire(short) -> None:
    (member,), generation = short.stable(topics=("t",))
    short.commit(1, member, generation, topic="t")
    short.commit(1, member, generation, topic="u")
    for _ in range(8):
        short.pass_time(9000)
        short.heartbeat(member, generation)
    assert (short.committed(topic="t"), short.committed(topic="u")) == (1, -1)


def test_clock_of_an_emptied_group_runs_from_when_it_became_empty(short) -> None:
    (member,), generation = short.stable()
    short.commit(1, member, generation)
    for _ in range(8):
        short.pass_time(9000)
        short.heartbeat(member, generation)
    short.leave(member)
    short.pass_time(59_000)
    assert short.committed() == 1
    short.pass_time(2000)
    assert short.committed() == -1
    assert short.shard.groups == short.loaded_again().groups == {}


def test_it_runs_on_through_a_failover(short) -> None:
    (member,), generation = short.stable()
    short.commit(1, member, generation)
    short.leave(member)
    short.pass_time(40_000)
    short.fail_over()
    short.pass_time(21_000)
    assert short.committed() == -1


def test_empty_group_without_offsets_is_forgotten(short) -> None:
    (member,), _ = short.stable()
    short.leave(member)
    short.pass_time(1000)
    assert short.shard.groups == short.loaded_again().groups == {}


def test_offset_that_a_transaction_is_about_to_change_stays(short) -> None:
    short.commit(1)
    short.commit_in_transaction(2)
    short.pass_time(70_000)
    assert short.committed() == 1
    short.marker(7, 0, False)
    short.pass_time(1000)
    assert short.committed() == -1


def test_group_of_another_kind_keeps_its_offsets_while_it_lives(short) -> None:
    (member,), generation = short.stable(protocol_type="connect")
    short.commit(1, member, generation)
    for _ in range(8):
        short.pass_time(9000)
        short.heartbeat(member, generation)
    assert short.committed() == 1


def test_seven_days_by_default(coordinator) -> None:
    coordinator.commit(1)
    coordinator.pass_time(7 * DAY_MS - 600_000)
    assert coordinator.committed() == 1
    coordinator.pass_time(1_200_000)
    assert coordinator.committed() == -1


def test_many_groups_are_looked_at_bit_by_bit(short) -> None:
    for number in range(1200):
        short.commit(1, group=f"g{number}")
    short.now_ms += 60_000
    first = short.take(short.shard.on_timer(short.now_ms))
    assert len(first.records) == 500
    assert short.shard.next_deadline_ms() == short.now_ms + 10
    short.pass_time(20)
    assert short.shard.groups == {}
    assert short.shard.next_deadline_ms() == short.now_ms + 1000


def test_what_members_read_is_asked_only_for_old_offsets_and_once(short, watch_names: Callable) -> None:
    """Before, all that they name was gone through for each offset, at every check."""
    assert short.consumer_beat("m1", topics=["t", "nowhere"]).member_epoch == 1
    for topic in "tu":
        for partition in range(8):
            assert short.commit(1, "m1", 1, group="n", topic=topic, partition=partition) == 0
    walks = watch_names(short.group("n"))
    short.pass_time(30_000)
    assert walks() == 0, "they are young"
    assert short.consumer_beat("m1", 1, topics=None).error_code == 0
    walks()
    short.now_ms += 30_000
    short.take(short.shard.on_timer(short.now_ms))
    assert walks() == 1
    assert (short.committed(topic="t", group="n"), short.committed(topic="u", group="n")) == (1, -1)


def test_many_offsets_are_forgotten_bit_by_bit(short, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "EXPIRE_OFFSETS_MAX", 3)
    for group in "ghi":
        for partition in range(8):
            short.commit(1, group=group, partition=partition)
    short.now_ms += 60_000
    steps = []
    while short.shard.groups:
        short.now_ms = max(short.now_ms, short.shard.next_deadline_ms())
        steps.append(len(short.take(short.shard.on_timer(short.now_ms)).records))
    assert sum(steps) == 24
    assert max(steps) <= 3
    assert short.loaded_again().groups == {}


def test_deleted_topic_takes_its_offsets_along(coordinator, remove_topic: Callable) -> None:
    coordinator.commit(1, topic="t")
    coordinator.commit(2, topic="u")
    coordinator.commit_in_transaction(3, partition=5, group="h")
    remove_topic("t")
    coordinator.take(coordinator.shard.on_topics_deleted(["t"], coordinator.now_ms))
    coordinator.marker(7, 0, True)
    assert (coordinator.committed(topic="t"), coordinator.committed(topic="u")) == (-1, 2)
    assert list(coordinator.shard.groups) == list(coordinator.loaded_again().groups) == ["g"]


class TestDeleteGroups:
    def delete(self, coordinator, *names: str, version: int = 2) -> list[int]:
        reply = coordinator.ask(m.DeleteGroupsRequest(groups_names=list(names)), version)
        assert [each.group_id for each in reply.results] == list(names)
        return [each.error_code for each in reply.results]

    @pytest.mark.parametrize("version", [0, 1, 2, 3])
    def test_only_empty_groups(self, coordinator, version: int) -> None:
        coordinator.stable()
        coordinator.commit(1, group="h")
        codes = self.delete(coordinator, "g", "h", "nobody", version=version)
        assert codes == [ErrorCode.NON_EMPTY_GROUP, 0, ErrorCode.GROUP_ID_NOT_FOUND]
        assert list(coordinator.shard.groups) == list(coordinator.loaded_again().groups) == ["g"]
        assert coordinator.committed(group="h") == -1

    def test_error_messages(self, coordinator) -> None:
        coordinator.stable()
        coordinator.commit(1, group="h")
        coordinator.consumer_beat("m")
        reply = coordinator.ask(m.DeleteGroupsRequest(groups_names=["g", "h", "n", "nobody"]), 3)
        has_members = "the group has members: stop them first"
        messages = [each.error_message for each in reply.results]
        assert messages == [has_members, None, has_members, "the group does not exist"]

    def test_leaves_nothing_in_the_log(self, coordinator) -> None:
        (member,), generation = coordinator.stable()
        coordinator.commit(1, member, generation)
        coordinator.leave(member)
        coordinator.commit_in_transaction(5, partition=3)
        assert self.delete(coordinator, "g") == [0]
        last = {each.key: each.value for each in coordinator.log}
        assert set(last.values()) == {None}
        coordinator.marker(7, 0, True)
        assert coordinator.shard.groups == coordinator.loaded_again().groups == {}


def test_an_offset_of_a_topic_that_was_replaced_is_forgotten_even_if_the_group_reads_its_successor(
    short, remove_topic: Callable, add_topic: Callable
) -> None:
    (member,), generation = short.stable()
    short.commit(1, member, generation)
    remove_topic("t")
    add_topic("t")
    short.pass_time(1000)
    assert short.shard.offsets.by_group == short.loaded_again().offsets.by_group == {}
