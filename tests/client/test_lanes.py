"""One record at a time per key, in order; keys side by side; any interleaving."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from millpond.client.lanes import Lanes


def test_a_lane_is_busy_until_released_and_others_go_on() -> None:
    lanes: Lanes[str] = Lanes()
    for lane, item in [("a", "a1"), ("a", "a2"), ("b", "b1")]:
        lanes.add(lane, item)
    assert [lanes.take(), lanes.take(), lanes.take()] == ["a1", "b1", None]
    lanes.release("b")
    assert lanes.take() is None
    lanes.release("a")
    assert lanes.take() == "a2"


def test_without_a_lane_nobody_waits() -> None:
    lanes: Lanes[int] = Lanes()
    for number in range(3):
        lanes.add(None, number)
    assert [lanes.take(), lanes.take(), lanes.take()] == [0, 1, 2]


def test_one_that_tries_again_goes_before_those_behind_it() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", "first")
    lanes.add("a", "second")
    assert lanes.take() == "first"
    lanes.again("a", "first")
    assert lanes.take() == "first"
    assert lanes.take() is None
    lanes.release("a")
    assert lanes.take() == "second"


def test_dropping_frees_the_lane_for_who_stays() -> None:
    lanes: Lanes[str] = Lanes()
    for item in ("drop-1", "keep-1", "drop-2"):
        lanes.add("a", item)
    lanes.add("b", "drop-3")
    assert sorted(lanes.drop(lambda item: item.startswith("drop"))) == ["drop-1", "drop-2", "drop-3"]
    assert lanes.has(lambda item: item == "keep-1")
    assert lanes.take() == "keep-1"
    assert not lanes.has(lambda item: item == "keep-1")
    lanes.release("a")
    assert len(lanes) == 0
    lanes.add("b", "later")
    assert lanes.take() == "later"


@given(
    st.lists(st.sampled_from("abc") | st.none(), max_size=40), st.integers(1, 4), st.randoms(use_true_random=False)
)
def test_order_per_key_holds_under_any_schedule(keys: list[str | None], concurrency: int, chance) -> None:  # type: ignore[no-untyped-def]
    lanes: Lanes[tuple[str | None, int]] = Lanes()
    coming = [(key, number) for number, key in enumerate(keys)]
    running: list[tuple[str | None, int]] = []
    ended: dict[str | None, list[int]] = defaultdict(list)
    while coming or running or len(lanes):
        moves = ["add"] * bool(coming) + ["end"] * bool(running)
        if len(running) < concurrency and lanes.ready_count():
            moves.append("take")
        match chance.choice(moves):
            case "add":
                item = coming.pop(0)
                lanes.add(item[0], item)
            case "take":
                taken = lanes.take()
                assert taken is not None
                assert taken[0] is None or taken[0] not in [key for key, _ in running]
                running.append(taken)
            case "end":
                item = running.pop(chance.randrange(len(running)))
                if item[0] is not None and chance.random() < 0.3:
                    lanes.again(item[0], item)
                    continue
                ended[item[0]].append(item[1])
                lanes.release(item[0])
    for key in set(keys) - {None}:
        assert ended[key] == [number for number, each in enumerate(keys) if each == key]
    assert sorted(ended[None]) == [number for number, each in enumerate(keys) if each is None]
