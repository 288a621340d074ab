"""The bootstrap addresses of a cluster."""

from __future__ import annotations

import os
from typing import Final

from millpond.base.named_tuple import NamedTuple
from millpond.base.settings import SettingError
from millpond.config.node import host_and_port
from millpond.remote.errors import ConfigError

BOOTSTRAP_VARIABLE: Final = "MILLPOND_BOOTSTRAP"
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"


class Address(NamedTuple):
    host: str
    port: int


def bootstrap_servers(configured: str | None, otherwise: str | None = None) -> str:
    """The configured addresses, else MILLPOND_BOOTSTRAP, else `otherwise`, else the local node."""
    return configured or os.environ.get(BOOTSTRAP_VARIABLE) or otherwise or BOOTSTRAP_DEFAULT


def addresses(text: str) -> list[Address]:
    parsed = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            parsed.append(Address(*host_and_port(each)))
        except SettingError as fault:
            raise ConfigError(f"bootstrap.servers={text}: {fault}") from None
    if not parsed:
        raise ConfigError("bootstrap.servers names no broker; give HOST:PORT,…")
    return parsed
