"""DescribeGroups and ListGroups."""

from collections.abc import Callable

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def describe(coordinator, *names: str, version: int = 5) -> list:
    return coordinator.ask(m.DescribeGroupsRequest(groups=list(names)), version).groups


@pytest.mark.parametrize("version", range(7))
def test_stable_group(coordinator, version: int, assigned: Callable, subscribed: Callable) -> None:
    (member,), _ = coordinator.stable(client_id="app")
    (group,) = describe(coordinator, "g", version=version)
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (found,) = group.members
    assert (found.member_id, found.client_id, found.client_host) == (member, "app", "/10.0.0.1")
    assert (found.member_metadata, found.member_assignment) == (subscribed("t"), assigned(("t", 0)))


def test_between_generations_members_have_no_assignment(coordinator) -> None:
    coordinator.stable()
    coordinator.join_new()
    (group,) = describe(coordinator, "g")
    assert (group.group_state, group.protocol_data, len(group.members)) == ("PreparingRebalance", "", 2)
    assert {(each.member_metadata, each.member_assignment) for each in group.members} == {(b"", b"")}


def test_group_that_is_not_there(coordinator) -> None:
    (older,) = describe(coordinator, "g", version=5)
    assert (older.group_state, older.error_code) == ("Dead", 0)
    (newer,) = describe(coordinator, "g", version=6)
    assert (newer.group_state, newer.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert newer.error_message == "Group g not found."


def test_list(coordinator) -> None:
    coordinator.stable()
    coordinator.commit(1, group="simple")
    found = {each.group_id: each for each in coordinator.shard.list_groups()}
    assert (found["g"].group_state, found["g"].protocol_type, found["g"].group_type) == (
        "Stable",
        "consumer",
        "classic",
    )
    assert (found["simple"].group_state, found["simple"].protocol_type) == ("Empty", "")


def test_list_by_state_and_type(coordinator) -> None:
    coordinator.stable()
    coordinator.commit(1, group="simple")

    def names(*args: list[str]) -> list[str]:
        return [each.group_id for each in coordinator.shard.list_groups(*args)]

    assert names(["stable", "Dead"]) == ["g"]
    assert names(["EMPTY"]) == ["simple"]
    assert names([], ["Classic"]) == ["g", "simple"]
    assert names([], ["consumer"]) == []
    assert names(["Stable"], ["consumer"]) == []
