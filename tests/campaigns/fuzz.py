"""Hostile clients by the million against a whole node in the simulated world; what they did is counted.

    python tests/campaigns/fuzz.py --frames 10000000 --jobs 2 --corpus build/fuzz/corpus.jsonl

Whatever is found is kept as a tape, and printed with the command that plays it again. Requests that led to something
new are kept in the corpus, and the next run begins with them. With `--tally` a campaign goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.fuzz.corpus import Corpus
from support.fuzz.life import Life, Outcome
from support.fuzz.real import RealLife
from support.fuzz.tape import load, replay, save
from support.fuzz.watch import memory_bytes
from support.seeds import fresh_seed

FRAMES_PER_LIFE = 20_000
LIVES_PER_PROCESS = 50
GROWTH_BYTES_MAX = 64 << 20
"""What a process may gain from its fifth life to its last."""

_corpus = Corpus()
_memory: list[int] = []


def begin(path: Path | None) -> None:
    if path is not None:
        _corpus.load(path)


def play(work: tuple[int, int]) -> Outcome:
    seed, frames = work
    outcome = Life(seed, frames, _corpus).run()
    _memory.append(memory_bytes())
    if len(_memory) > 5 and _memory[-1] - _memory[4] > GROWTH_BYTES_MAX:
        outcome.findings.append(f"memory grows: {[size >> 20 for size in _memory]} MiB after each life")
        del _memory[:-1]
    return outcome


def outcomes(first: int, frames: int, jobs: int, path: Path | None) -> Iterator[Outcome]:
    works = ((seed, FRAMES_PER_LIFE) for seed in count(first))
    if jobs == 1:
        begin(path)
        yield from map(play, works)
        return
    lives = max(frames // FRAMES_PER_LIFE + jobs, 1)
    with get_context("fork").Pool(jobs, begin, (path,), maxtasksperchild=LIVES_PER_PROCESS) as pool:
        yield from pool.imap_unordered(play, (next(works) for _ in range(lives)))


class Tally:
    """What a campaign has come to, over all its sittings."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.totals: Counter[str] = Counter()
        self.scenes: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.tapes: list[str] = []
        self.longest_ms = 0.0
        self.seconds = 0.0
        self.next_seed: int | None = None
        if path is not None and path.exists():
            for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                setattr(self, name, Counter(value) if isinstance(value, dict) else value)

    def add(self, outcome: Outcome) -> None:
        self.totals.update(
            {
                "frames": outcome.frames,
                "connections": outcome.connections,
                "answers": outcome.answers,
                "lives": 1,
                "lives ended by order": bool(outcome.ended),
            }
        )
        self.scenes[outcome.scene] += outcome.frames
        self.longest_ms = max(self.longest_ms, outcome.longest_ms)
        if outcome.ended:
            self.ended[outcome.ended.partition(" ")[2]] += 1

    def save(self) -> None:
        if self._path is not None:
            facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
            self._path.write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def show(self, corpus: Corpus, known: int) -> None:
        frames = self.totals["frames"]
        print(f"\n{frames:,} frames in {self.seconds:.0f} s: {frames / self.seconds * 3600 / 1e6:.2f} M an hour")
        for name, number in self.totals.items():
            print(f"  {name:<28} {number:>12,}")
        for name, number in self.scenes.items():
            print(f"    {name:<26} {number:>12,}")
        print(f"  {'corpus':<28} {len(corpus):>12,}  ({len(corpus) - known} new, {corpus.outcomes} outcomes)")
        print(f"  {'longest turn of the loop':<28} {self.longest_ms:>9.1f} ms")
        for why, number in self.ended.most_common(5):
            print(f"  ended {number} times: {why}")
        print(f"{len(self.tapes)} failed {self.tapes or ''}")


def campaign(given: argparse.Namespace) -> int:
    tally = Tally(given.tally)
    first = given.start if given.start is not None else tally.next_seed or fresh_seed()
    print(f"fuzz: {given.frames:,} frames, seeds from {first} on", flush=True)
    began = told = time.monotonic()
    before_seconds = tally.seconds
    corpus = Corpus()
    if given.corpus is not None:
        corpus.load(given.corpus)
    known = len(corpus)
    for outcome in outcomes(first, given.frames, given.jobs, given.corpus):
        tally.add(outcome)
        tally.next_seed = max(tally.next_seed or 0, outcome.seed + 1)
        for signature, tokens in outcome.kept:
            if corpus.add(signature, tokens) and given.corpus is not None:
                corpus.append_to(given.corpus, signature, tokens)
        if outcome.findings:
            tape = given.tapes / f"{outcome.seed}.jsonl"
            save(tape, outcome.seed, outcome.scene, outcome.acts)
            tally.tapes.append(str(tape))
            print(f"\nseed {outcome.seed} failed, {outcome.scene}:")
            for finding in outcome.findings:
                print(f"  {finding}")
            print(f"  play it again: python tests/campaigns/fuzz.py --replay {tape}", flush=True)
        now = time.monotonic()
        tally.seconds = before_seconds + now - began
        tally.save()
        frames = tally.totals["frames"]
        if now - told > 20:
            told = now
            rate = frames / tally.seconds * 3600
            print(f"{frames:,} frames, {rate / 1e6:.1f} M an hour, corpus {len(corpus)}", flush=True)
        if frames >= given.frames or now - began > given.seconds:
            break
    tally.show(corpus, known)
    return int(bool(tally.tapes))


def against_node(seed: int, frames: int, path: Path | None) -> int:
    """The same requests over sockets."""
    began = time.monotonic()
    begin(path)
    with tempfile.TemporaryDirectory(prefix="millpond-fuzz-") as folder:
        outcome = RealLife(Path(folder), seed, frames, _corpus).run()
    seconds = time.monotonic() - began
    rate = outcome.frames / seconds * 3600 / 1e6
    print(f"a real node, seed {seed}: {outcome.frames:,} frames in {seconds:.0f} s ({rate:.2f} M an hour), ", end="")
    print(
        f"{outcome.connections:,} connections, {outcome.answers:,} answers, longest turn {outcome.longest_ms:.0f} ms"
    )
    print(*(outcome.findings or ["nothing was found"]), sep="\n")
    return int(bool(outcome.findings))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile requests by the million against a simulated node.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many to send")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long all the same")
    parser.add_argument("--start", type=int, default=None, help="the first seed; a fresh one if nothing is said")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes to use")
    parser.add_argument("--corpus", type=Path, help="a file of requests that were worth it; it grows")
    parser.add_argument("--tapes", type=Path, default=Path("build/fuzz"), help="where findings are kept")
    parser.add_argument("--tally", type=Path, help="a file that counts over several sittings")
    parser.add_argument("--replay", type=Path, help="play this tape again")
    parser.add_argument("--node", action="store_true", help="over sockets against a real node instead")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        found = replay(*load(given.replay))
        print(found or "nothing was found")
        return int(bool(found))
    if given.node:
        return against_node(fresh_seed() if given.start is None else given.start, given.frames, given.corpus)
    return campaign(given)


if __name__ == "__main__":
    sys.exit(main())
