"""The simulated administrator: what may be believed after each change, and after each lost reply."""

from __future__ import annotations


def lose_the_reply(pond, operation) -> None:
    """Begin an operation, break its connection as soon as the node has heard of it, and let it end."""
    pond.sim.network.blackhole("node", "admin")
    requests = sum(pond.node.broker.dispatcher.requests.received.values())
    done: list[int] = []
    operation(lambda: done.append(1))
    assert pond.sim.run_until(lambda: sum(pond.node.broker.dispatcher.requests.received.values()) > requests)
    for link in pond.sim.network.links("admin"):
        pond.sim.network.reset(link)
    pond.sim.network.heal()
    assert pond.sim.run_until(lambda: bool(done))


def test_a_created_topic_has_one_id_and_its_settings(pond) -> None:
    pond.wait_for(lambda then: pond.admin.create("u", 3, {"retention.ms": "5"}, then))
    facts = pond.history.topics["u"]
    assert list(facts.ids) == [pond.node.broker.image.topics["u"].id]
    assert (facts.partition_counts, facts.configs) == ({3: None}, {"retention.ms": {"5": None}})


def test_a_topic_whose_creation_was_not_confirmed_is_found_again(pond) -> None:
    lose_the_reply(pond, lambda then: pond.admin.create("u", 1, {}, then))
    assert list(pond.history.topics["u"].ids) == [pond.node.broker.image.topics["u"].id]


def test_a_deleted_topic_is_remembered_as_gone(pond) -> None:
    topic_id = pond.partitions[0].topic_id
    lose_the_reply(pond, lambda then: pond.admin.delete("t", then))
    assert pond.history.topics["t"].ids == {None: None}
    assert topic_id in pond.history.forgotten_ids
    assert "t" not in pond.node.broker.image.topics


def test_a_lost_reply_leaves_both_counts_possible(pond) -> None:
    lose_the_reply(pond, lambda then: pond.admin.add_partitions("t", 3, then))
    assert pond.history.topics["t"].partition_counts == {2: None, 3: None}
    pond.wait_for(lambda then: pond.admin.add_partitions("t", 4, then))
    assert pond.history.topics["t"].partition_counts == {4: None}


def test_a_lost_reply_leaves_both_settings_possible(pond) -> None:
    pond.wait_for(lambda then: pond.admin.set_config("t", "retention.ms", "5", then))
    lose_the_reply(pond, lambda then: pond.admin.set_config("t", "retention.ms", "6", then))
    assert pond.history.topics["t"].configs == {"retention.ms": {"5": None, "6": None}}


def test_a_refused_setting_changes_nothing(pond) -> None:
    pond.wait_for(lambda then: pond.admin.set_config("t", "retention.ms", "5", then))
    pond.wait_for(lambda then: pond.admin.set_config("t", "retention.ms", "soon", then))
    assert pond.history.topics["t"].configs == {"retention.ms": {"5": None}}


def test_deleted_records_are_remembered_only_when_confirmed(pond) -> None:
    pond.wait_for(lambda then: pond.admin.delete_records(pond.partitions[0], 5, then))
    assert pond.history.deleted_before == {}
    pond.wait_for(lambda then: pond.admin.delete_records(pond.partitions[0], 0, then))
    assert pond.history.deleted_before == {pond.partitions[0]: 0}


def test_describing_waits_for_a_node_that_is_down(pond) -> None:
    heard: list = []
    pond.node.kill()
    pond.admin.describe(["t"], lambda *told: heard.append(told))
    pond.sim.run_for(500)
    assert heard == []
    pond.node.start()
    assert pond.sim.run_until(lambda: bool(heard))
    ((metadata, configs),) = heard
    assert [len(topic.partitions) for topic in metadata.topics] == [2]
    assert configs.results[0].resource_name == "t"
