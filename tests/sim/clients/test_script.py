"""A player carries a script out, holds on to what it hears while frozen, and stops when it is ended."""

from __future__ import annotations

from millpond.sim.clients.script import Ask, AskAll, Player, Rest, Script
from millpond.wire import messages as m


def story(pond, heard: list[object], client) -> Script[None]:
    yield Rest(50)
    heard.append(pond.sim.clock.now_ms)
    reply = yield Ask(client, m.ApiVersionsRequest(), 0)
    heard.append(reply and reply.error_code)


def test_a_script_asks_and_rests(pond) -> None:
    heard: list[object] = []
    over: list[int] = []
    began_ms = pond.sim.clock.now_ms
    player = Player(pond.sim.clock, story(pond, heard, pond.client()), lambda: over.append(1))
    player.start()
    assert pond.sim.run_until(lambda: player.is_over)
    assert heard == [began_ms + 50, 0]
    assert over == [1]


def test_a_lost_reply_is_heard_as_nothing(pond) -> None:
    heard: list[object] = []
    client = pond.client()
    player = Player(pond.sim.clock, story(pond, heard, client))
    player.start()
    pond.sim.run_until(lambda: client.in_flight > 0)
    client.disconnect()
    assert pond.sim.run_until(lambda: player.is_over)
    assert heard[1] is None


def test_a_frozen_player_goes_on_where_it_was(pond) -> None:
    heard: list[object] = []
    player = Player(pond.sim.clock, story(pond, heard, pond.client()))
    player.start()
    player.freeze()
    pond.sim.run_for(500)
    assert heard == []
    thawed_ms = pond.sim.clock.now_ms
    player.thaw()
    assert pond.sim.run_until(lambda: player.is_over)
    assert heard == [thawed_ms + 50, 0]


def test_an_ended_player_hears_no_more(pond) -> None:
    heard: list[object] = []
    player = Player(pond.sim.clock, story(pond, heard, pond.client()))
    player.start()
    pond.sim.run_for(10)
    player.end()
    pond.sim.run_for(500)
    assert heard == []


def test_requests_sent_together_are_answered_together(pond) -> None:
    heard: list[object] = []
    client = pond.client()

    def ask_twice() -> Script[None]:
        replies = yield AskAll(client, [m.ApiVersionsRequest()] * 2, 0)
        heard.extend(reply and reply.error_code for reply in replies)

    player = Player(pond.sim.clock, ask_twice())
    player.start()
    pond.sim.run_until(lambda: client.in_flight > 0)
    assert client.in_flight == 2
    assert pond.sim.run_until(lambda: player.is_over)
    assert heard == [0, 0]
