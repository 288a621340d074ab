"""The client of the simulator against a node: replies in order, and losses told once."""

from __future__ import annotations

from millpond.wire import messages as m


def api_versions() -> m.ApiVersionsRequest:
    return m.ApiVersionsRequest(client_software_name="sim", client_software_version="1")


def test_replies_come_in_the_order_of_requests(one_node) -> None:
    client, heard = one_node.client(), []
    for number in range(10):
        client.send(api_versions(), 3, lambda reply, number=number: heard.append((number, reply.error_code)))
    assert one_node.sim.run_until(lambda: len(heard) == 10)
    assert heard == [(number, 0) for number in range(10)]
    assert client.in_flight == 0


def test_a_broken_connection_is_told_once_for_each_request_and_made_anew(one_node) -> None:
    client, heard = one_node.client(), []
    client.send(api_versions(), 3, heard.append)
    client.send(api_versions(), 3, heard.append)
    one_node.node.kill()
    assert one_node.sim.run_until(lambda: len(heard) == 2)
    assert heard == [None, None]
    one_node.node.start()
    client.send(api_versions(), 3, heard.append)
    assert one_node.sim.run_until(lambda: len(heard) == 3)
    assert heard[2].error_code == 0
    assert client.connections_made == 2


def test_a_silent_node_is_given_up_after_the_timeout(one_node) -> None:
    client, heard = one_node.client(), []
    client.send(api_versions(), 3, heard.append)
    assert one_node.sim.run_until(lambda: len(heard) == 1)
    one_node.node.crash()
    before = one_node.sim.clock.now_ms
    client.send(api_versions(), 3, heard.append)
    assert one_node.sim.run_until(lambda: len(heard) == 2)
    assert heard[1] is None
    assert one_node.sim.clock.now_ms - before == client.timeout_ms
