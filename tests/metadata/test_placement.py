from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.metadata.image import Broker
from millpond.metadata.placement import place


class DrawnEntropy:
    def __init__(self, draw: int) -> None:
        self.draw = draw

    def below(self, bound: int) -> int:
        return self.draw % bound

    def uuid(self) -> UUID:
        raise AssertionError("placement draws no ids")


def brokers(*racks: str | None, fenced: frozenset[int] = frozenset()) -> list[Broker]:
    """Brokers 0, 1, 2, … in these racks."""
    return [Broker(n, UUID(int=n + 1), 0, (), rack, n in fenced) for n, rack in enumerate(racks)]


def test_one_broker_takes_everything() -> None:
    assert place(brokers(None), 3, 1, DrawnEntropy(0)) == [(0,), (0,), (0,)]


def test_leaders_go_round_and_followers_change_with_each_turn() -> None:
    placed = place(brokers(None, None, None), 6, 2, DrawnEntropy(0))
    assert placed == [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]


def test_the_first_leader_is_drawn() -> None:
    assert place(brokers(None, None, None), 2, 1, DrawnEntropy(2)) == [(2,), (0,)]


def test_replicas_stand_in_different_racks() -> None:
    placed = place(brokers("a", "a", "b", "b"), 4, 2, DrawnEntropy(0))
    rack = "aabb"
    assert all(rack[first] != rack[second] for first, second in placed)


@pytest.mark.parametrize(
    ("cluster", "factor", "said"),
    [
        (brokers(None, None), 3, "registered brokers, 2"),
        ([], 1, "registered brokers, 0"),
        (brokers(None, fenced=frozenset({0})), 1, "no broker is active"),
    ],
)
def test_too_few_brokers(cluster: list[Broker], factor: int, said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        place(cluster, 1, factor, DrawnEntropy(0))
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


clusters = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([False, False, False, True])),
    min_size=1,
    max_size=9,
).filter(lambda cluster: not all(fenced for _, fenced in cluster))


@given(clusters, st.integers(1, 40), st.data(), st.integers(0, 100))
def test_any_cluster(cluster, partitions: int, data, draw: int) -> None:
    everyone = brokers(*(rack for rack, _ in cluster), fenced=frozenset(n for n, (_, f) in enumerate(cluster) if f))
    factor = data.draw(st.integers(1, len(everyone)))
    placed = place(everyone, partitions, factor, DrawnEntropy(draw))
    active = [broker for broker in everyone if not broker.fenced]

    assert len(placed) == partitions
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed)
    leads = Counter(replicas[0] for replicas in placed)
    assert leads.keys() <= {broker.id for broker in active}
    assert max(leads.values()) - min(leads[broker.id] for broker in active) <= 1
    racks = {broker.rack for broker in everyone}
    for replicas in placed:
        # As many racks as there are replicas, or all of them.
        assert len({everyone[node].rack for node in replicas}) == min(factor, len(racks))


def test_what_many_small_topics_lose_with_a_broker_falls_to_everybody() -> None:
    """Not to its two neighbours, which would have half as much again to do."""
    everyone = brokers(*[None] * 30)
    partners: set[int] = set()
    for topic in range(300):
        placed = place(everyone, 10, 3, DrawnEntropy(topic * 7919))
        partners.update(each for replicas in placed if 1 in replicas for each in replicas)
    assert partners == set(range(30))
