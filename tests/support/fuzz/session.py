"""One run of a node among hostile clients: a seed decides who connects, what they send and when time passes."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from random import Random

from millpond.base.scram import ScramClient, ScramFault
from millpond.wire import messages as m
from support.fuzz.answers import LENGTH, Signature
from support.fuzz.corpus import Corpus
from support.fuzz.frames import FrameMaker, Token
from support.fuzz.heavy import HeavyMaker
from support.fuzz.pools import Pools
from support.fuzz.recording import replay
from support.fuzz.scenes import LODGER, OF_LOGIN, PASSWORD, SCENES, STRANGER, Scene
from support.fuzz.target import Act, HostileLink, Target, fault_kind, told
from support.fuzz.watch import DOORS, OPENED, TIDY_FRAMES, Endless, Found, Slow, calm_collector, open_files

MUTANTS = 4
"""How many mutants are made of one request."""

WHOLE_SHARE = 0.8
"""Most are sent intact: most mutations close the connection, and lose its state."""

FAULTS_SKIPPED = 0.7
"""Most rejections are alike: this share of them is not examined."""

WEIGHED_FRAMES = 10_000
"""A shorter run is not measured for memory."""

GROWTH_BYTES_MAX = 48 << 20
"""How much a node may grow in two thirds of its run: groups, producers and everything else that is bounded."""

BABBLE_BYTES_MAX = 1 << 20
"""More noise would be measured together with the campaign's own copies of it."""

REMEMBERED_BYTES = 2_000
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGIN_MS = 20
"""How long a worker takes to hash a password."""

LONG_PAUSES_MS = (1_000, 10_000, 60_000, 700_000)

HEAVY_SHARE = 0.001
"""The share of deliberately costly requests: each takes as long as hundreds of others."""

SLOW_ONCE = "0 slow once"
"""A turn of the loop took too long, but not on replay."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one run."""

    seed: int
    scene: str = ""
    frames: int = 0
    connections: int = 0
    answers: int = 0
    longest_ms: float = 0.0
    cpu_seconds: float = 0.0
    grown_bytes: int = 0
    """How much the node has grown in two thirds of its run."""
    memory_bytes: tuple[int, int] | None = None
    """The memory of the process at the first measurement and now, if it was measured."""
    findings: list[str] = field(default_factory=list)
    ended: str = ""
    """Why the run ended early, if that is not an error."""
    acts: list[Act] = field(default_factory=list)
    """Everything that was done, if something was found."""
    kept: list[tuple[Signature, list[Token]]] = field(default_factory=list)
    """Requests with outcomes that the corpus did not have."""


