"""Well-formed requests with absurd values: no field value ends the node."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.support.seeds import dice

from millpond.base.errors import RemoteError
from millpond.broker.apis import APIS
from millpond.broker.requests.replies import UnwritableReply
from millpond.broker.serving.api import Api
from millpond.wire import messages as m
from millpond.wire.notation import Field, Struct

ROUNDS = 12
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "pond", "g", "tx", "me", "range", "consumer", "1", "x" * 32_767, "\x01" * 32_767, "é(" * 9_000)


class Extremes:
    """Generates requests with extreme values, and with some values that get them past the first check."""

    def __init__(self, server: Any, random: Random) -> None:
        self.random = random
        self.topic_id = server.broker.image.topics["pond"].id

    def request(self, api: Api, version: int) -> m.Message:
        cls = m.request_class(api.key)
        return cls(**self.values(cls, cls._schema.root, version))

    def values(self, cls: Any, struct: Struct, version: int) -> dict[str, Any]:
        return {each.name: self.value(cls, each, version) for each in struct.fields if each.versions.has(version)}

    def value(self, cls: Any, each: Field, version: int) -> Any:
        if each.is_nullable(version) and self.random.random() < 0.1:
            return None
        if each.is_array:
            return [self.one(cls, each, version) for _ in range(self.random.choice((0, 1, 1, 1, 2)))]
        return self.one(cls, each, version)

    def one(self, cls: Any, each: Field, version: int) -> Any:
        choice = self.random.choice
        if each.struct is not None:
            return getattr(cls, each.struct.name)(**self.values(cls, each.struct, version))
        if each.type in BITS:
            half = 1 << (BITS[each.type] - 1)
            return choice((-half, half - 1, -1, 0, 0, 1, 1, min(10_000, half - 1)))
        match each.type:
            case "bool":
                return choice((True, False))
            case "string":
                return choice(TEXTS[:8]) if self.random.random() < 0.7 else choice(TEXTS[8:])
            case "bytes" | "records":
                return choice((b"", b"\0" * 4, b"\xff" * 100))
            case "uuid":
                return choice((self.topic_id, UUID(int=0), UUID(int=(1 << 128) - 1)))
            case "uint16" | "uint32" as kind:
                return choice((0, 1, (1 << int(kind[4:])) - 1))
            case "float64":
                return choice((0.0, -1.0, 1e308))
        raise AssertionError(each)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_no_value_ends_the_node(make_server: Any, api: Api) -> None:
    server = make_server()
    server.create("pond")
    extremes = Extremes(server, dice(api.key))
    host = server.connect()
    for kind in (0, 1):
        host.ask(m.FindCoordinatorRequest(key="g", key_type=kind), 3, within_ms=5000)
    host.ask(m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 4, within_ms=5000)
    low, high = api.versions
    for version in range(low, high + 1):
        for _ in range(ROUNDS):
            caller = server.connect()
            error = fault_of(caller, extremes.request(api, version), version)
            # It costs only one connection, but it is still a bug.
            assert not isinstance(error, UnwritableReply), error
            server.run(20)
            caller.link.end()
    server.run(60_000)
    assert not [line for line in server.node.journal_lines if "could not be answered" in str(line)]
    assert host.ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3).error_code == 0


def fault_of(caller: Any, request: m.Message, version: int) -> RemoteError | None:
    """Why the connection was closed, if it was."""
    try:
        caller.send(request, version)
    except RemoteError as error:
        return error
    return None
