"""The least that a response can cost in Python: a loop that reads anything and sends fixed bytes.

It decodes and stores nothing. Costs above it are those of the broker.
"""

from __future__ import annotations

import socket
import sys

from bench import raw
from bench.node import HOST, Node
from millpond.node.serve import new_loop
from millpond.wire import messages as m
from millpond.wire.header import response_header


class Floor(Node):
    """Runs the bare loop instead of a node."""

    def words(self, folder: str) -> list[str]:
        return [sys.executable, "-m", "bench.floor", str(self.port)]


def reply(topic: str) -> bytes:
    """The response to a Produce of one record, with its length."""
    part = m.ProduceResponse.PartitionProduceResponse(index=0)
    found = m.ProduceResponse.TopicProduceResponse(name=topic, partition_responses=[part])
    body = m.ProduceResponse(responses=[found]).encode(raw.PRODUCE_VERSION)
    whole = response_header(0, raw.PRODUCE_VERSION, 1) + body
    return raw.LENGTH.pack(len(whole)) + whole


def serve(port: int, answer: bytes) -> None:
    loop = new_loop()
    listener = socket.create_server((HOST, port), backlog=1024)
    listener.setblocking(False)
    room = bytearray(1 << 16)

    def accept() -> None:
        peer, _ = listener.accept()
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def readable() -> None:
            if peer.recv_into(room):
                peer.send(answer)
            else:
                loop.remove_reader(peer.fileno())
                peer.close()

        loop.add_reader(peer.fileno(), readable)

    loop.add_reader(listener.fileno(), accept)
    loop.run_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), reply("one"))
