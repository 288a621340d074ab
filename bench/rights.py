"""The cost of authorization: the same loads, alternately, against a node without it, and against one with SASL logins
(unencrypted, like the other) and ten thousand ACLs. The client is not a super user; a few of the ACLs are about it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import raw
from bench.measure import Plan, client, in_turn, slice_of
from bench.node import Node
from bench.noise import Measured, medians_of
from bench.volume import fill
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
"""Title, load, the compared figure, and the arguments of the load."""


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
    """Many for other users, and three that let this user write and read, by name and by prefix."""
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


def add_rules(node: Node, count: int) -> None:
    waiting = list(rules(count))
    with node.connect() as admin:
        while waiting:
            some, waiting = waiting[:RULES_PER_REQUEST], waiting[RULES_PER_REQUEST:]
            reply = admin.call(m.CreateAclsRequest(creations=some), CREATE_ACLS_VERSION)
            assert isinstance(reply, m.CreateAclsResponse)
            if faults := {each.error_message for each in reply.results if each.error_code}:
                raise RuntimeError(f"ACLs were refused: {faults}")


def await_users(node: Node) -> None:
    """The first users exist a moment after the start of a cluster."""
    deadline = time.monotonic() + LOGIN_SECONDS_MAX
    while True:
        try:
            node.connect().close()
            return
        except (PermissionError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def measure_rights(plan: Plan, batches: int) -> Iterator[tuple[str, Measured, Measured, float]]:
    """Each load: title, figures without authorization and with it, and the ratio of costs."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
        settings = guarded(Path(folder))
        for title, load, figure, arguments in LOADS:
            bounds: dict[str, object] = {}
            if load == "FetchLarge":
                bounds["batches"] = batches
            elif load == "ProduceLarge":
                bounds["bytes_max"] = plan.bytes_max // 4
            with ExitStack() as stack:
                slices = {}
                for name, texts, admin, user in (("open", {}, "", ""), ("guarded", settings, ADMIN, USER)):
                    node = stack.enter_context(Node(texts, user=admin))
                    await_users(node)
                    fill(node, TOPIC, batches if load == "FetchLarge" else 1, 100)
                    if user:
                        add_rules(node, RULES_QUICK if plan.quick else RULES)
                    started = client(load, node, topic=TOPIC, user=user, **arguments, **bounds)
                    slices[name] = slice_of(node, stack.enter_context(started))
                halves = replace(plan, slices=2 * plan.slices, slice_seconds=plan.slice_seconds / 2)
                without, guarded_figures = in_turn(halves, slices).values()
            pairs = zip(without, guarded_figures, strict=True)
            ratio = statistics.median(after[figure] / before[figure] for before, after in pairs)
            yield title, medians_of(without), medians_of(guarded_figures), ratio
