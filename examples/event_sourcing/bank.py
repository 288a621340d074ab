"""Accounts as events: nothing is overwritten, and the state at any time is the sum of the events until then.

Usage: bank.py deposit|withdraw NAME CENTS
       bank.py show [--at TIME | --until OFFSET]        TIME as 2026-01-31T08:30:00.250+00:00
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime

from millpond import Consumer, Message, Producer

EVENTS = "bank.events"
"""One partition: all events are in one order."""

State = dict[str, int]


def apply(state: State, event: Message) -> State:
    """Apply an event to the balances."""
    told = event.json()
    change = {"deposited": 1, "withdrawn": -1}[told["event"]] * told["cents"]
    return state | {told["name"]: state.get(told["name"], 0) + change}


def events() -> Iterator[Message]:
    """All events up to now, from the first on."""
    with Consumer(topics=[EVENTS]) as consumer:
        while any(consumer.lag().values()):
            yield from consumer.poll()


def state_at(moment: datetime | None = None, until: int | None = None) -> State:
    state: State = {}
    for event in events():
        is_later = moment is not None and event.time is not None and event.time > moment
        if is_later or (until is not None and event.offset >= until):
            break
        state = apply(state, event)
    return state


def record(event: str, name: str, cents: int) -> None:
    if event == "withdrawn" and state_at().get(name, 0) < cents:
        sys.exit(f"{name} does not have {cents} cents")
    with Producer() as producer:
        place = producer.send(EVENTS, {"event": event, "name": name, "cents": cents}, key=name).result()
    when = datetime.fromtimestamp(place.timestamp_ms / 1000).astimezone()
    print(f"event {place.offset} at {when.isoformat(timespec='milliseconds')}")


def main(verb: str, *rest: str) -> None:
    match verb, rest:
        case "deposit", (name, cents):
            record("deposited", name, int(cents))
        case "withdraw", (name, cents):
            record("withdrawn", name, int(cents))
        case "show", ("--at", moment):
            show(state_at(datetime.fromisoformat(moment)))
        case "show", ("--until", offset):
            show(state_at(until=int(offset)))
        case "show", ():
            show(state_at())
        case _:
            sys.exit(__doc__)


def show(state: State) -> None:
    for name, cents in sorted(state.items()):
        print(f"{name} {cents}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
