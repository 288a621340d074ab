"""Send millions of hostile requests to a whole node in the simulated world, and count the outcomes.

    python tests/campaigns/fuzz.py --frames 10000000 --jobs 2 --folder build/fuzz

The folder keeps the corpus (requests with new outcomes, which the next run starts from), the tally (a campaign
resumes where it ended), and a tape of each finding, which is printed with the command that replays it.

The campaign looks for crashes, unexpected or unreadable responses, and changes without permission. It also looks for
turns of the loop of more than 20 ms, in CPU time of the thread, since the machine may be shared; for memory growth,
by resident size after a garbage collection and by the increase during one connection's requests; and for open files,
by the descriptors of the process and by the interpreter's audit events.
"""

from __future__ import annotations

import argparse
import gc
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

from support.fuzz.corpus import SEEDS, Corpus
from support.fuzz.real import RealLife
from support.fuzz.recording import load, replay, save
from support.fuzz.scenes import GUEST, OPEN
from support.fuzz.session import SLOW_ONCE, FuzzSession, Outcome
from support.fuzz.sweep import sweep
from support.fuzz.watch import OPENED, memory_bytes
from support.seeds import fresh_seed

FRAMES_PER_LIFE = 40_000
LIVES_PER_PROCESS = 50
LIVES_PER_WEIGHING = 5
GROWTH_BYTES_MAX = 64 << 20
"""How much a process may grow between its first measurement, after some runs, and any later one."""

TOLD_SECONDS = 20

_corpus = Corpus()
_weights: list[int] = []
_lives = 0


def begin(path: Path | None) -> None:
    _corpus.load(SEEDS)
    if path is not None:
        _corpus.load(path)


def play(work: tuple[int, int]) -> Outcome:
    global _lives
    seed, frames = work
    outcome = FuzzSession(seed, frames, _corpus).run()
    _lives += 1
    if _lives % LIVES_PER_WEIGHING == 0:
        gc.unfreeze()
        gc.collect()
        _weights.append(memory_bytes())
        if _weights[-1] - _weights[0] > GROWTH_BYTES_MAX:
            told = [size >> 20 for size in _weights]
            outcome.findings.append(f"memory grows: {told} MiB after each {LIVES_PER_WEIGHING} lives")
            del _weights[:-1]
        outcome.memory_bytes = _weights[0], _weights[-1]
    return outcome


def outcomes(first: int, frames: int, jobs: int, path: Path | None) -> Iterator[Outcome]:
    works = ((seed, FRAMES_PER_LIFE) for seed in count(first))
    if jobs == 1:
        begin(path)
        yield from map(play, works)
        return
    # Some runs end early, because a client shut the node down.
    lives = 2 * frames // FRAMES_PER_LIFE + 10 * jobs
    with get_context("fork").Pool(jobs, begin, (path,), maxtasksperchild=LIVES_PER_PROCESS) as pool:
        yield from pool.imap_unordered(play, (next(works) for _ in range(lives)))


