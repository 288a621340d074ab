"""A value that comes later: it ends once, by the first who ends it; values derived from it; many at once."""

from __future__ import annotations

import pytest

from millpond.base.later import Later, done, end_all, failed, gather
from millpond.sim.world.clock import VirtualClock


def test_a_reply_reaches_its_reader_whether_it_comes_before_or_after_him() -> None:
    heard: list[str] = []
    early: Later[str] = Later()
    early.finish("early")
    early.then(heard.append)
    late: Later[str] = Later()
    late.then(heard.append)
    assert heard == ["early"]
    late.finish("late")
    assert heard == ["early", "late"]


def test_only_the_first_answer_counts() -> None:
    heard: list[str] = []
    later: Later[str] = Later()
    later.finish("first")
    later.finish("second")
    later.then(heard.append)
    later.finish("third")
    assert heard == ["first"]


def test_on_end_comes_once_and_before_the_reply() -> None:
    heard: list[str] = []
    later: Later[str] = Later(on_end=lambda: heard.append("end"))
    later.then(heard.append)
    later.finish("reply")
    later.cancel()
    assert heard == ["end", "reply"]


def test_what_is_cancelled_is_not_delivered() -> None:
    heard: list[str] = []
    later: Later[str] = Later(on_end=lambda: heard.append("end"))
    later.then(heard.append)
    later.cancel()
    later.finish("too late")
    assert heard == ["end"]
    assert later.ended


def test_the_deadline_comes_unless_it_has_ended() -> None:
    clock = VirtualClock()
    heard: list[str] = []
    laters: dict[str, Later[str]] = {name: Later() for name in ("kept", "finished", "cancelled")}
    for name, later in laters.items():
        later.expire_after(clock, 100, lambda name=name: heard.append(name))  # type: ignore[misc]
    laters["finished"].finish("reply")
    laters["cancelled"].cancel()
    clock.run_for(99)
    assert heard == []
    clock.run_for(1)
    assert heard == ["kept"]
    assert clock.pending() == 0


def test_one_that_has_ended_sets_no_deadline() -> None:
    clock = VirtualClock()
    later: Later[str] = Later()
    later.finish("reply")
    later.expire_after(clock, 100, lambda: pytest.fail("ended long ago"))
    assert clock.pending() == 0


def test_it_has_one_reader() -> None:
    later: Later[str] = Later()
    later.then(lambda _: None)
    with pytest.raises(AssertionError, match="one reader"):
        later.then(lambda _: None)


def test_none_is_a_value() -> None:
    heard: list[None] = []
    done(None).then(heard.append)
    assert heard == [None]


def test_a_failure_reaches_its_reader_whether_it_comes_before_or_after_him() -> None:
    heard: list[str] = []
    failed(ValueError("early")).then(pytest.fail, lambda error: heard.append(str(error)))
    late: Later[str] = Later()
    late.then(pytest.fail, lambda error: heard.append(str(error)))
    late.fail(ValueError("late"))
    late.finish("a value after all")
    assert heard == ["early", "late"]


def test_an_unexpected_failure_is_raised() -> None:
    late: Later[str] = Later()
    late.then(pytest.fail)
    with pytest.raises(ValueError, match="late"):
        late.fail(ValueError("late"))
    with pytest.raises(ValueError, match="early"):
        failed(ValueError("early")).then(pytest.fail)


def test_what_is_made_of_a_value_and_of_a_failure() -> None:
    heard: list[object] = []
    source: Later[int] = Later()
    source.map(lambda number: number + 1).recover(ValueError, str).then(heard.append)
    source.finish(6)
    failed(ValueError("no number")).map(lambda number: number + 1).recover(ValueError, str).then(heard.append)
    assert heard == [7, "no number"]


def test_only_the_failure_that_is_meant_is_recovered() -> None:
    heard: list[Exception] = []
    failed(KeyError("k")).recover(ValueError, str).then(pytest.fail, heard.append)
    assert [type(error) for error in heard] == [KeyError]


def test_what_a_step_raises_is_the_results_failure_and_not_the_sources() -> None:
    heard: list[Exception] = []
    source: Later[int] = Later()
    source.map(lambda number: 1 // number).then(pytest.fail, heard.append)
    source.finish(0)
    chained: Later[int] = Later()
    chained.chain(lambda number: done(1 // number)).then(pytest.fail, heard.append)
    chained.finish(0)
    failed(KeyError()).recover(KeyError, lambda _: 1 // 0).then(pytest.fail, heard.append)
    assert [type(error) for error in heard] == [ZeroDivisionError] * 3


def test_a_chain_goes_on_with_what_the_value_begins() -> None:
    heard: list[str] = []
    first: Later[str] = Later()
    second: Later[str] = Later()
    first.chain(lambda value: second.map(lambda more: value + more)).then(heard.append)
    first.finish("a")
    assert heard == []
    second.finish("b")
    assert heard == ["ab"]


def test_cancelling_reaches_whatever_is_waited_for() -> None:
    ended: list[str] = []
    first: Later[int] = Later(lambda: ended.append("first"))
    first.map(str).cancel()
    second: Later[int] = Later(lambda: ended.append("second"))
    chained = done(1).chain(lambda _: second)
    chained.cancel()
    parts: list[Later[int]] = [Later(lambda: ended.append("part")) for _ in range(2)]
    gather(parts).cancel()
    never = Later[int]()
    never.chain(lambda _: pytest.fail("begun although nobody wants it")).cancel()
    never.finish(1)
    assert ended == ["first", "second", "part", "part"]


def test_parts_keep_their_order_whichever_ends_first() -> None:
    parts: list[Later[str]] = [Later(), Later(), Later()]
    whole: list[list[str]] = []
    gather(parts).then(whole.append)
    parts[2].finish("c")
    parts[0].finish("a")
    assert whole == []
    parts[1].finish("b")
    assert whole == [["a", "b", "c"]]


def test_nothing_to_wait_for_is_there_at_once() -> None:
    whole: list[list[str]] = []
    gather([]).then(whole.append)
    assert whole == [[]]


def test_the_first_part_that_fails_fails_the_whole() -> None:
    heard: list[str] = []
    parts: list[Later[str]] = [Later(), Later()]
    gather(parts).then(pytest.fail, lambda error: heard.append(str(error)))
    parts[1].fail(ValueError("one"))
    parts[0].fail(ValueError("two"))
    assert heard == ["one"]


@pytest.mark.parametrize("failure", [None, ValueError("all of them")])
def test_a_readers_bug_is_raised_once_all_have_been_told(failure: ValueError | None) -> None:
    heard: list[object] = []
    broken, sound = Later[int](), Later[int]()
    broken.then(lambda _: 1 // 0, lambda _: 1 // 0)  # type: ignore[arg-type]
    sound.then(heard.append, heard.append)
    with pytest.raises(ZeroDivisionError):
        end_all([(broken, 1), (sound, 2)], failure)
    assert heard == [failure or 2]
