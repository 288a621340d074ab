"""The simulated administrator: what may be believed after each change, and after each lost reply."""

from __future__ import annotations

from uuid import UUID

from millpond.sim.history.records import TopicFacts


def lose_the_reply(one_node, operation) -> None:
    """Begin an operation, break its connection as soon as the node has heard of it, and let it end."""
    one_node.sim.network.blackhole("node", "admin")
    requests = sum(one_node.node.broker.dispatcher.requests.received.values())
    done: list[int] = []
    operation(lambda: done.append(1))
    assert one_node.sim.run_until(lambda: sum(one_node.node.broker.dispatcher.requests.received.values()) > requests)
    for link in one_node.sim.network.links("admin"):
        one_node.sim.network.reset(link)
    one_node.sim.network.heal()
    assert one_node.sim.run_until(lambda: bool(done))


def test_a_created_topic_has_one_id_and_its_settings(one_node) -> None:
    one_node.wait_for(lambda then: one_node.admin.create("u", 3, {"retention.ms": "5"}, then))
    facts = one_node.history.topics["u"]
    assert list(facts.ids) == [one_node.node.broker.image.topics["u"].id]
    assert (facts.partition_counts, facts.configs) == ({3: None}, {"retention.ms": {"5": None}})


def test_a_topic_whose_creation_was_not_confirmed_is_found_again(one_node) -> None:
    lose_the_reply(one_node, lambda then: one_node.admin.create("u", 1, {}, then))
    assert list(one_node.history.topics["u"].ids) == [one_node.node.broker.image.topics["u"].id]


def test_a_deleted_topic_is_remembered_as_gone(one_node) -> None:
    topic_id = one_node.partitions[0].topic_id
    lose_the_reply(one_node, lambda then: one_node.admin.delete("t", then))
    assert one_node.history.topics["t"].ids == {None: None}
    assert topic_id in one_node.history.forgotten_ids
    assert "t" not in one_node.node.broker.image.topics


def test_a_lost_reply_leaves_both_counts_possible(one_node) -> None:
    lose_the_reply(one_node, lambda then: one_node.admin.add_partitions("t", 3, then))
    assert one_node.history.topics["t"].partition_counts == {2: None, 3: None}
    one_node.wait_for(lambda then: one_node.admin.add_partitions("t", 4, then))
    assert one_node.history.topics["t"].partition_counts == {4: None}


def test_a_lost_reply_leaves_both_settings_possible(one_node) -> None:
    one_node.wait_for(lambda then: one_node.admin.set_config("t", "retention.ms", "5", then))
    lose_the_reply(one_node, lambda then: one_node.admin.set_config("t", "retention.ms", "6", then))
    assert one_node.history.topics["t"].configs == {"retention.ms": {"5": None, "6": None}}


def test_a_refused_setting_changes_nothing(one_node) -> None:
    one_node.wait_for(lambda then: one_node.admin.set_config("t", "retention.ms", "5", then))
    one_node.wait_for(lambda then: one_node.admin.set_config("t", "retention.ms", "soon", then))
    assert one_node.history.topics["t"].configs == {"retention.ms": {"5": None}}


def test_deleted_records_are_remembered_only_when_confirmed(one_node) -> None:
    one_node.wait_for(lambda then: one_node.admin.delete_records(one_node.partitions[0], 5, then))
    assert one_node.history.deleted_before == {}
    one_node.wait_for(lambda then: one_node.admin.delete_records(one_node.partitions[0], 0, then))
    assert one_node.history.deleted_before == {one_node.partitions[0]: 0}


def test_describing_waits_for_a_node_that_is_down(one_node) -> None:
    heard: list = []
    one_node.node.kill()
    one_node.admin.describe(["t"], lambda *told: heard.append(told))
    one_node.sim.run_for(500)
    assert heard == []
    one_node.node.start()
    assert one_node.sim.run_until(lambda: bool(heard))
    ((metadata, configs),) = heard
    assert [len(topic.partitions) for topic in metadata.topics] == [2]
    assert configs.results[0].resource_name == "t"


def test_a_refusal_that_contradicts_what_is_certain_is_a_violation(one_node) -> None:
    """Such as that of a controller that does not know of its successor yet."""
    admin, history = one_node.admin, one_node.history
    history.topics["gone"] = TopicFacts(ids={UUID(int=1): None})
    one_node.wait_for(lambda then: admin.set_config("gone", "retention.ms", "5", then))
    one_node.wait_for(lambda then: admin.add_partitions("gone", 9, then))
    one_node.wait_for(lambda then: admin.delete("gone", then))
    assert history.violations == ["admin: gone exists and was said to be unknown"] * 3
    del history.topics["t"]
    one_node.wait_for(lambda then: admin.create("t", 1, {}, then))
    assert history.violations[3:] == ["admin: t was said to exist already"]


def test_a_refusal_is_no_violation_while_the_outcome_of_an_earlier_attempt_is_open(one_node) -> None:
    one_node.history.topics["gone"] = TopicFacts(ids={UUID(int=1): None, None: None})
    one_node.wait_for(lambda then: one_node.admin.delete("gone", then))
    lose_the_reply(one_node, lambda then: one_node.admin.create("u", 1, {}, then))
    assert one_node.history.violations == []
