"""The file `quorum-state`: this node's election state, which must survive a crash."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

from millpond.base.ports import Disk
from millpond.quorum.messages import ReplicaKey
from millpond.quorum.ports import Election

STATE_FILE = "quorum-state"


class DamagedState(Exception):
    """The file is damaged: this node's votes are unknown."""


def read_election(disk: Disk, path: str) -> Election | None:
    """The state last written; None if there is none."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(data)
        directory = UUID(bytes=urlsafe_b64decode(fields["votedDirectoryId"] + "=="))
        voted = ReplicaKey(int(fields["votedId"]), directory) if fields["votedId"] >= 0 else None
        return Election(
            int(fields["leaderEpoch"]),
            int(fields["leaderId"]),
            voted,
            bool(fields.get("isNew", False)),
            bool(fields.get("isFounder", False)),
            bool(fields.get("isRestored", False)),
        )
    except (ValueError, KeyError, TypeError) as fault:
        raise DamagedState(f"{path} cannot be read: {fault}") from fault


def write_election(disk: Disk, path: str, election: Election) -> None:
    """Write the state durably. Blocks on disk I/O."""
    voted = election.voted or ReplicaKey(-1, UUID(int=0))
    fields = {
        "leaderId": election.leader_id,
        "leaderEpoch": election.epoch,
        "votedId": voted.node_id,
        "votedDirectoryId": urlsafe_b64encode(voted.directory_id.bytes).decode().rstrip("="),
        "data_version": 1,
        # Not in Kafka's file: it identifies voters by their directory IDs and does not need these.
        "isNew": election.is_new,
        "isFounder": election.is_founder,
        "isRestored": election.is_restored,
    }
    disk.replace(path, json.dumps(fields).encode())
