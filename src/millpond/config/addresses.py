"""Parse and check the addresses in settings."""

from __future__ import annotations

from millpond.base.settings import SettingError, Value

LABEL_MAX = 63
"""The maximum length of a DNS label."""


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` (or `[v6]:port`). Raises SettingError if malformed."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"{address!r} is not an address of the form host:port")
    if not _is_name(host):
        raise SettingError(f"{address!r} is not an address: the host name is invalid")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_name(host: str) -> bool:
    """Whether the system resolver accepts it as a host name; the resolver itself raises no clear error."""
    if host.isascii():
        # The same check without loading the IDNA codec, which is rarely needed.
        *labels, last = host.split(".")
        return all(0 < len(label) <= LABEL_MAX for label in labels) and len(last) <= LABEL_MAX
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def address_fault(value: Value) -> str | None:
    try:
        host_and_port(str(value))
    except SettingError as fault:
        return str(fault)
    return None


def address_or_nothing(value: Value) -> str | None:
    return address_fault(value) if value else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it: localhost, ::1, and all of 127.0.0.0/8.

    A host name such as 127.example.com is not a loopback address.
    """
    if host in ("localhost", "127.0.0.1", "::1"):
        return True
    # Rarely needed, and commands start faster without it.
    from ipaddress import IPv6Address, ip_address

    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
