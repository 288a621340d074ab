"""Churn groups of every protocol for a while and check what their workers did.

    python tests/campaigns/churn.py --minutes 10 --node-kills

A failed run is printed with its findings and its seed; the same seed produces the same events.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.churn import MEMBER_EVENTS, NODE_EVENTS, NODE_SETTINGS, Campaign, Plan, Tally
from support.groups import PROTOCOLS
from support.node import Node
from support.seeds import fresh_seed

FINDINGS_SHOWN = 10
ROUND_SECONDS = 60.0
"""Each round has a fresh group, and ends with a check of everything that was logged."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Churn groups of every protocol.")
    parser.add_argument("--minutes", type=float, default=6.0, help="in all, shared by the protocols")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append", help="only these")
    parser.add_argument("--members", type=int, default=8, help="how many at most")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=fresh_seed())
    parser.add_argument("--node-kills", action="store_true", help="kill the node too, now and then")
    options = parser.parse_args(arguments)
    protocols = options.protocol or PROTOCOLS
    seconds_each = options.minutes * 60 / len(protocols)
    rounds = max(1, round(seconds_each / ROUND_SECONDS))
    print(
        f"churn: {', '.join(protocols)}, {rounds} x {seconds_each / rounds:.0f} s each, seed {options.seed}",
        flush=True,
    )
    tallies = []
    for number in range(rounds):
        for protocol in protocols:
            plan = Plan(
                protocol,
                seconds_each / rounds,
                options.seed + number,
                (*MEMBER_EVENTS, *NODE_EVENTS) if options.node_kills else MEMBER_EVENTS,
                partitions=options.partitions,
                members_max=options.members,
            )
            tallies.append(one_round(plan, number))
    show([total(protocol, tallies) for protocol in protocols])
    return 1 if any(tally.findings for tally in tallies) else 0


def one_round(plan: Plan, number: int) -> Tally:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millpond-churn-") as folder:
        node = Node(Path(folder) / "node", NODE_SETTINGS).start()
        try:
            tally = Campaign(node, plan, Path(folder) / "workers", "churn").run()
        finally:
            node.kill9()
    seconds = time.monotonic() - began
    events = sum(tally.events.values())
    print(
        f"  {number + 1:3} {plan.protocol:20} {seconds:4.0f} s  {events:3} events  {tally.generations:3} generations "
        f" {tally.read:8,} read  {len(tally.findings)} wrong",
        flush=True,
    )
    for finding in tally.findings[:FINDINGS_SHOWN]:
        print(f"      {finding} (seed {plan.seed})", flush=True)
    return tally


def total(protocol: str, tallies: list[Tally]) -> Tally:
    """All runs of a protocol combined."""
    result = Tally(protocol)
    for tally in tallies:
        if tally.protocol == protocol:
            for name, value in vars(tally).items():
                if name != "protocol":
                    setattr(result, name, getattr(result, name) + value)
    return result


def show(totals: list[Tally]) -> None:
    events = sorted({name for tally in totals for name in tally.events})
    rows: dict[str, list[int]] = {name: [tally.events[name] for tally in totals] for name in events}
    rows |= {
        "records written": [tally.written for tally in totals],
        "read more than once": [tally.read_again for tally in totals],
        "commits": [tally.commits for tally in totals],
        "commits refused": [tally.commits_refused for tally in totals],
        "generations": [tally.generations for tally in totals],
        "partitions handed over": [tally.holdings for tally in totals],
        "noticed too late": [tally.holdings_lost for tally in totals],
        "skipped, shared, fallen back": [len(tally.findings) for tally in totals],
    }
    print(f"\n{'':30}" + "".join(f"{tally.protocol:>20}" for tally in totals))
    for name, values in rows.items():
        print(f"{name:30}" + "".join(f"{value:>20,}" for value in values))


if __name__ == "__main__":
    sys.exit(main())
