"""Addresses as people write and read them."""

from __future__ import annotations

from millpond.config.node import LISTEN, host_and_port


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(text: str) -> str:
    """A port alone, or a host alone, is completed from the default address."""
    host, port = host_and_port(LISTEN.default)
    if text.isdigit():
        return f"{host}:{text}"
    return text if ":" in text else f"{text}:{port}"
