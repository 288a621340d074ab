"""The memory of partly received requests, bounded over all connections.

Over the limit, only the connection with the oldest request is read from, so that one request at a time still
completes; the others continue when there is room. Small requests use the shared scratch buffer and never stall. Each
address has a share with the same rule, so that one address cannot take all the memory.

A large request must keep arriving, because it takes memory from others. Its pace is measured over an interval, not by
the last byte. While others wait for its memory it must arrive faster, and they do not wait for it without limit.
"""

from __future__ import annotations

from typing import Final, Protocol

STUCK_MS: Final = 30_000
STUCK_BYTES: Final = 32 << 10
"""A request that brings fewer bytes within that time is given up."""

TURN_MS: Final = 3_000
TURN_BYTES: Final = 256 << 10
"""The same while others wait for the memory."""

WAITED_MS_MAX: Final = 30_000
"""How long others wait for one request, however steadily it arrives: at the slowest pace allowed, 100 MB would take
twenty minutes."""

LAST_PART: Final = 4
"""The share of one address is all but one of this many parts."""


class Pace:
    """How fast a large request arrives."""

    __slots__ = ("_stuck_since", "_turn_since", "_waited_since", "arrived_bytes")

    def __init__(self, now_ms: int) -> None:
        self.arrived_bytes = 0
        self.restart(now_ms)

    def restart(self, now_ms: int) -> None:
        """Measure from now on, because we did not read until now."""
        self._stuck_since = self._turn_since = (now_ms, self.arrived_bytes)
        self._waited_since: int | None = None

    def is_too_slow(self, now_ms: int, *, others_wait: bool) -> bool:
        (stuck_ms, stuck_bytes), (turn_ms, turn_bytes) = self._stuck_since, self._turn_since
        arrived = self.arrived_bytes
        too_slow = False
        if now_ms - stuck_ms > STUCK_MS:
            self._stuck_since = (now_ms, arrived)
            too_slow = arrived - stuck_bytes < STUCK_BYTES
        if now_ms - turn_ms > TURN_MS:
            self._turn_since = (now_ms, arrived)
            too_slow = too_slow or (others_wait and arrived - turn_bytes < TURN_BYTES)
        if not others_wait:
            self._waited_since = None
        elif self._waited_since is None:
            self._waited_since = now_ms
        else:
            too_slow = too_slow or now_ms - self._waited_since > WAITED_MS_MAX
        return too_slow


class Holder(Protocol):
    """A connection with part of a large request in memory."""

    host: str

    def set_stalled(self, stalled: bool) -> None:
        """Stop reading from the peer, or read again."""
        ...


class _Address:
    """What the connections of one address hold."""

    __slots__ = ("held", "held_bytes", "stalled")

    def __init__(self) -> None:
        self.held: dict[Holder, int] = {}
        """Oldest first."""
        self.held_bytes = 0
        self.stalled: dict[Holder, None] = {}


class RequestMemory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share_bytes = bytes_max - bytes_max // LAST_PART
        self._order: dict[Holder, None] = {}
        """All holders, oldest first."""
        self._addresses: dict[str, _Address] = {}
        self._stalled_count = 0
        self._counted_bytes = 0
        """The sum over the addresses, each capped at its share: bytes above it do not hold up other addresses."""
        self._is_over = False
        self.held_bytes = 0

    def hold(self, holder: Holder, count: int) -> None:
        """`holder` now keeps `count` bytes of an unfinished request; 0 when it is finished or gone."""
        address = self._addresses.get(holder.host)
        if address is None:
            address = self._addresses[holder.host] = _Address()
        more = count - address.held.get(holder, 0)
        self._counted_bytes -= min(address.held_bytes, self._share_bytes)
        address.held_bytes += more
        self._counted_bytes += min(address.held_bytes, self._share_bytes)
        self.held_bytes += more
        if count:
            address.held[holder] = count
            self._order.setdefault(holder)
        else:
            address.held.pop(holder, None)
            self._order.pop(holder, None)
            self._unstall(holder, address)
            if not address.held:
                del self._addresses[holder.host]
        self._settle(holder, address)

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for memory."""
        return self._stalled_count > 0

    def is_waited_for(self, holder: Holder) -> bool:
        """Whether a connection waits for the memory that this one holds."""
        address = self._addresses.get(holder.host)
        return address is not None and (self._is_over or bool(address.stalled)) and self.is_short

    def is_stalled(self, holder: Holder) -> bool:
        address = self._addresses.get(holder.host)
        return address is not None and holder in address.stalled

    def _settle(self, changed: Holder, address: _Address) -> None:
        was_over, self._is_over = self._is_over, self._counted_bytes > self._bytes_max
        if self._is_over:
            first = next(iter(self._order))
            if changed in address.held and changed is not first:
                self._stall(changed, address)
            self._resume([first], self._addresses[first.host])
            return
        if address.held_bytes > self._share_bytes and changed is not next(iter(address.held)):
            self._stall(changed, address)
        for each in list(self._addresses.values()) if was_over else [address]:
            is_within = each.held_bytes <= self._share_bytes
            self._resume(list(each.stalled) if is_within else [next(iter(each.held))], each)

    def _stall(self, holder: Holder, address: _Address) -> None:
        if holder not in address.stalled and holder in address.held:
            address.stalled[holder] = None
            self._stalled_count += 1
            holder.set_stalled(True)

    def _resume(self, holders: list[Holder], address: _Address) -> None:
        for holder in holders:
            if self._unstall(holder, address):
                holder.set_stalled(False)

    def _unstall(self, holder: Holder, address: _Address) -> bool:
        if holder not in address.stalled:
            return False
        del address.stalled[holder]
        self._stalled_count -= 1
        return True
