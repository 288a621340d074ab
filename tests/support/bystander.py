"""A listener that does next to nothing: it accepts every connection, answers each read with a few bytes, and closes
when the peer does. Prints its port and runs until its input ends.

A crowd that connects to it takes as much CPU time and kernel time as one that connects to a node. The effect of that
on a working client of the node is not the node's fault. It has the same nice value as the crowd.
"""

from __future__ import annotations

import os
import select
import socket
import sys

NICE = 19
BACKLOG = 1024
ANSWER = bytes(8)


def main() -> None:
    os.nice(NICE - os.nice(0))
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
    peers: dict[int, socket.socket] = {}
    print(listener.getsockname()[1], flush=True)
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                return
            if number == listener.fileno():
                try:
                    peer, _ = listener.accept()
                except OSError:
                    continue
                peer.setblocking(False)
                peers[peer.fileno()] = peer
                poll.register(peer, select.EPOLLIN)
                continue
            peer = peers[number]
            try:
                is_gone = not peer.recv(65536)
                if not is_gone:
                    peer.send(ANSWER)
            except BlockingIOError:
                continue
            except OSError:
                is_gone = True
            if is_gone:
                poll.unregister(number)
                del peers[number]
                peer.close()


if __name__ == "__main__":
    main()
