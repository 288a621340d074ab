"""NATS JetStream with a file store and default settings (a sync every two minutes)."""

from __future__ import annotations

import json
import os

from bench.node import HOST
from bench.peers.foreign import ForeignNode, program


class NatsNode(ForeignNode):
    def words(self, folder: str) -> list[str]:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(self._root, "nats.conf")
        settings = {
            "listen": f"{HOST}:{self.port}",
            "ping_interval": "1h",
            "jetstream": {"store_dir": folder, "max_memory_store": 1 << 30, "max_file_store": 20 << 30},
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file)
        return [program("nats-server", "nats-server"), "-c", path]
