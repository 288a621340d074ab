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


def test_the_first_member_gets_everything_at_once(pond: Any, in_reply: Any) -> None:
    response = pond.join("m1", "a", "b")
    assert response.error_code == 0
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("m1", 1, 5000)
    assert in_reply(response) == pond.parts(a=range(4), b=range(2))
    assert pond.group.state_name == "Stable"
    assert (pond.group.state.epoch, pond.group.state.assignment_epoch) == (1, 1)


def test_a_partition_moves_only_after_its_owner_has_let_go(pond: Any, in_reply: Any) -> None:
    pond.join("m1", "a")
    second = pond.join("m2", "a")
    assert second.member_epoch == 2
    assert in_reply(second) == frozenset(), "nothing is free yet"
    assert pond.group.state_name == "Reconciling"

    told = pond.beat("m1", 1)
    assert told.member_epoch == 1, "it stays in its epoch until it has let go"
    kept = in_reply(told)
    assert len(kept) == 2
    moving = pond.parts(a=range(4)) - kept

    assert in_reply(pond.beat("m2", 2)) is None
    still = pond.beat("m1", 1, owned=pond.parts(a=range(4)))
    assert (still.member_epoch, in_reply(still)) == (1, None)
    silent = pond.beat("m1", 1)
    assert silent.member_epoch == 1, "silence is no revocation"
    assert in_reply(pond.beat("m2", 2)) is None

    done = pond.beat("m1", 1, owned=kept)
    assert (done.member_epoch, in_reply(done)) == (2, None), "what it keeps it keeps all along"
    assert in_reply(pond.beat("m2", 2)) == moving
    assert pond.group.state_name == "Stable"


def test_the_old_owner_may_leave_instead(pond: Any, in_reply: Any) -> None:
    pond.join("m1", "a")
    pond.join("m2", "a")
    assert pond.leave("m1").member_epoch == -1
    assert pond.group.state_name == "Assigning"
    response = pond.beat("m2", 2)
    assert (response.member_epoch, in_reply(response)) == (3, pond.parts(a=range(4)))