class FuzzSession:
    """The seed also chooses the scene, unless one is given."""

    def __init__(self, seed: int, frames: int, corpus: Corpus, scene: Scene | None = None) -> None:
        self.seed = seed
        self._scene = scene = scene or SCENES[seed % len(SCENES)]
        self._frames = frames
        self._draw = Random(seed)
        self._random = self._draw.random
        self._corpus = corpus
        self._pools = Pools(self._draw)
        self._maker = FrameMaker(self._draw, self._pools, scene.keys)
        self._heavy = HeavyMaker(self._draw, scene.keys)
        self._outcome = Outcome(seed, scene.name)
        self._known = set(scene.keys)
        self._last = b""
        self._to_come: list[tuple[list[Token], bytes]] = []
        """Mutants of one request that are not sent yet."""

    def run(self) -> Outcome:
        outcome = self._outcome
        began = time.process_time()
        target: Target | None = None
        try:
            target = Target(self.seed, self._scene)
            secrets = target.prepare()
            if not self._scene.knows_canary:
                self._pools.secrets = secrets
            before = target.state()
            target.acts.clear()
            calm_collector()
            files = open_files()
            DOORS.begin()
            with Endless() as endless:
                self._play(target, endless)
            DOORS.listens = False
            if 0 < files < (now := open_files()):
                raise Found(f"it {OPENED}: {now - files} more files are open than before")
            if target.node.is_up:
                self._check(target, before)
        except Slow as slow:
            DOORS.listens = False
            assert target is not None
            # A single slow turn may be the machine's fault, or code that is compiled on first use.
            again = replay(self.seed, self._scene, target.acts) if target.acts else None
            if again is None:
                outcome.ended = SLOW_ONCE
            else:
                outcome.findings.append(f"{slow}, and again: {again}; after {self._last[:300].hex()}")
        except Found as found:
            outcome.findings.append(f"{found}; after {self._last[:300].hex()}")
        except Exception as error:
            outcome.findings.append(f"the campaign itself: {told(error)}")
        finally:
            DOORS.listens = False
            gc.enable()
        outcome.cpu_seconds = time.process_time() - began
        if target is not None:
            outcome.frames = target.frames
            outcome.acts = target.acts if outcome.findings else []
            if not outcome.ended:
                outcome.longest_ms = 1000 * target.turn.longest_seconds
            if not target.node.is_up:
                outcome.ended = (target.node.journal_lines or ["?"])[-1]
        return outcome

    def _check(self, target: Target, before: dict[str, object]) -> None:
        if self._scene.changes_nothing:
            after = target.state()
            changed = {name: (before.get(name), value) for name, value in after.items() if value != before.get(name)}
            if "metadata" in changed:
                was, now = changed["metadata"]
                # What was added, and what was removed.
                changed["metadata"] = sorted(set(now) - set(was)), sorted(set(was) - set(now))
            if changed:
                raise Found(f"{self._scene.name}: changed {str(changed)[:500]}")
        if self._scene.spares_canary and not target.has_other_settings():
            target.check_canary()
        target.check_disk()

    def _play(self, target: Target, endless: Endless) -> None:
        frames = target.frames
        silent: list[HostileLink] = []
        weighed = 0
        weigh_at = frames + self._frames // 3
        tidy_at = frames + TIDY_FRAMES
        while target.frames - frames < self._frames:
            endless.begin()
            if target.frames >= weigh_at and not weighed and self._frames >= WEIGHED_FRAMES:
                weighed = target.own_bytes()
            if target.frames >= tidy_at:
                tidy_at += TIDY_FRAMES
                target.forget_cancelled()
                gc.collect()
            link = target.connect(self._pools, reads=self._random() < 0.95)
            if link is None:
                if target.has_other_settings():
                    self._outcome.ended = "0 configured to accept no connection"
                    return
                raise Found("no connection is accepted any more")
            self._outcome.connections += 1
            self._talk(target, link)
            target.weigh()
            if not link.alive:
                pass
            elif self._random() < 0.3:
                silent.append(link)
            else:
                target.abort(link)
            if len(silent) > 40:
                target.part(silent.pop(int(self._random() * len(silent))))
            if self._random() < 0.3:
                target.pass_time(int(self._random() * 4))
            if self._random() < 0.0004:
                target.pass_time(LONG_PAUSES_MS[int(self._random() * len(LONG_PAUSES_MS))])
            self._outcome.answers += link.answers.count
            if not target.node.is_up:
                return
        for link in silent:
            target.part(link)
        target.pass_time(10_000)
        if weighed:
            self._outcome.grown_bytes = target.own_bytes() - weighed
            if self._outcome.grown_bytes > GROWTH_BYTES_MAX:
                raise Found(f"memory has grown by {self._outcome.grown_bytes >> 20} MiB since a third of the frames")

    # One connection

    def _talk(self, target: Target, link: HostileLink) -> None:
        chance = self._random()
        if chance < 0.03:
            self._babble(target, link)
            return
        whole = chance < 0.97
        if self._scene is STRANGER and chance < 0.06:
            self._log_in(target, link)
        elif self._scene is STRANGER and chance < 0.5:
            # Without a valid start nothing else of a login is examined.
            self._to_come = [self._request_of(key) for key in (OF_LOGIN[1], OF_LOGIN[1], OF_LOGIN[0])]
        for _ in range(1 + int(self._random() * 40)):
            if not self._to_come:
                self._to_come = self._requests()
            tokens, data = self._to_come.pop()
            link.answers.ask(data)
            framed = LENGTH.pack(len(data)) + data
            self._last = framed
            if self._random() < 0.02 and len(data) < REMEMBERED_BYTES:
                self._pools.frames.append(data)
            before = len(link.answers.signatures)
            if len(framed) > BABBLE_BYTES_MAX:
                target.forget_peak()
            if whole or len(framed) > 5000:
                target.deliver(link, framed, data)
            else:
                self._crumble(target, link, framed, data)
            self._keep(link, tokens, before)
            if not link.alive:
                return
            if self._random() < 0.05:
                target.pass_time(int(self._random() * 3))

    def _log_in(self, target: Target, link: HostileLink) -> None:
        """Log in correctly, or almost. What follows comes from a client that is, is not, or was authenticated."""
        mechanism = self._pools.one_of(MECHANISMS)
        password = PASSWORD if self._random() < 0.7 else "guess"
        self._say(target, link, m.SaslHandshakeRequest(mechanism=mechanism), 1)
        if mechanism == "PLAIN":
            self._say(target, link, m.SaslAuthenticateRequest(auth_bytes=f"\0{LODGER}\0{password}".encode()), 2)
            return
        client = ScramClient(mechanism, LODGER, password, f"{self._draw.getrandbits(64):x}")
        self._say(target, link, m.SaslAuthenticateRequest(auth_bytes=client.first()), 2)
        try:
            proof = client.next(self._pools.last("auth_bytes") or b"")
        except ScramFault:
            return
        self._say(target, link, m.SaslAuthenticateRequest(auth_bytes=proof or b""), 1)

    def _say(self, target: Target, link: HostileLink, request: m.Message, version: int) -> None:
        if link.alive:
            data = self._maker.decent(request, version)
            link.answers.ask(data)
            self._last = LENGTH.pack(len(data)) + data
            target.deliver(link, self._last, data)
            target.pass_time(LOGIN_MS)

    def _requests(self) -> list[tuple[list[Token], bytes]]:
        """A valid request, or several mutants."""
        maker = self._maker
        if self._heavy.makes_any and self._random() < HEAVY_SHARE:
            return [([], maker.decent(*self._heavy.request()))]
        chance = self._random()
        requests = self._corpus.requests
        if chance < 0.45 or not requests:
            tokens = maker.fresh()
        else:
            tokens = maker.again(requests[int(self._random() * len(requests))])
            if not self._is_ours(tokens):
                tokens = maker.fresh()
        if self._random() < WHOLE_SHARE:
            return [(tokens, b"".join([token[2] for token in tokens]))]
        made = []
        for _ in range(MUTANTS):
            changed = maker.spoilt(tokens)
            made.append((changed, maker.bytes_of(changed)))
        return made

    def _request_of(self, key: int) -> tuple[list[Token], bytes]:
        tokens = self._maker.fresh(key)
        return tokens, b"".join([token[2] for token in tokens])

    def _is_ours(self, tokens: list[Token]) -> bool:
        return bool(tokens) and int.from_bytes(tokens[0][2], "big", signed=True) in self._known

    def _crumble(self, target: Target, link: HostileLink, framed: bytes, data: bytes) -> None:
        """The same in pieces."""
        at = 0
        while at < len(framed) and link.alive:
            end = at + 1 + int(self._random() * 30)
            target.deliver(link, framed[at:end], data)
            at = end

    def _babble(self, target: Target, link: HostileLink) -> None:
        """An invalid stream: lengths that lie, truncated frames, noise, all at once."""
        link.answers.is_judged = False
        stream = b""
        for _ in range(1 + int(self._random() * 10)):
            _, data = self._requests()[0]
            if len(stream) + len(data) > BABBLE_BYTES_MAX:
                break
            chance = self._random()
            length = len(data)
            if chance < 0.3:
                length = int.from_bytes(self._pools.integer_at_limit("int32"), "big", signed=True)
            elif chance < 0.6:
                length += int(self._random() * 9) - 4
            elif chance < 0.7:
                data = self._draw.randbytes(int(self._random() * 300))
            stream += struct_length(length) + data
        self._last = stream
        target.deliver(link, stream, stream)

    def _keep(self, link: HostileLink, tokens: list[Token], before: int) -> None:
        signatures = link.answers.signatures
        if not tokens:
            # A heavy request is generated each time, and is too large for the corpus.
            return
        if link.fault:
            if self._random() < FAULTS_SKIPPED:
                return
            signature: Signature = (int.from_bytes(tokens[0][2][:2], "big") if tokens else -1, fault_kind(link.fault))
        elif len(signatures) > before:
            signature = signatures[-1]
            signatures.clear()
        else:
            return
        if not self._corpus.knows(signature) and self._corpus.add(signature, tokens):
            self._outcome.kept.append((signature, tokens))


def struct_length(length: int) -> bytes:
    return (length & 0xFFFFFFFF).to_bytes(4, "big")
