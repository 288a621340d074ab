"""What it costs to ask whether a client may: the same loads in turns against a node that asks nobody and one that
does, which knows ten thousand rules, a few of them about this client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench import raw
from bench.load_raw import Measured
from bench.measure import Plan, client, median_of, one_slice
from bench.node import Node
from millpond.wire import messages as m

TOPIC = "bulk"
RULES = 10_000
RULES_QUICK = 1_000
RULES_PER_REQUEST = 1_000
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever fills the node with rules has none of their own yet.
    "allow.everyone.if.no.acl.found": "true",
}
CREATE_ACLS_VERSION = 3
TOPIC_RESOURCE, LITERAL, PREFIXED, ALLOW = 2, 3, 4, 3
READ, WRITE, DESCRIBE = 3, 4, 8

LOADS: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("one message a request, acks=1", "ProduceOne", "us_per_request", {"acks": 1, "connections": 16}),
    ("produce 100 B, raw, acks=1", "ProduceLarge", "us_per_request", {"acks": 1, "value_bytes": 100}),
    ("fetch 100 B, raw", "FetchLarge", "us_per_request", {"value_bytes": 100}),
)
"""Title, load, the figure that is compared, and what the load is told."""


def rules(count: int) -> Iterator[m.CreateAclsRequest.AclCreation]:
    """Many for others, and those that let this client write and read: one by its name, one by a prefix of it."""
    kind = m.CreateAclsRequest.AclCreation
    mine = [(TOPIC, LITERAL, WRITE), (TOPIC[:2], PREFIXED, READ), (TOPIC[:2], PREFIXED, DESCRIBE)]
    for name, pattern, operation in mine:
        yield kind(
            resource_type=TOPIC_RESOURCE,
            resource_name=name,
            resource_pattern_type=pattern,
            principal="User:ANONYMOUS",
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


def fill(node: Node, batches: int) -> None:
    node.create_topic(TOPIC)
    records, _ = raw.full_batch(100)
    frame = raw.produce_frame(TOPIC, 0, records, raw.ACKS_LEADER)
    with node.connect() as writer:
        for _ in range(batches):
            writer.send(frame)
            raw.check_produced(writer.receive())


def measure_rights(plan: Plan, batches: int) -> Iterator[tuple[str, str, Measured, Measured]]:
    """Each load: title, what is compared, without rights, and with them."""
    for title, load, figure, arguments in LOADS:
        with ExitStack() as stack:
            pairs = []
            for settings in ({}, AUTHORIZER):
                node = stack.enter_context(Node(settings))
                fill(node, batches if load == "FetchLarge" else 1)
                if settings:
                    give_rules(node, RULES_QUICK if plan.quick else RULES)
                bounds: dict[str, object] = {}
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
        yield title, figure, median_of(slices[0]), median_of(slices[1])