def test_the_last_one_out_leaves_an_empty_group(pond: Any) -> None:
    pond.join("m1", "a")
    pond.leave("m1")
    assert pond.group.is_empty
    assert pond.group.state_name == "Empty"
    assert pond.group.exists
    assert pond.group.next_deadline_ms() is None
    assert refused(pond.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_delta_and_full_requests(pond: Any, in_reply: Any) -> None:
    pond.join("m1", "a")
    owned = pond.parts(a=range(4))
    assert in_reply(pond.beat("m1", 1)) is None
    assert in_reply(pond.beat("m1", 1, owned=owned)) is None
    full = pond.beat("m1", 1, owned=owned, subscribed_topic_names=["a"], rebalance_timeout_ms=60_000)
    assert in_reply(full) == owned
    records = len(pond.log)
    pond.beat("m1", 1)
    assert len(pond.log) == records, "a heartbeat that changes nothing writes nothing"


def test_a_changed_subscription_turns_the_epoch(pond: Any, in_reply: Any) -> None:
    pond.join("m1", "a")
    response = pond.beat("m1", 1, subscribed_topic_names=["b", "b"])
    assert response.member_epoch == 1
    assert in_reply(response) == frozenset()
    response = pond.beat("m1", 1, owned=frozenset())
    assert (response.member_epoch, in_reply(response)) == (2, pond.parts(b=range(2)))
    assert pond.group.state.epoch == 2
    pond.beat("m1", 2, subscribed_topic_names=["b"])
    assert pond.group.state.epoch == 2, "the same again is no change"


def test_a_target_that_moves_on_while_a_member_lets_go(pond: Any, in_reply: Any) -> None:
    pond.join("m1", "a")
    pond.join("m2", "a")
    kept = in_reply(pond.beat("m1", 1))
    pond.join("m3", "a")
    pond.join("m4", "a")
    # It did what it was told for epoch 2, but the target of epoch 4 asks for more.
    response = pond.beat("m1", 1, owned=kept)
    assert response.member_epoch == 2
    smaller = in_reply(response)
    assert len(smaller) == 1
    assert smaller < kept
    assert pond.beat("m1", 2, owned=smaller).member_epoch == 4


class TestEpochs:
    def test_a_member_ahead_or_far_behind_is_fenced(self, pond: Any) -> None:
        pond.join("m1", "a")
        pond.beat("m1", 1, subscribed_topic_names=["a", "b"])
        pond.beat("m1", 2, subscribed_topic_names=["a"])
        assert pond.beat("m1", 2, owned=pond.parts(a=range(4))).member_epoch == 3
        assert refused(pond.beat("m1", 4)) is ErrorCode.FENCED_MEMBER_EPOCH
        assert refused(pond.beat("m1", 1, owned=frozenset())) is ErrorCode.FENCED_MEMBER_EPOCH

    def test_a_lost_reply_is_forgiven_if_the_member_holds_nothing_else(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        everything = pond.parts(a=range(4))
        pond.beat("m1", 1, subscribed_topic_names=["a", "b"])
        assert pond.beat("m1", 1, owned=everything).member_epoch == 2
        assert refused(pond.beat("m1", 1)) is ErrorCode.FENCED_MEMBER_EPOCH, "it must say what it holds"
        beyond = everything | pond.parts(b=[0, 1]) | pond.parts(a=[9])
        assert refused(pond.beat("m1", 1, owned=beyond)) is ErrorCode.FENCED_MEMBER_EPOCH

    def test_joining_again_goes_on_where_the_member_stood(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a")
        pond.join("m2", "a")
        pond.beat("m1", 1)
        # Told to let go, it lost its mind instead: whoever joins holds nothing.
        response = pond.join("m1", "a")
        assert response.member_epoch == 2
        assert len(in_reply(response)) == 2
        assert len(in_reply(pond.beat("m2", 2))) == 2
        assert pond.group.state.epoch == 2

    def test_an_unknown_member_must_join(self, pond: Any) -> None:
        assert refused(pond.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert refused(pond.leave("m1")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert not pond.log


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
    def test_a_join_that_does_not_say_enough(self, pond: Any, fields: dict[str, Any]) -> None:
        assert refused(pond.join("m1", **{"subscribed_topic_names": ["a"], **fields})) is ErrorCode.INVALID_REQUEST

    def test_a_join_with_partitions(self, pond: Any) -> None:
        owned = pond.parts(a=[0])
        response = pond.beat("m1", 0, owned=owned, subscribed_topic_names=["a"], rebalance_timeout_ms=1)
        assert refused(response) is ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize(("member_id", "epoch"), [("m1", -3), ("", 1), ("", -1)])
    def test_ids_and_epochs_that_cannot_be(self, pond: Any, member_id: str, epoch: int) -> None:
        assert refused(pond.beat(member_id, epoch)) is ErrorCode.INVALID_REQUEST

    def test_only_a_static_member_goes_away_for_a_while(self, pond: Any) -> None:
        pond.join("m1", "a")
        assert refused(pond.beat("m1", -2)) is ErrorCode.INVALID_REQUEST

    def test_before_version_1_the_group_chooses_the_id(self, pond: Any) -> None:
        response = pond.join("", "a", version=0)
        assert response.member_id == "00000000-0000-0000-0000-000000000001"
        assert refused(pond.join("", "a", version=1)) is ErrorCode.INVALID_REQUEST

    def test_an_assignor_that_nobody_knows(self, pond: Any) -> None:
        response = pond.join("m1", "a", server_assignor="magic")
        assert refused(response) is ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in response.error_message

    def test_the_assignor_that_most_ask_for(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a", "b", server_assignor="range")
        assert pond.group.describe().assignor_name == "range"
        pond.join("m2", "a", server_assignor="uniform")
        assert pond.group.describe().assignor_name == "uniform", "of equals the first offered"

    def test_a_full_group(self, make_pond: Callable[..., Any]) -> None:
        pond = make_pond(ConsumerGroupSettings(max_size=1), a=2)
        pond.join("m1", "a", instance_id="i")
        assert refused(pond.join("m2", "a")) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert pond.beat("m1", 1).error_code == 0
        pond.beat("m1", -2, instance_id="i")
        assert pond.join("m3", "a", instance_id="i").error_code == 0, "it takes a place that is its own"

    def test_a_member_that_reads_nothing_is_a_member(self, pond: Any, in_reply: Any) -> None:
        response = pond.join("m1")
        assert (response.member_epoch, in_reply(response)) == (1, frozenset())
        assert pond.group.state_name == "Stable"


class TestPatterns:
    def test_a_pattern_stands_for_the_topics_that_match(self, pond: Any, in_reply: Any) -> None:
        pond.create("__consumer_offsets", 1)
        assert in_reply(pond.join("m1", subscribed_topic_regex="[a_].*")) == pond.parts(a=range(4))
        assert pond.group.state.patterns["[a_].*"].topics == ("a",)

    def test_names_and_patterns_add_up(self, pond: Any, in_reply: Any) -> None:
        response = pond.join("m1", subscribed_topic_names=["b"], subscribed_topic_regex="a")
        assert in_reply(response) == pond.parts(a=range(4), b=range(2))

    def test_new_topics_are_found(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", subscribed_topic_regex="a.*")
        pond.create("other", 1)
        assert not pond.topics_changed().records
        pond.create("a2", 1)
        assert pond.topics_changed().records
        assert pond.group.state_name == "Assigning"
        response = pond.beat("m1", 1)
        assert (response.member_epoch, in_reply(response)) == (2, pond.parts(a=range(4), a2=[0]))

    def test_a_bad_pattern(self, pond: Any) -> None:
        response = pond.join("m1", subscribed_topic_regex="(a")
        assert refused(response) is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "nothing closes" in response.error_message

    def test_a_pattern_that_nobody_uses_any_more_is_forgotten(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", subscribed_topic_regex="a")
        pond.join("m2", subscribed_topic_regex="a")
        pond.leave("m1")
        assert set(pond.group.state.patterns) == {"a"}
        pond.beat("m2", 2, subscribed_topic_regex="")
        assert not pond.group.state.patterns
        assert pond.beat("m2", 4, owned=frozenset(), subscribed_topic_regex="b").error_code == 0
        pond.leave("m2")
        assert not pond.group.state.patterns

    def test_an_empty_pattern_is_none(self, pond: Any) -> None:
        pond.join("m2", subscribed_topic_regex="")
        assert pond.group.state.members["m2"].metadata.regex is None


class TestPatternsWhereTopicsAreHidden:
    @pytest.fixture
    def pond(self, make_pond: Any) -> Any:
        return make_pond(ConsumerGroupSettings(hides_topics=True), a=2, ab=1, b=1)

    def rights_change(self, pond: Any) -> None:
        pond.image.acls.version += 1

    def test_a_pattern_stands_for_what_its_owner_may_see(self, pond: Any, in_reply: Any) -> None:
        response = pond.join("m1", subscribed_topic_regex="a.*", sees=lambda name: name != "ab")
        assert in_reply(response) == pond.parts(a=range(2))
        assert pond.group.state.patterns["a.*"].topics == ("a",)

    def test_hidden_topics_leave_no_trace(self, make_pond: Any) -> None:
        """With and without them a member is told the same, whatever it asks."""
        told = []
        for topics in ({"a": 2}, {"a": 2, "secret": 3}):
            pond = make_pond(ConsumerGroupSettings(hides_topics=True), **topics)
            sees = {"sees": lambda name: name == "a"}
            replies = [
                pond.join("m1", subscribed_topic_regex="s.*", **sees),
                pond.beat("m1", 1, **sees),
                pond.beat("m1", 1, subscribed_topic_regex="x.*", **sees),
                pond.beat("m1", 2, **sees),
                pond.beat("m1", 2, subscribed_topic_regex=".*", **sees),
                pond.beat("m1", 3, **sees),
            ]
            if len(topics) > 1:
                pond.create("secret2", 1)
            pond.topics_changed()
            replies.append(pond.beat("m1", 3, **sees))
            told.append([(each.error_code, each.member_epoch, repr(each.assignment)) for each in replies])
        assert told[0] == told[1]

    def test_hidden_topics_take_no_room(self, make_pond: Any) -> None:
        """Where there is little left, a refusal would tell which names are there."""
        told = []
        for topics in ({"a": 2}, {"a": 2, "secret": 3}):
            pond = make_pond(ConsumerGroupSettings(hides_topics=True), **topics)
            pond.group.memory = GroupMemory(lambda: 2_000)
            told.append(pond.join("m1", subscribed_topic_regex="s.*", sees=lambda name: name == "a").error_code)
        assert told == [ErrorCode.NONE, ErrorCode.NONE]

    def test_what_may_be_seen_later_comes_with_the_next_heartbeat(self, pond: Any, in_reply: Any) -> None:
        seen = {"a"}
        sees = {"sees": lambda name: name in seen}
        pond.join("m1", subscribed_topic_regex="a.*", **sees)
        seen.add("ab")
        assert pond.beat("m1", 1, **sees).member_epoch == 1, "nobody has said that rights have changed"
        self.rights_change(pond)
        response = pond.beat("m1", 1, **sees)
        assert (response.member_epoch, in_reply(response)) == (2, pond.parts(a=range(2), ab=[0]))
        seen.remove("a")
        self.rights_change(pond)
        response = pond.beat("m1", 2, **sees)
        assert in_reply(response) == pond.parts(ab=[0])

    def test_a_coordinator_that_was_loaded_waits_for_a_heartbeat(self, pond: Any, in_reply: Any) -> None:
        sees = {"sees": lambda name: name in ("a", "abc")}
        pond.join("m1", subscribed_topic_regex="a.*", **sees)
        pond.create("abc", 1)
        pond.reload()
        assert pond.group.state.patterns["a.*"].topics == ("a",)
        response = pond.beat("m1", 1, **sees)
        assert in_reply(response) == pond.parts(a=range(2), abc=[0])
        pond.create("abd", 1)
        pond.topics_changed()
        assert pond.beat("m1", 2, **sees).member_epoch == 2

    def test_of_patterns_that_are_gone_nothing_is_kept(self, pond: Any) -> None:
        pond.join("m1", subscribed_topic_regex="x0")
        for number in range(1, 20):
            pond.beat("m1", number, owned=frozenset(), subscribed_topic_regex=f"x{number}")
        assert len(pond.group.sights) <= 2


class TestStaticMembers:
    def test_back_under_another_id_with_everything_as_it_was(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        assert pond.beat("m1", -2, instance_id="i").member_epoch == -2
        assert pond.group.state.owners, "its partitions wait for it"
        response = pond.join("m2", "a", instance_id="i")
        assert (response.member_epoch, in_reply(response)) == (1, pond.parts(a=range(4)))
        assert pond.group.state.epoch == 1, "nobody else has noticed"
        assert list(pond.group.state.members) == ["m2"]
        pond.leave("m2")
        assert pond.group.next_deadline_ms() is None, "nobody waits for the first one any more"

    def test_back_under_its_own_id(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        pond.beat("m1", -2, instance_id="i")
        assert refused(pond.beat("m1", 1)) is ErrorCode.FENCED_MEMBER_EPOCH
        response = pond.join("m1", "a", instance_id="i")
        assert (response.member_epoch, in_reply(response)) == (1, pond.parts(a=range(4)))
        assert pond.group.state.members["m1"].current.previous_epoch == 0

    def test_an_instance_that_is_still_there(self, pond: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        assert refused(pond.join("m2", "a", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
        assert pond.join("m1", "a", instance_id="i").error_code == 0, "it may itself join again"

    def test_the_one_that_was_replaced_is_fenced(self, pond: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        pond.beat("m1", -2, instance_id="i")
        pond.join("m2", "a", instance_id="i")
        assert refused(pond.beat("m1", 1, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
        assert refused(pond.leave("m1", instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
        assert refused(pond.beat("m1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
        assert refused(pond.beat("m2", 1, instance_id="j")) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_id_of_another_member_cannot_be_taken(self, pond: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        pond.join("m2", "a")
        pond.beat("m1", -2, instance_id="i")
        assert refused(pond.join("m2", "a", instance_id="i")) is ErrorCode.INVALID_REQUEST

    def test_one_that_does_not_come_back_in_time(self, pond: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        pond.beat("m1", -2, instance_id="i")
        pond.pass_time(44_999)
        assert "m1" in pond.group.state.members
        pond.pass_time(1)
        assert pond.group.is_empty

    def test_one_that_is_away_has_nothing_to_let_go_of_for_the_next_coordinator_either(self, pond: Any) -> None:
        pond.join("m1", "a", instance_id="i", rebalance_timeout_ms=20_000)
        pond.join("m2", "a")
        pond.beat("m1", 1)
        assert pond.group.state.members["m1"].current.state is MemberState.UNREVOKED
        pond.beat("m1", -2, instance_id="i")
        pond.reload()
        pond.pass_time(44_999)
        assert "m1" in pond.group.state.members, "its session is longer"

    def test_nor_by_records_that_say_so(self, pond: Any) -> None:
        """As they were written once."""
        pond.join("m1", "a", instance_id="i", rebalance_timeout_ms=20_000)
        draft = Draft("g", pond.group.state)
        current = pond.group.state.members["m1"].current
        draft.set_current("m1", replace(current, epoch=-2, state=MemberState.UNREVOKED))
        pond.run(Effects(records=draft.records))
        pond.reload()
        pond.pass_time(44_999)
        assert "m1" in pond.group.state.members

    def test_what_it_was_letting_go_of_is_free_when_it_goes_away(self, pond: Any, in_reply: Any) -> None:
        pond.join("m1", "a", instance_id="i")
        pond.join("m2", "a")
        kept = in_reply(pond.beat("m1", 1))
        pond.beat("m1", -2, instance_id="i")
        assert in_reply(pond.beat("m2", 2)) == pond.parts(a=range(4)) - kept
