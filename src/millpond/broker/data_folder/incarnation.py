"""The file `broker.epoch`, which a broker leaves for its next incarnation.

It shows whether the next incarnation still has every record of this one. It does if the machine has not rebooted,
since a killed process loses nothing it has written, or if the store was shut down cleanly. The file is never removed:
an incarnation that dies before it has registered passes on what it found.
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
"""The epoch if records may have been lost, or if there was no earlier incarnation."""


@dataclass(frozen=True, slots=True)
class LastIncarnation:
    epoch: int
    """The broker epoch of the last incarnation that learned its own. LOST if records may have been lost since;
    `after_power_cut` of the epoch if only unsynced ones may have been."""
    boot_id: str
    incarnation_id: UUID | None = None
    """Set if an incarnation requested its epoch and may not have received it: the next one registers under this
    ID."""

    def next(self, boot_id: str, *, was_clean: bool, has_lost: bool) -> LastIncarnation:
        """The state for the next start, in this boot.

        `was_clean`: the store was shut down cleanly. `has_lost`: recovery found that records are missing.
        """
        if has_lost:
            return LastIncarnation(LOST, boot_id)
        if boot_id != self.boot_id and not was_clean:
            return LastIncarnation(after_power_cut(self.epoch), boot_id)
        # Reuse the incarnation ID only in the same boot: then everything it wrote is here, and no other process can
        # have its files.
        return LastIncarnation(self.epoch, boot_id, self.incarnation_id if boot_id == self.boot_id else None)


def read_last_incarnation(disk: Disk, folder: str) -> LastIncarnation:
    """Read the file; LOST if it is missing or damaged."""
    try:
        ((epoch, boot_id, incarnation_id),) = decode_lines(disk.read(f"{folder}/{FILE}"), 3)
        return LastIncarnation(int(epoch), boot_id, None if incarnation_id == "-" else UUID(incarnation_id))
    except (FileNotFoundError, DamagedCheckpoint, ValueError):
        return LastIncarnation(LOST, "-")


def write_last_incarnation(disk: Disk, folder: str, life: LastIncarnation) -> None:
    """Blocks on disk I/O."""
    row = (life.epoch, life.boot_id, life.incarnation_id or "-")
    disk.replace(f"{folder}/{FILE}", encode_lines([row]))
