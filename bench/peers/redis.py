"""Redis streams, with the append-only file that Redis recommends for durable data: synced every second."""

from __future__ import annotations

import os

from bench.node import HOST
from bench.peers.foreign import ForeignNode, program


class RedisNode(ForeignNode):
    def words(self, folder: str) -> list[str]:
        os.makedirs(folder, exist_ok=True)
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": folder,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            **self.settings,
        }
        words = [word for name, text in settings.items() for word in (f"--{name}", text)]
        return [program("redis-server", "redis-server"), *words]
