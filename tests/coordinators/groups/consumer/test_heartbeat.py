"""Transcripts: a heartbeat goes in, an epoch and an assignment come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millpond.base.errors import ErrorCode
from millpond.coordinators.groups.consumer.draft import Draft
from millpond.coordinators.groups.consumer.members import MemberState
from millpond.coordinators.groups.consumer.settings import ConsumerGroupSettings
from millpond.coordinators.groups.memory import GroupMemory
from millpond.coordinators.shard import Effects


def refused(response: Any) -> ErrorCode:
    assert response.assignment is None
    return ErrorCode(response.error_code)


def test_the_first_member_gets_everything_at_once(harness: Any, in_reply: Any) -> None:
    response = harness.join("m1", "a", "b")
    assert response.error_code == 0
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("m1", 1, 5000)
    assert in_reply(response) == harness.parts(a=range(4), b=range(2))
    assert harness.group.state_name == "Stable"
    assert (harness.group.state.epoch, harness.group.state.assignment_epoch) == (1, 1)


def test_a_partition_moves_only_after_its_owner_has_let_go(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    second = harness.join("m2", "a")
    assert second.member_epoch == 2
    assert in_reply(second) == frozenset(), "nothing is free yet"
    assert harness.group.state_name == "Reconciling"

    told = harness.beat("m1", 1)
    assert told.member_epoch == 1, "it stays in its epoch until it has let go"
    kept = in_reply(told)
    assert len(kept) == 2
    moving = harness.parts(a=range(4)) - kept

    assert in_reply(harness.beat("m2", 2)) is None
    still = harness.beat("m1", 1, owned=harness.parts(a=range(4)))
    assert (still.member_epoch, in_reply(still)) == (1, None)
    silent = harness.beat("m1", 1)
    assert silent.member_epoch == 1, "silence is no revocation"
    assert in_reply(harness.beat("m2", 2)) is None

    done = harness.beat("m1", 1, owned=kept)
    assert (done.member_epoch, in_reply(done)) == (2, None), "what it keeps it keeps all along"
    assert in_reply(harness.beat("m2", 2)) == moving
    assert harness.group.state_name == "Stable"


def test_the_old_owner_may_leave_instead(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    harness.join("m2", "a")
    assert harness.leave("m1").member_epoch == -1
    assert harness.group.state_name == "Assigning"
    response = harness.beat("m2", 2)
    assert (response.member_epoch, in_reply(response)) == (3, harness.parts(a=range(4)))


def test_the_last_one_out_leaves_an_empty_group(harness: Any) -> None:
    harness.join("m1", "a")
    harness.leave("m1")
    assert harness.group.is_empty
    assert harness.group.state_name == "Empty"
    assert harness.group.exists
    assert harness.group.next_deadline_ms() is None
    assert refused(harness.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_delta_and_full_requests(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    owned = harness.parts(a=range(4))
    assert in_reply(harness.beat("m1", 1)) is None
    assert in_reply(harness.beat("m1", 1, owned=owned)) is None
    full = harness.beat("m1", 1, owned=owned, subscribed_topic_names=["a"], rebalance_timeout_ms=60_000)
    assert in_reply(full) == owned
    records = len(harness.log)
    harness.beat("m1", 1)
    assert len(harness.log) == records, "a heartbeat that changes nothing writes nothing"


def test_a_changed_subscription_turns_the_epoch(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    response = harness.beat("m1", 1, subscribed_topic_names=["b", "b"])
    assert response.member_epoch == 1
    assert in_reply(response) == frozenset()
    response = harness.beat("m1", 1, owned=frozenset())
    assert (response.member_epoch, in_reply(response)) == (2, harness.parts(b=range(2)))
    assert harness.group.state.epoch == 2
    harness.beat("m1", 2, subscribed_topic_names=["b"])
    assert harness.group.state.epoch == 2, "the same again is no change"


def test_a_target_that_moves_on_while_a_member_lets_go(harness: Any, in_reply: Any) -> None:
    harness.join("m1", "a")
    harness.join("m2", "a")
    kept = in_reply(harness.beat("m1", 1))
    harness.join("m3", "a")
    harness.join("m4", "a")
    # It did what it was told for epoch 2, but the target of epoch 4 asks for more.
    response = harness.beat("m1", 1, owned=kept)
    assert response.member_epoch == 2
    smaller = in_reply(response)
    assert len(smaller) == 1
    assert smaller < kept
    assert harness.beat("m1", 2, owned=smaller).member_epoch == 4


class TestEpochs:
    def test_a_member_ahead_or_far_behind_is_fenced(self, harness: Any) -> None:
        harness.join("m1", "a")
        harness.beat("m1", 1, subscribed_topic_names=["a", "b"])
        harness.beat("m1", 2, subscribed_topic_names=["a"])
        assert harness.beat("m1", 2, owned=harness.parts(a=range(4))).member_epoch == 3
        assert refused(harness.beat("m1", 4)) is ErrorCode.FENCED_MEMBER_EPOCH
        assert refused(harness.beat("m1", 1, owned=frozenset())) is ErrorCode.FENCED_MEMBER_EPOCH

    def test_a_lost_reply_is_forgiven_if_the_member_holds_nothing_else(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        everything = harness.parts(a=range(4))
        harness.beat("m1", 1, subscribed_topic_names=["a", "b"])
        assert harness.beat("m1", 1, owned=everything).member_epoch == 2
        assert refused(harness.beat("m1", 1)) is ErrorCode.FENCED_MEMBER_EPOCH, "it must say what it holds"
        beyond = everything | harness.parts(b=[0, 1]) | harness.parts(a=[9])
        assert refused(harness.beat("m1", 1, owned=beyond)) is ErrorCode.FENCED_MEMBER_EPOCH

    def test_joining_again_goes_on_where_the_member_stood(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a")
        harness.join("m2", "a")
        harness.beat("m1", 1)
        # Told to revoke, it lost its state instead: a joining member holds nothing.
        response = harness.join("m1", "a")
        assert response.member_epoch == 2
        assert len(in_reply(response)) == 2
        assert len(in_reply(harness.beat("m2", 2))) == 2
        assert harness.group.state.epoch == 2

    def test_an_unknown_member_must_join(self, harness: Any) -> None:
        assert refused(harness.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert refused(harness.leave("m1")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert not harness.log


class TestRequests:
    @pytest.mark.parametrize(
        "fields",
        [
            {"rebalance_timeout_ms": -1},
            {"subscribed_topic_names": None},
            {"instance_id": ""},
            {"rack_id": ""},
        ],
    )
    def test_a_join_that_does_not_say_enough(self, harness: Any, fields: dict[str, Any]) -> None:
        assert refused(harness.join("m1", **{"subscribed_topic_names": ["a"], **fields})) is ErrorCode.INVALID_REQUEST

    def test_a_join_with_partitions(self, harness: Any) -> None:
        owned = harness.parts(a=[0])
        response = harness.beat("m1", 0, owned=owned, subscribed_topic_names=["a"], rebalance_timeout_ms=1)
        assert refused(response) is ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(("member_id", "epoch"), [("m1", -3), ("", 1), ("", -1)])
    def test_ids_and_epochs_that_cannot_be(self, harness: Any, member_id: str, epoch: int) -> None:
        assert refused(harness.beat(member_id, epoch)) is ErrorCode.INVALID_REQUEST

    def test_only_a_static_member_goes_away_for_a_while(self, harness: Any) -> None:
        harness.join("m1", "a")
        assert refused(harness.beat("m1", -2)) is ErrorCode.INVALID_REQUEST

    def test_before_version_1_the_group_chooses_the_id(self, harness: Any) -> None:
        response = harness.join("", "a", version=0)
        assert response.member_id == "00000000-0000-0000-0000-000000000001"
        assert refused(harness.join("", "a", version=1)) is ErrorCode.INVALID_REQUEST

    def test_an_assignor_that_nobody_knows(self, harness: Any) -> None:
        response = harness.join("m1", "a", server_assignor="magic")
        assert refused(response) is ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in response.error_message

    def test_the_assignor_that_most_ask_for(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a", "b", server_assignor="range")
        assert harness.group.describe().assignor_name == "range"
        harness.join("m2", "a", server_assignor="uniform")
        assert harness.group.describe().assignor_name == "uniform", "of equals the first offered"

    def test_a_full_group(self, make_harness: Callable[..., Any]) -> None:
        harness = make_harness(ConsumerGroupSettings(max_size=1), a=2)
        harness.join("m1", "a", instance_id="i")
        assert refused(harness.join("m2", "a")) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert harness.beat("m1", 1).error_code == 0
        harness.beat("m1", -2, instance_id="i")
        assert harness.join("m3", "a", instance_id="i").error_code == 0, "it takes a place that is its own"

    def test_a_member_that_reads_nothing_is_a_member(self, harness: Any, in_reply: Any) -> None:
        response = harness.join("m1")
        assert (response.member_epoch, in_reply(response)) == (1, frozenset())
        assert harness.group.state_name == "Stable"


class TestPatterns:
    def test_a_pattern_stands_for_the_topics_that_match(self, harness: Any, in_reply: Any) -> None:
        harness.create("__consumer_offsets", 1)
        assert in_reply(harness.join("m1", subscribed_topic_regex="[a_].*")) == harness.parts(a=range(4))
        assert harness.group.state.patterns["[a_].*"].topics == ("a",)

    def test_names_and_patterns_add_up(self, harness: Any, in_reply: Any) -> None:
        response = harness.join("m1", subscribed_topic_names=["b"], subscribed_topic_regex="a")
        assert in_reply(response) == harness.parts(a=range(4), b=range(2))

    def test_new_topics_are_found(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", subscribed_topic_regex="a.*")
        harness.create("other", 1)
        assert not harness.topics_changed().records
        harness.create("a2", 1)
        assert harness.topics_changed().records
        assert harness.group.state_name == "Assigning"
        response = harness.beat("m1", 1)
        assert (response.member_epoch, in_reply(response)) == (2, harness.parts(a=range(4), a2=[0]))

    def test_a_bad_pattern(self, harness: Any) -> None:
        response = harness.join("m1", subscribed_topic_regex="(a")
        assert refused(response) is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "unmatched (" in response.error_message

    def test_a_pattern_that_nobody_uses_any_more_is_forgotten(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", subscribed_topic_regex="a")
        harness.join("m2", subscribed_topic_regex="a")
        harness.leave("m1")
        assert set(harness.group.state.patterns) == {"a"}
        harness.beat("m2", 2, subscribed_topic_regex="")
        assert not harness.group.state.patterns
        assert harness.beat("m2", 4, owned=frozenset(), subscribed_topic_regex="b").error_code == 0
        harness.leave("m2")
        assert not harness.group.state.patterns

    def test_an_empty_pattern_is_none(self, harness: Any) -> None:
        harness.join("m2", subscribed_topic_regex="")
        assert harness.group.state.members["m2"].metadata.regex is None


class TestPatternsWhereTopicsAreHidden:
    @pytest.fixture
    def harness(self, make_harness: Any) -> Any:
        return make_harness(ConsumerGroupSettings(hides_topics=True), a=2, ab=1, b=1)

    def rights_change(self, harness: Any) -> None:
        harness.image.acls.version += 1

    def test_a_pattern_stands_for_what_its_owner_may_see(self, harness: Any, in_reply: Any) -> None:
        response = harness.join("m1", subscribed_topic_regex="a.*", sees=lambda name: name != "ab")
        assert in_reply(response) == harness.parts(a=range(2))
        assert harness.group.state.patterns["a.*"].topics == ("a",)

    def test_hidden_topics_leave_no_trace(self, make_harness: Any) -> None:
        """With and without them a member is told the same, whatever it asks."""
        told = []
        for topics in ({"a": 2}, {"a": 2, "secret": 3}):
            harness = make_harness(ConsumerGroupSettings(hides_topics=True), **topics)
            sees = {"sees": lambda name: name == "a"}
            replies = [
                harness.join("m1", subscribed_topic_regex="s.*", **sees),
                harness.beat("m1", 1, **sees),
                harness.beat("m1", 1, subscribed_topic_regex="x.*", **sees),
                harness.beat("m1", 2, **sees),
                harness.beat("m1", 2, subscribed_topic_regex=".*", **sees),
                harness.beat("m1", 3, **sees),
            ]
            if len(topics) > 1:
                harness.create("secret2", 1)
            harness.topics_changed()
            replies.append(harness.beat("m1", 3, **sees))
            told.append([(each.error_code, each.member_epoch, repr(each.assignment)) for each in replies])
        assert told[0] == told[1]

    def test_hidden_topics_take_no_room(self, make_harness: Any) -> None:
        """Where there is little left, a refusal would tell which names are there."""
        told = []
        for topics in ({"a": 2}, {"a": 2, "secret": 3}):
            harness = make_harness(ConsumerGroupSettings(hides_topics=True), **topics)
            harness.group.memory = GroupMemory(lambda: 2_000)
            told.append(harness.join("m1", subscribed_topic_regex="s.*", sees=lambda name: name == "a").error_code)
        assert told == [ErrorCode.NONE, ErrorCode.NONE]

    def test_what_may_be_seen_later_comes_with_the_next_heartbeat(self, harness: Any, in_reply: Any) -> None:
        seen = {"a"}
        sees = {"sees": lambda name: name in seen}
        harness.join("m1", subscribed_topic_regex="a.*", **sees)
        seen.add("ab")
        assert harness.beat("m1", 1, **sees).member_epoch == 1, "nobody has said that rights have changed"
        self.rights_change(harness)
        response = harness.beat("m1", 1, **sees)
        assert (response.member_epoch, in_reply(response)) == (2, harness.parts(a=range(2), ab=[0]))
        seen.remove("a")
        self.rights_change(harness)
        response = harness.beat("m1", 2, **sees)
        assert in_reply(response) == harness.parts(ab=[0])

    def test_a_coordinator_that_was_loaded_waits_for_a_heartbeat(self, harness: Any, in_reply: Any) -> None:
        sees = {"sees": lambda name: name in ("a", "abc")}
        harness.join("m1", subscribed_topic_regex="a.*", **sees)
        harness.create("abc", 1)
        harness.reload()
        assert harness.group.state.patterns["a.*"].topics == ("a",)
        response = harness.beat("m1", 1, **sees)
        assert in_reply(response) == harness.parts(a=range(2), abc=[0])
        harness.create("abd", 1)
        harness.topics_changed()
        assert harness.beat("m1", 2, **sees).member_epoch == 2

    def test_of_patterns_that_are_gone_nothing_is_kept(self, harness: Any) -> None:
        harness.join("m1", subscribed_topic_regex="x0")
        for number in range(1, 20):
            harness.beat("m1", number, owned=frozenset(), subscribed_topic_regex=f"x{number}")
        assert len(harness.group.sights) <= 2


class TestStaticMembers:
    def test_back_under_another_id_with_everything_as_it_was(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        assert harness.beat("m1", -2, instance_id="i").member_epoch == -2
        assert harness.group.state.owners, "its partitions wait for it"
        response = harness.join("m2", "a", instance_id="i")
        assert (response.member_epoch, in_reply(response)) == (1, harness.parts(a=range(4)))
        assert harness.group.state.epoch == 1, "nobody else has noticed"
        assert list(harness.group.state.members) == ["m2"]
        harness.leave("m2")
        assert harness.group.next_deadline_ms() is None, "nobody waits for the first one any more"

    def test_back_under_its_own_id(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        harness.beat("m1", -2, instance_id="i")
        assert refused(harness.beat("m1", 1)) is ErrorCode.FENCED_MEMBER_EPOCH
        response = harness.join("m1", "a", instance_id="i")
        assert (response.member_epoch, in_reply(response)) == (1, harness.parts(a=range(4)))
        assert harness.group.state.members["m1"].current.previous_epoch == 0

    def test_an_instance_that_is_still_there(self, harness: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        assert refused(harness.join("m2", "a", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
        assert harness.join("m1", "a", instance_id="i").error_code == 0, "it may itself join again"

    def test_the_one_that_was_replaced_is_fenced(self, harness: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        harness.beat("m1", -2, instance_id="i")
        harness.join("m2", "a", instance_id="i")
        assert refused(harness.beat("m1", 1, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
        assert refused(harness.leave("m1", instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
        assert refused(harness.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert refused(harness.beat("m2", 1, instance_id="j")) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_id_of_another_member_cannot_be_taken(self, harness: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        harness.join("m2", "a")
        harness.beat("m1", -2, instance_id="i")
        assert refused(harness.join("m2", "a", instance_id="i")) is ErrorCode.INVALID_REQUEST

    def test_one_that_does_not_come_back_in_time(self, harness: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        harness.beat("m1", -2, instance_id="i")
        harness.pass_time(44_999)
        assert "m1" in harness.group.state.members
        harness.pass_time(1)
        assert harness.group.is_empty

    def test_one_that_is_away_has_nothing_to_let_go_of_for_the_next_coordinator_either(self, harness: Any) -> None:
        harness.join("m1", "a", instance_id="i", rebalance_timeout_ms=20_000)
        harness.join("m2", "a")
        harness.beat("m1", 1)
        assert harness.group.state.members["m1"].current.state is MemberState.UNREVOKED
        harness.beat("m1", -2, instance_id="i")
        harness.reload()
        harness.pass_time(44_999)
        assert "m1" in harness.group.state.members, "its session is longer"

    def test_nor_by_records_that_say_so(self, harness: Any) -> None:
        """As they were written once."""
        harness.join("m1", "a", instance_id="i", rebalance_timeout_ms=20_000)
        draft = Draft("g", harness.group.state)
        current = harness.group.state.members["m1"].current
        draft.set_current("m1", replace(current, epoch=-2, state=MemberState.UNREVOKED))
        harness.run(Effects(records=draft.records))
        harness.reload()
        harness.pass_time(44_999)
        assert "m1" in harness.group.state.members

    def test_what_it_was_letting_go_of_is_free_when_it_goes_away(self, harness: Any, in_reply: Any) -> None:
        harness.join("m1", "a", instance_id="i")
        harness.join("m2", "a")
        kept = in_reply(harness.beat("m1", 1))
        harness.beat("m1", -2, instance_id="i")
        assert in_reply(harness.beat("m2", 2)) == harness.parts(a=range(4)) - kept
