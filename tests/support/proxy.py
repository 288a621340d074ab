"""A link that breaks: forwards connections to a node, and cuts them when the test says so."""

from __future__ import annotations

import socket
import struct
import threading

from support.node import HOST


class Proxy:
    """Listens on its own port. `cut` closes all connections; while `mute`, requests pass and replies are lost."""

    def __init__(self, port: int, target_port: int) -> None:
        self.mute = False
        self.cuts = 0
        self._target_port = target_port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """Connections made since the last cut."""
        with self._lock:
            return len(self._pairs)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if not (is_reply and self.mute):
                    target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            _end(each)

    def cut(self) -> None:
        """Close all connections as a broken link would."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                _end(each)
        self.cuts += 1

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _end(side: socket.socket) -> None:
    try:
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    side.close()
