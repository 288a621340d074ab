"""Observers of the controller: the events that parts of a node can register for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.base.later import Later
from millpond.metadata.records import Record

OnChange = Callable[[Sequence[Record]], Later[None]]
OnRole = Callable[[bool], None]


class ControllerObservers:
    def __init__(self, is_active: Callable[[], bool]) -> None:
        self._is_active = is_active
        self._change: list[OnChange] = []
        self._offset: list[Callable[[], None]] = []
        self._role: list[OnRole] = []
        self._first_peer: list[Callable[[], None]] = []
        self._disk_space: list[Callable[[], None]] = []

    def on_change(self, observer: OnChange) -> None:
        """Call `observer` with every group of records once they are committed and replayed, on every node.

        The reply to their decision waits until the returned `Later` has ended.
        """
        self._change.append(observer)

    def on_offset(self, observer: Callable[[], None]) -> None:
        """Call `observer` when `applied_offset` has passed a batch without records, such as a change of voters."""
        self._offset.append(observer)

    def on_role(self, observer: OnRole) -> None:
        """Call `observer` when this node has become the active controller (True), or no longer is (False)."""
        self._role.append(observer)
        if self._is_active():
            observer(True)

    def on_first_peer(self, observer: Callable[[], None]) -> None:
        """Call `observer` once another node has registered with this one, which was alone."""
        self._first_peer.append(observer)

    def on_disk_space(self, observer: Callable[[], None]) -> None:
        """Call `observer` when the disk of another broker is full, or no longer is."""
        self._disk_space.append(observer)

    # For the controller.

    def change(self, records: Sequence[Record]) -> list[Later[None]]:
        return [observer(records) for observer in self._change]

    def offset(self) -> None:
        _call(self._offset)

    def role(self, is_active: bool) -> None:
        for observer in self._role:
            observer(is_active)

    def first_peer(self) -> None:
        _call(self._first_peer)

    def disk_space(self) -> None:
        _call(self._disk_space)


def _call(observers: Sequence[Callable[[], None]]) -> None:
    for observer in observers:
        observer()
