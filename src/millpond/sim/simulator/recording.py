"""A recording: the seed of a world, the actions with their times, and how long it ran. Equal recordings replay alike.

The link of a recording is its JSON, compressed, in URL-safe Base64. A campaign seed has a link as well
(`campaign.SCENARIO.SEED`). Links are untrusted input and are decoded with limits.
"""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from millpond.base.named_tuple import NamedTuple
from millpond.sim.simulator.actions import Action, BadAction, as_json, from_json

VERSION: Final = "1"
CAMPAIGN: Final = "campaign"
CONSOLE: Final = "127.0.0.1:8080"
"""Where a console listens by default."""
LINK_SIGNS_MAX: Final = 6_000
UNPACKED_BYTES_MAX: Final = 64 << 10
ACTIONS_MAX: Final = 200
SEED_MAX: Final = 2**32 - 1
NODES_MAX: Final = 5
RUN_MS_MAX: Final = 10 * 60 * 1000
"""How long a recording may last, in virtual time."""


class BadLink(Exception):
    """The link cannot be replayed; the message says why."""


class Move(NamedTuple):
    """An action and its time, in virtual milliseconds since the cluster was ready."""

    at_ms: int
    action: Action


@dataclass(frozen=True, slots=True)
class Recording:
    seed: int = 1
    nodes: int = 3
    moves: tuple[Move, ...] = ()
    end_ms: int = 0

    def cut(self, at_ms: int) -> Recording:
        """The part up to this moment."""
        return replace(self, moves=tuple(each for each in self.moves if each.at_ms <= at_ms), end_ms=at_ms)

    def then(self, action: Action) -> Recording:
        """This recording with the action appended."""
        tape = replace(self, moves=(*self.moves, Move(self.end_ms, action)))
        tape.check()
        return tape

    def until(self, end_ms: int) -> Recording:
        tape = replace(self, end_ms=max(self.end_ms, end_ms))
        tape.check()
        return tape

    def begins(self, other: Recording) -> bool:
        """Whether the other recording continues this one."""
        return (
            (self.seed, self.nodes) == (other.seed, other.nodes)
            and other.moves[: len(self.moves)] == self.moves
            and all(each.at_ms >= self.end_ms for each in other.moves[len(self.moves) :])
        )

    def check(self) -> None:
        if not 0 <= self.seed <= SEED_MAX:
            raise BadLink(f"The seed must be from 0 to {SEED_MAX:,}.")
        if not 1 <= self.nodes <= NODES_MAX:
            raise BadLink(f"There may be 1 to {NODES_MAX} nodes.")
        if len(self.moves) > ACTIONS_MAX:
            raise BadLink(f"A run may have {ACTIONS_MAX} actions: start another one.")
        if not 0 <= self.end_ms <= RUN_MS_MAX:
            raise BadLink(f"A run may last {RUN_MS_MAX // 60_000} minutes of its own time: start another one.")
        before = 0
        for each in self.moves:
            if not before <= each.at_ms <= self.end_ms:
                raise BadLink("The moments of its actions are not in order.")
            before = each.at_ms


@dataclass(frozen=True, slots=True)
class CampaignSeed:
    """One run of a campaign, determined by its scenario and seed."""

    scenario: str
    seed: int

    @property
    def link(self) -> str:
        return f"{CAMPAIGN}.{self.scenario}.{self.seed}"

    def where_to_see(self) -> str:
        """What a campaign prints for a failing seed."""
        return f"millpond sim replay {self.link}, or in a console http://{CONSOLE}/simulator?tape={self.link}"


def recording_of(steps: Iterable[Action | int], *, seed: int = 1, nodes: int = 3) -> Recording:
    """A recording from actions and the milliseconds between them."""
    at_ms = 0
    moves: list[Move] = []
    for step in steps:
        if isinstance(step, int):
            at_ms += step
        else:
            moves.append(Move(at_ms, step))
    tape = Recording(seed, nodes, tuple(moves), at_ms)
    tape.check()
    return tape


def encode(tape: Recording) -> str:
    """The link of a recording. Equal recordings have equal links."""
    moves = []
    before = 0
    for at_ms, action in tape.moves:
        moves.append([at_ms - before, *as_json(action)])
        before = at_ms
    shape = [tape.seed, tape.nodes, tape.end_ms, moves]
    packed = zlib.compress(json.dumps(shape, separators=(",", ":"), ensure_ascii=False).encode(), 9)
    return f"{VERSION}.{urlsafe_b64encode(packed).decode().rstrip('=')}"


def decode(link: str) -> Recording | CampaignSeed:
    """Decode a link; `BadLink` with a sentence if it is invalid."""
    link = _last_part(link.strip())
    if len(link) > LINK_SIGNS_MAX:
        raise BadLink(f"The link is too long: the limit is {LINK_SIGNS_MAX:,} characters.")
    version, _, packed = link.partition(".")
    if version == CAMPAIGN:
        return _campaign(packed)
    if version != VERSION:
        raise BadLink("This is not a link of the simulator: those begin with '1.' or 'campaign.'.")
    try:
        shape = json.loads(_unpack(packed))
        tape = _tape(shape)
    except (ValueError, RecursionError, TypeError) as wrong:
        raise BadLink("The link is damaged: was all of it copied?") from wrong
    except BadAction as wrong:
        raise BadLink(f"The link has an invalid action: {wrong}.") from wrong
    tape.check()
    return tape


def _last_part(text: str) -> str:
    """The link in the address of a page, or the text itself."""
    return text.partition("tape=")[2].partition("&")[0] if "tape=" in text else text


def _unpack(packed: str) -> bytes:
    try:
        data = urlsafe_b64decode(packed.encode("ascii") + b"=" * (-len(packed) % 4))
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(data, UNPACKED_BYTES_MAX)
    except (BadBase64, zlib.error) as wrong:
        raise ValueError("not a compressed link") from wrong
    if unpacker.unconsumed_tail or not unpacker.eof:
        if len(unpacked) >= UNPACKED_BYTES_MAX:
            raise BadLink(f"The link unpacks to more than {UNPACKED_BYTES_MAX >> 10} KiB.")
        raise ValueError("it ends too early")
    return unpacked


def _tape(shape: Any) -> Recording:
    seed, nodes, end_ms, moves = shape
    if not all(type(each) is int for each in (seed, nodes, end_ms)) or not isinstance(moves, list):
        raise ValueError("not a recording")
    if len(moves) > ACTIONS_MAX:
        raise BadLink(f"A run may have {ACTIONS_MAX} actions.")
    at_ms = 0
    made: list[Move] = []
    for move in moves:
        after_ms, *action = move
        if type(after_ms) is not int or not 0 <= after_ms <= RUN_MS_MAX:
            raise ValueError("not a moment")
        at_ms += after_ms
        made.append(Move(at_ms, from_json(action)))
    return Recording(seed, nodes, tuple(made), end_ms)


def _campaign(text: str) -> CampaignSeed:
    scenario, _, seed = text.partition(".")
    if not scenario.isidentifier() or not seed.isdecimal() or len(seed) > 12:
        raise BadLink("The link of a campaign seed is campaign.SCENARIO.SEED, for example campaign.faults.17.")
    return CampaignSeed(scenario, int(seed))
