from hypothesis import given
from hypothesis import strategies as st

from millpond.coordinators.transactions.timers import Timers


def test_the_earlier_deadline_wins_and_fires_once() -> None:
    timers = Timers()
    timers.set("a", 50)
    timers.set("a", 20)
    timers.set("a", 70)
    assert timers.next_ms() == 20
    assert timers.pop_due(60) == "a"
    assert timers.pop_due(60) is None


def test_beginning_again_and_again_costs_one_entry() -> None:
    timers = Timers()
    for deadline in range(100, 1100):
        timers.set("a", deadline)
    assert len(timers) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30))), st.integers(0, 30))
def test_due_transactions_are_found(settings: list[tuple[str, int]], now_ms: int) -> None:
    timers = Timers()
    earliest: dict[str, int] = {}
    for name, deadline in settings:
        timers.set(name, deadline)
        earliest[name] = min(deadline, earliest.get(name, deadline))
    due = list(iter(lambda: timers.pop_due(now_ms), None))
    assert sorted(due) == sorted(name for name, at in earliest.items() if at <= now_ms)
    left = [at for at in earliest.values() if at > now_ms]
    assert not left or (timers.next_ms() or 0) <= min(left)
