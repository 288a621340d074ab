"""A player carries a script out, holds on to what it hears while frozen, and stops when it is ended."""

from __future__ import annotations

from millpond.sim.clients.script import Script, ScriptRunner, Send, SendAll, Sleep
from millpond.wire import messages as m


def story(one_node, heard: list[object], client) -> Script[None]:
    yield Sleep(50)
    heard.append(one_node.sim.clock.now_ms)
    reply = yield Send(client, m.ApiVersionsRequest(), 0)
    heard.append(reply and reply.error_code)


def test_a_script_asks_and_rests(one_node) -> None:
    replies: list[object] = []
    over: list[int] = []
    began_ms = one_node.sim.clock.now_ms
    player = ScriptRunner(one_node.sim.clock, story(one_node, replies, one_node.client()), lambda: over.append(1))
    player.start()
    assert one_node.sim.run_until(lambda: player.is_over)
    assert replies == [began_ms + 50, 0]
    assert over == [1]


def test_a_lost_reply_is_heard_as_nothing(one_node) -> None:
    replies: list[object] = []
    client = one_node.client()
    player = ScriptRunner(one_node.sim.clock, story(one_node, replies, client))
    player.start()
    one_node.sim.run_until(lambda: client.in_flight > 0)
    client.disconnect()
    assert one_node.sim.run_until(lambda: player.is_over)
    assert replies[1] is None


def test_a_frozen_player_goes_on_where_it_was(one_node) -> None:
    replies: list[object] = []
    player = ScriptRunner(one_node.sim.clock, story(one_node, replies, one_node.client()))
    player.start()
    player.freeze()
    one_node.sim.run_for(500)
    assert replies == []
    thawed_ms = one_node.sim.clock.now_ms
    player.thaw()
    assert one_node.sim.run_until(lambda: player.is_over)
    assert replies == [thawed_ms + 50, 0]


def test_an_ended_player_hears_no_more(one_node) -> None:
    replies: list[object] = []
    player = ScriptRunner(one_node.sim.clock, story(one_node, replies, one_node.client()))
    player.start()
    one_node.sim.run_for(10)
    player.end()
    one_node.sim.run_for(500)
    assert replies == []


def test_requests_sent_together_are_answered_together(one_node) -> None:
    heard: list[object] = []
    client = one_node.client()

    def ask_twice() -> Script[None]:
        replies = yield SendAll(client, [m.ApiVersionsRequest()] * 2, 0)
        heard.extend(reply and reply.error_code for reply in replies)

    player = ScriptRunner(one_node.sim.clock, ask_twice())
    player.start()
    one_node.sim.run_until(lambda: client.in_flight > 0)
    assert client.in_flight == 2
    assert one_node.sim.run_until(lambda: player.is_over)
    assert heard == [0, 0]
