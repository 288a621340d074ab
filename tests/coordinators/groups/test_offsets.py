"""The store of offsets: what each record makes of it."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.coordinators.groups.offsets import Committed, Offsets, Pending
from millpond.coordinators.groups.records import OffsetKey

ONE = OffsetKey("g", "t", 0)
TWO = OffsetKey("g", "t", 1)
OTHER = OffsetKey("h", "t", 0)


def at(offset: int, record_offset: int = 0) -> Committed:
    return Committed(offset, -1, "", 0, -1, record_offset)


def test_last_record_counts() -> None:
    offsets = Offsets()
    offsets.replay(ONE, at(1))
    offsets.replay(ONE, at(2))
    assert offsets.get(ONE) == at(2)
    assert dict(offsets.of_group("g")) == {ONE: at(2)}


def test_tombstone_leaves_no_empty_shells() -> None:
    offsets = Offsets()
    offsets.replay(ONE, at(1))
    offsets.replay(ONE, None)
    offsets.replay(ONE, None)
    assert offsets.by_group == {}
    assert not offsets.has_any("g")


def test_topics_are_found_in_every_group_and_transaction() -> None:
    offsets = Offsets()
    offsets.replay(ONE, at(1))
    offsets.replay(OffsetKey("g", "u", 0), at(1))
    offsets.replay_pending(7, 0, OTHER, at(1))
    assert offsets.groups_of_topics(frozenset({"t"})) == ["g", "h"]
    offsets.deleted["t"] = 0
    assert [*offsets.deleted_of_group("g"), *offsets.deleted_of_group("h")] == [ONE, OTHER]


def test_group_is_forgotten_with_what_waits_for_it() -> None:
    offsets = Offsets()
    offsets.replay(ONE, at(1))
    offsets.replay_pending(7, 0, ONE, at(2))
    offsets.replay_pending(8, 0, TWO, at(2))
    offsets.replay_pending(8, 0, OTHER, at(2))
    assert offsets.keys_to_forget("g") == [ONE, TWO]


def test_marker_names_what_waited() -> None:
    offsets = Offsets()
    offsets.replay_pending(7, 1, ONE, at(3, 10))
    offsets.replay_pending(7, 1, OTHER, at(4, 11))
    assert offsets.replay_marker(9, 1, True) == []
    assert offsets.replay_marker(7, 1, True) == [ONE, OTHER]
    assert (offsets.get(ONE), offsets.get(OTHER)) == (at(3, 10), at(4, 11))
    assert not offsets.is_pending(ONE)
    assert offsets.pending == {}


def test_whether_an_offset_waits_is_known_without_asking_every_producer() -> None:
    class Asked(dict[int, Pending]):
        count = 0

        def __getitem__(self, producer_id: int) -> Pending:
            Asked.count += 1
            return super().__getitem__(producer_id)

    offsets = Offsets()
    offsets.pending = Asked()
    for producer in range(100):
        offsets.replay_pending(producer, 0, OffsetKey("g", "t", producer), at(1))
    assert offsets.is_pending(OffsetKey("g", "t", 99))
    assert not offsets.is_pending(OffsetKey("g", "t", 100))
    assert len(offsets.pending_of_group("g")) == 100
    offsets.replay(OffsetKey("g", "t", 5), None)
    assert Asked.count == 1, "the one that is forgotten"


KEYS = st.sampled_from([ONE, TWO, OTHER])
EVENTS = st.one_of(
    st.tuples(st.just("commit"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("forget"), KEYS),
    st.tuples(st.just("pending"), st.integers(1, 3), KEYS, st.integers(0, 99)),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
)


@given(st.lists(EVENTS, max_size=40))
def test_is_what_a_plain_model_says(events: list[tuple]) -> None:
    """The model: of all records of a key that count by now, the last one, unless a tombstone came after it."""
    offsets = Offsets()
    counted: dict[OffsetKey, Committed] = {}
    waiting: dict[int, dict[OffsetKey, Committed]] = {}
    for place, event in enumerate(events):
        match event:
            case ("commit", key, offset):
                offsets.replay(key, at(offset, place))
                counted[key] = at(offset, place)
            case ("forget", key):
                offsets.replay(key, None)
                counted.pop(key, None)
                for keys in waiting.values():
                    keys.pop(key, None)
            case ("pending", producer, key, offset):
                offsets.replay_pending(producer, 0, key, at(offset, place))
                waiting.setdefault(producer, {})[key] = at(offset, place)
            case ("end", producer, committed):
                offsets.replay_marker(producer, 0, committed)
                for key, each in waiting.pop(producer, {}).items():
                    if committed and (key not in counted or counted[key].record_offset < each.record_offset):
                        counted[key] = each
        for key in (ONE, TWO, OTHER):
            assert offsets.get(key) == counted.get(key)
            assert offsets.is_pending(key) == any(key in keys for keys in waiting.values())
            known = key in counted or any(key in keys for keys in waiting.values())
            assert (key in offsets.keys_to_forget(key.group_id)) == known
