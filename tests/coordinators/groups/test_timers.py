"""The heap of deadlines against a plain dict."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.coordinators.groups.timers import TimerKey, Timers

A, B = TimerKey("session", "g", "a"), TimerKey("session", "g", "b")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from([A, B]), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.sampled_from([A, B])),
        st.tuples(st.just("pop"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_is_what_a_plain_dict_says(events: list[tuple]) -> None:
    timers, model = Timers(), {}
    for event in events:
        match event:
            case ("set", key, at_ms):
                timers.set(key, at_ms)
                model[key] = at_ms
            case ("cancel", key):
                timers.cancel(key)
                model.pop(key, None)
            case ("pop", now_ms):
                key = timers.pop_due(now_ms)
                earliest = min(model.values(), default=None)
                if key is None:
                    assert earliest is None or earliest > now_ms
                else:
                    assert model.pop(key) == earliest <= now_ms
        assert timers.next_ms() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert (A in timers) == (A in model)


def test_moving_a_deadline_back_costs_no_memory() -> None:
    timers = Timers()
    for at_ms in range(10_000):
        timers.set(A, at_ms)
        timers.set(B, at_ms)
    assert len(timers._heap) == 2
    assert timers.next_ms() == 9999


def test_members_that_come_and_go_cost_no_memory() -> None:
    timers = Timers()
    timers.set(A, 5)
    for number in range(10_000):
        key = TimerKey("session", "g", str(number))
        timers.set(key, 1_800_000 + number)
        timers.cancel(key)
    assert len(timers._heap) + len(timers._placed) < 300
    assert timers.next_ms() == 5
