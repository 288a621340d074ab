"""Feature levels on the wire: what clients see, raising and lowering them, and what they mean for groups."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.wire import messages as m


def told(caller: Any, version: int = 4) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    request = m.ApiVersionsRequest(client_software_name="rod", client_software_version="2")
    response = caller.ask(request, version)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    final = {each.name: each.max_version_level for each in response.finalized_features}
    return supported, final, response.finalized_features_epoch


def update(caller: Any, version: int, *levels: tuple[str, int], dry: bool = False, **fields: Any) -> Any:
    updates = [
        m.UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, **fields)
        for name, level in levels
    ]
    return caller.ask(m.UpdateFeaturesRequest(feature_updates=updates, validate_only=dry), version, within_ms=5000)


def test_clients_are_told_what_is_supported_and_what_is_final(server: Any) -> None:
    caller = server.connect()
    supported, final, epoch = told(caller)
    assert supported == {
        "metadata.version": (25, 27),
        "group.version": (0, 1),
        "transaction.version": (1, 2),
        "share.version": (0, 1),
        "kraft.version": (0, 1),
    }
    assert final == {"metadata.version": 27, "group.version": 1, "transaction.version": 2, "share.version": 1}
    assert epoch == server.broker.controller.applied_offset
    # Clients that do not support version 4 fail on a range that starts at zero.
    assert told(caller, 3)[0].keys() == {"metadata.version", "transaction.version"}


@pytest.mark.parametrize("version", [1, 2])
def test_a_level_is_lowered_and_raised_and_its_epoch_grows(server: Any, version: int) -> None:
    caller = server.connect()
    before = told(caller)[2]
    dry = update(caller, version, ("metadata.version", 25), upgrade_type=2, dry=True)
    assert (dry.error_code, told(caller)[2]) == (ErrorCode.NONE, before)
    lowered = update(caller, version, ("metadata.version", 25), upgrade_type=2)
    assert lowered.error_code == ErrorCode.NONE
    assert [each.error_code for each in lowered.results] == ([ErrorCode.NONE] if version < 2 else [])
    _, final, epoch = told(caller)
    assert final["metadata.version"] == 25
    assert epoch > before
    assert update(caller, version, ("metadata.version", 26), ("group.version", 1)).error_code == ErrorCode.NONE
    assert told(caller)[1]["metadata.version"] == 26


def test_the_first_version_says_with_a_flag_that_a_level_may_be_lowered(server: Any) -> None:
    caller = server.connect()
    reply = update(caller, 0, ("metadata.version", 25))
    [refused] = reply.results
    assert refused.error_code == reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message == reply.error_message
    [lowered] = update(caller, 0, ("metadata.version", 25), allow_downgrade=True).results
    assert lowered.error_code == ErrorCode.NONE


def test_one_that_is_refused_spoils_all(server: Any) -> None:
    caller = server.connect()
    reply = update(caller, 1, ("metadata.version", 25), ("streams.version", 1), upgrade_type=3)
    assert [each.error_code for each in reply.results] == [
        ErrorCode.FEATURE_UPDATE_FAILED,
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    reply = update(caller, 2, ("metadata.version", 25), ("streams.version", 1), upgrade_type=3)
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "unknown feature 'streams.version'" in reply.error_message
    assert update(caller, 2).error_code == ErrorCode.INVALID_REQUEST
    assert told(caller)[1]["metadata.version"] == 27


def test_without_group_version_members_of_the_new_protocol_are_refused(server: Any) -> None:
    caller = server.connect()
    caller.ask(m.FindCoordinatorRequest(key="g", key_type=0), 3, within_ms=5000)
    beat = m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="",
        member_epoch=0,
        rebalance_timeout_ms=5000,
        subscribed_topic_names=["pond"],
        topic_partitions=[],
    )
    assert update(caller, 2, ("group.version", 0), upgrade_type=3).error_code == ErrorCode.NONE
    refused = caller.ask(beat, 0)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.version is 0" in refused.error_message
    assert update(caller, 2, ("group.version", 1)).error_code == ErrorCode.NONE
    assert caller.ask(beat, 0, within_ms=5000).error_code == ErrorCode.NONE
