"""What it costs to ask whether a client may: the same loads in turns against a node that asks nobody, and one that
asks who comes (SASL, in the clear as the other) and what they may do.

That one knows ten thousand rules. The client has logged in; it is no super user, and a few of the rules are about it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import raw
from bench.measure import Plan, client, one_slice
from bench.node import Node
from bench.noise import Measured, medians_of
from millpond.metadata.initial_users import credential_of, written
from millpond.metadata.scram import Mechanism
from millpond.wire import messages as m

TOPIC = "bulk"
ADMIN, USER = "admin", "worker"
RULES = 10_000
RULES_QUICK = 1_000
RULES_PER_REQUEST = 1_000
LOGIN_SECONDS_MAX = 30.0
CREATE_ACLS_VERSION = 3
TOPIC_RESOURCE, LITERAL, PREFIXED, ALLOW = 2, 3, 4, 3
READ, WRITE, DESCRIBE = 3, 4, 8

LOADS: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("one message a request, acks=1", "ProduceOne", "us_per_request", {"acks": 1, "connections": 16}),
    ("produce 100 B, raw, acks=1", "ProduceLarge", "us_per_request", {"acks": 1, "value_bytes": 100}),
    ("fetch 100 B, raw", "FetchLarge", "us_per_request", {"value_bytes": 100}),
)
"""Title, load, the figure that is compared, and what the load is told."""


def guarded(folder: Path) -> dict[str, str]:
    """The settings of a node with a login, an admin and a user."""
    users = folder / "initial.users"
    mechanism = Mechanism.SCRAM_SHA_256
    users.write_text(written(credential_of(each, raw.PASSWORD, b"salt", mechanism, 4096) for each in (ADMIN, USER)))
    users.chmod(0o600)
    return {
        "listen.protocol": "SASL_PLAINTEXT",
        "super.users": f"User:{ADMIN}",
        "initial.users.file": str(users),
    }


def rules(count: int) -> Iterator[m.CreateAclsRequest.AclCreation]:
    """Many for others, and those that let this user write and read: one by its name, one by a prefix of it."""
    kind = m.CreateAclsRequest.AclCreation
    mine = [(TOPIC, LITERAL, WRITE), (TOPIC[:2], PREFIXED, READ), (TOPIC[:2], PREFIXED, DESCRIBE)]
    for name, pattern, operation in mine:
        yield kind(
            resource_type=TOPIC_RESOURCE,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{USER}",
            host="*",
            operation=operation,
            permission_type=ALLOW,
        )
    for number in range(count - len(mine)):
        yield kind(
            resource_type=TOPIC_RESOURCE,
            resource_name=f"{TOPIC if number % 2 else 'other'}-{number}",
            resource_pattern_type=PREFIXED if number % 4 else LITERAL,
            principal=f"User:somebody-{number % 500}",
            host="*",
            operation=READ,
            permission_type=ALLOW,
        )


def give_rules(node: Node, count: int) -> None:
    waiting = list(rules(count))
    with node.connect() as admin:
        while waiting:
            some, waiting = waiting[:RULES_PER_REQUEST], waiting[RULES_PER_REQUEST:]
            reply = admin.call(m.CreateAclsRequest(creations=some), CREATE_ACLS_VERSION)
            assert isinstance(reply, m.CreateAclsResponse)
            if faults := {each.error_message for each in reply.results if each.error_code}:
                raise RuntimeError(f"rules are refused: {faults}")


def await_users(node: Node) -> None:
    """A cluster has its first users a moment after its start."""
    deadline = time.monotonic() + LOGIN_SECONDS_MAX
    while True:
        try:
            node.connect().close()
            return
        except (PermissionError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def fill(node: Node, batches: int) -> None:
    node.create_topic(TOPIC)
    records, _ = raw.full_batch(100)
    frame = raw.produce_frame(TOPIC, 0, records, raw.ACKS_LEADER)
    with node.connect() as writer:
        for _ in range(batches):
            writer.send(frame)
            raw.check_produced(writer.receive())


def measure_rights(plan: Plan, batches: int) -> Iterator[tuple[str, str, Measured, Measured, float]]:
    """Each load: title, what is compared, without rights, with them, and how much more the latter cost."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
        settings = guarded(Path(folder))
        for title, load, figure, arguments in LOADS:
            with ExitStack() as stack:
                pairs = []
                for texts, admin, user in (({}, "", ""), (settings, ADMIN, USER)):
                    node = stack.enter_context(Node(texts, user=admin))
                    await_users(node)
                    fill(node, batches if load == "FetchLarge" else 1)
                    if user:
                        give_rules(node, RULES_QUICK if plan.quick else RULES)
                    bounds: dict[str, object] = {"user": user}
                    if load == "FetchLarge":
                        bounds["batches"] = batches
                    elif load == "ProduceLarge":
                        bounds["bytes_max"] = plan.bytes_max // 4
                    pairs.append((node, stack.enter_context(client(load, node, topic=TOPIC, **arguments, **bounds))))
                slices: tuple[list[Measured], list[Measured]] = ([], [])
                # In turns, so that a noisy moment hits both alike.
                for _ in range(2 * plan.slices):
                    for (node, started), found in zip(pairs, slices, strict=True):
                        found.append(one_slice(node, started, plan.slice_seconds / 2))
            ratio = statistics.median(after[figure] / before[figure] for before, after in zip(*slices, strict=True))
            yield title, figure, medians_of(slices[0]), medians_of(slices[1]), ratio