class Tally:
    """The totals of a campaign, over all its sessions."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.totals: Counter[str] = Counter()
        self.scenes: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.tapes: list[str] = []
        self.longest_ms = 0.0
        self.openers = 0
        self.grown_bytes = 0
        self.gained_bytes = 0
        self.memory_bytes = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
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
        self.cpu_seconds += outcome.cpu_seconds
        self.openers += any(OPENED in each for each in outcome.findings)
        self.gained_bytes = max(self.gained_bytes, outcome.grown_bytes)
        if outcome.memory_bytes is not None:
            first, last = outcome.memory_bytes
            self.grown_bytes = max(self.grown_bytes, last - first)
            self.memory_bytes = max(self.memory_bytes, last)
        if outcome.ended:
            self.ended[outcome.ended.partition(" ")[2]] += 1

    def save(self) -> None:
        if self._path is not None:
            facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
            # A process that is killed during the write must not lose the count.
            fresh = self._path.with_suffix(".tmp")
            fresh.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            fresh.replace(self._path)

    def rates(self) -> str:
        frames = self.totals["frames"]
        an_hour = frames / max(self.seconds, 1) * 3600 / 1e6
        of_cpu = frames / max(self.cpu_seconds, 1) * 3600 / 1e6
        return f"{an_hour:.2f} M an hour ({of_cpu:.2f} M an hour of processor time)"

    def show(self, corpus: Corpus, known: int) -> None:
        frames = self.totals["frames"]
        print(f"\n{frames:,} frames in {self.seconds:.0f} s: {self.rates()}")
        for name, number in self.totals.items():
            print(f"  {name:<28} {number:>12,}")
        for name, number in self.scenes.items():
            print(f"    {name:<26} {number:>12,}")
        print(f"  {'corpus':<28} {len(corpus):>12,}  ({len(corpus) - known} new, {corpus.outcomes} outcomes)")
        print(f"  {'longest turn of the loop':<28} {self.longest_ms:>9.1f} ms of processor time")
        print(f"  {'memory of a process':<28} {self.memory_bytes >> 20:>8} MiB")
        print(f"  {'grown from life to life':<28} {self.grown_bytes >> 20:>8} MiB at most")
        print(f"  {'grown within a life':<28} {self.gained_bytes >> 20:>8} MiB at most")
        print(f"  {'lives that opened files':<28} {self.openers:>12,}")
        for why, number in self.ended.most_common(5):
            print(f"  ended {number} times: {why}")
        print(f"{len(self.tapes)} failed {self.tapes or ''}")


def campaign(options: argparse.Namespace) -> int:
    folder: Path | None = options.folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    kept = None if folder is None else folder / "corpus.jsonl"
    tally = Tally(None if folder is None else folder / "tally.json")
    first = options.start if options.start is not None else tally.next_seed or fresh_seed()
    sent = tally.totals["frames"]
    print(f"fuzz: {options.frames:,} frames, {sent:,} of them sent already, seeds from {first} on", flush=True)
    began = told = time.monotonic()
    before_seconds = tally.seconds
    corpus = Corpus(keeps=False)
    corpus.load(SEEDS)
    if kept is not None:
        corpus.load(kept)
    known = len(corpus)
    for outcome in outcomes(first, options.frames - sent, options.jobs, kept):
        tally.add(outcome)
        tally.next_seed = max(tally.next_seed or 0, outcome.seed + 1)
        for signature, tokens in outcome.kept:
            if corpus.add(signature, tokens) and kept is not None:
                corpus.append_to(kept, signature, tokens)
        if outcome.findings:
            tell(outcome, tally, folder or Path("build/fuzz"))
        now = time.monotonic()
        tally.seconds = before_seconds + now - began
        tally.save()
        frames = tally.totals["frames"]
        if now - told > TOLD_SECONDS:
            told = now
            print(
                f"{time.strftime('%H:%M:%S')} {frames:,} frames, {tally.rates()}, corpus {len(corpus)}, "
                f"longest turn {tally.longest_ms:.0f} ms, memory {tally.memory_bytes >> 20} MiB, "
                f"{len(tally.tapes)} failed",
                flush=True,
            )
        if frames >= options.frames or now - began > options.seconds:
            break
    tally.show(corpus, known)
    return int(bool(tally.tapes))


def tell(outcome: Outcome, tally: Tally, folder: Path) -> None:
    """Save what was done, and print the results."""
    tape = folder / f"{outcome.seed}.jsonl"
    save(tape, outcome.seed, outcome.scene, outcome.acts)
    tally.tapes.append(str(tape))
    print(f"\nseed {outcome.seed} failed, {outcome.scene}:")
    for finding in outcome.findings:
        print(f"  {finding}")
    print(f"  play it again: python tests/campaigns/fuzz.py --replay {tape}", flush=True)


def against_node(seed: int, frames: int, folder: Path | None) -> int:
    """The same requests over sockets."""
    began = time.monotonic()
    begin(None if folder is None else folder / "corpus.jsonl")
    outcome = _real_life(seed, frames)
    if outcome.ended == SLOW_ONCE:
        # It may be the machine's fault: CPU time that the hypervisor gives to other guests counts as the loop's own.
        print(*outcome.findings, "once more:", sep="\n", flush=True)
        outcome = _real_life(seed, frames)
    seconds = time.monotonic() - began
    rate = outcome.frames / seconds * 3600 / 1e6
    print(f"a real node, seed {seed}: {outcome.frames:,} frames in {seconds:.0f} s ({rate:.2f} M an hour), ", end="")
    print(
        f"{outcome.connections:,} connections, {outcome.answers:,} answers, longest turn {outcome.longest_ms:.0f} ms"
    )
    print(*(outcome.findings or ["nothing was found"]), sep="\n")
    return int(bool(outcome.findings))


def _real_life(seed: int, frames: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="millpond-fuzz-") as root:
        return RealLife(Path(root), seed, frames, _corpus).run()


def sweep_all(items: int) -> int:
    """Find the requests that hold the loop longest, with lists of the maximum length."""
    for scene in (OPEN, GUEST):
        print(f"{scene.name}, lists of {items:,}:")
        for each in sweep(scene, items)[:25]:
            print(
                f"  {each.longest_ms:7.1f} ms  {each.api} v{each.version}, list {each.list_number}, "
                f"{each.size:,} bytes: {each.outcome}"
            )
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile requests by the million against a simulated node.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many to send")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long all the same")
    parser.add_argument("--start", type=int, default=None, help="the first seed; a fresh one if nothing is said")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes to use")
    parser.add_argument("--folder", type=Path, help="keeps corpus, tally and findings; a campaign goes on there")
    parser.add_argument("--replay", type=Path, help="play this tape again")
    parser.add_argument("--node", action="store_true", help="over sockets against a real node instead")
    parser.add_argument("--sweep", type=int, metavar="ITEMS", help="only tell which long lists hold the loop longest")
    options = parser.parse_args(arguments)
    if options.sweep:
        return sweep_all(options.sweep)
    if options.replay is not None:
        result = replay(*load(options.replay))
        print(result or "nothing was found")
        return int(bool(result))
    if options.node:
        return against_node(fresh_seed() if options.start is None else options.start, options.frames, options.folder)
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
