"""Addresses as people write and read them."""

from __future__ import annotations

from typing import Final

from millpond.config.node import LISTEN, host_and_port

METRICS_DEFAULT: Final = "127.0.0.1:9692"
HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches a listener on every address."""


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(text: str) -> str:
    """Completes a port or a host alone from the default address."""
    return _completed(text, LISTEN.default)


def metrics_address(text: str, at: int = 0) -> str:
    """The same for the metrics of the node with index `at`: consecutive nodes have consecutive ports."""
    host, port = host_and_port(_completed(text, METRICS_DEFAULT))
    return shown_address(host, port + at if port else 0)


def _completed(text: str, default: str) -> str:
    host, port = host_and_port(default)
    if text.isdigit():
        return f"{host}:{text}"
    return text if ":" in text else f"{text}:{port}"
