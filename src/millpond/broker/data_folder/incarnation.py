"""What a broker leaves for its next life: the file `broker.epoch`.

With it the next life knows whether it still has everything that this one had: it has if the machine kept its power
(the boot is the same), for a process that was killed has lost nothing that it wrote, or if the store was closed in
order. The file is never taken away: a life that dies before it has registered passes on what it found.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from millpond.base.ports import Disk
from millpond.base.values import dataclass
from millpond.log.checkpoints import DamagedCheckpoint, decode_lines, encode_lines
from millpond.metadata.brokers import after_power_cut

FILE: Final = "broker.epoch"
LOST: Final = -1
"""The epoch of a life that may have lost records, or of none."""


@dataclass(frozen=True, slots=True)
class LastIncarnation:
    epoch: int
    """The broker epoch of the last life that heard its own; LOST if records may have been lost since, and
    `after_power_cut` of it if no others than those that were not synced."""
    boot_id: str
    incarnation_id: UUID | None = None
    """Of a life that has asked for its epoch and may not have heard it: the next one asks under the same name."""

    def next(self, boot_id: str, *, was_clean: bool, has_lost: bool) -> LastIncarnation:
        """What counts on the next start, in this boot.

        `was_clean`: the store was closed in order. `has_lost`: recovery found that records are missing.
        """
        if has_lost:
            return LastIncarnation(LOST, boot_id)
        if boot_id != self.boot_id and not was_clean:
            return LastIncarnation(after_power_cut(self.epoch), boot_id)
        # Under its name only in the same boot: what it wrote is there then, and nobody else can have its files.
        return LastIncarnation(self.epoch, boot_id, self.incarnation_id if boot_id == self.boot_id else None)


def read_last_incarnation(disk: Disk, folder: str) -> LastIncarnation:
    """A folder without the file, or with a damaged one, has no last life that could be trusted."""
    try:
        ((epoch, boot_id, incarnation_id),) = decode_lines(disk.read(f"{folder}/{FILE}"), 3)
        return LastIncarnation(int(epoch), boot_id, None if incarnation_id == "-" else UUID(incarnation_id))
    except (FileNotFoundError, DamagedCheckpoint, ValueError):
        return LastIncarnation(LOST, "-")


def write_last_incarnation(disk: Disk, folder: str, life: LastIncarnation) -> None:
    """Waits for the disk."""
    row = (life.epoch, life.boot_id, life.incarnation_id or "-")
    disk.replace(f"{folder}/{FILE}", encode_lines([row]))
