"""Requests with topic ids: a node that learns an id after the authorization check does nothing without permission."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from tests.broker.test_rights import HERE, TEXTS, AclNode
from tests.support.rights_cases import Case, Scene, codes_in

from millpond.base.errors import ErrorCode
from millpond.base.rights import AclResource
from millpond.broker.apis import APIS
from millpond.broker.authorization.required_rights import Rights
from millpond.wire import messages as m
from millpond.wire import notation

POND_ID = UUID(int=7)
REFUSALS = {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def ids_in(value: Any) -> Iterator[UUID]:
    if isinstance(value, UUID):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from ids_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from ids_in(each)


def has_topic_id(struct: notation.Struct) -> bool:
    return any(
        each.name == "topic_id" or (each.struct is not None and has_topic_id(each.struct)) for each in struct.fields
    )


BY_ID = [
    case
    for case in HERE
    # Whoever is no node is refused whatever the ids are.
    if POND_ID in ids_in(case.values(Scene(POND_ID, 1, 0))) and not (case.is_for_nodes and case.code is None)
]
FOR_NODES = {case.key for case in HERE if case.is_for_nodes}
HEARTBEAT = 68
"""Its topic ids are the partitions that a member already has: the coordinator only compares them."""

ACKNOWLEDGE = 79
"""It needs a session, which a case cannot open: see `shares.test_share_rights`."""


@pytest.fixture
def make_authz(make_server: Callable[..., Any]) -> Callable[..., AclNode]:
    return lambda **options: AclNode(make_server(dict(TEXTS)), **options)


def test_every_api_with_topic_ids_has_a_case() -> None:
    with_ids = {api.key for api in APIS if has_topic_id(m.request_class(api.key)._schema.root)}
    assert with_ids - FOR_NODES - {HEARTBEAT, ACKNOWLEDGE} <= {case.key for case in BY_ID}


@pytest.mark.parametrize("case", BY_ID, ids=lambda case: case.id)
def test_nothing_is_done_when_the_id_becomes_known_after_the_screening(
    case: Case, make_authz: Callable[..., AclNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    authz = make_authz(is_first=case.is_first)
    authz.only(*(right for right in case.rights if right[1] is not AclResource.TOPIC))
    topics = authz.server.broker.image.topics_by_id
    slot = Rights.screen

    def screen_of(rights: Rights) -> Any:
        screen = slot.__get__(rights)  # type: ignore[attr-defined]

        def blind(*arguments: Any) -> Any:
            # A screen may be composed of others that are already blinded.
            pond = topics.pop(authz.scene.pond_id, None)
            try:
                return screen(*arguments)
            finally:
                if pond is not None:
                    topics[authz.scene.pond_id] = pond

        return None if screen is None else blind

    monkeypatch.setattr(Rights, "screen", property(screen_of))
    before = authz.state()
    reply = authz.ask(authz.alice, case.key, case.version, case.values(authz.scene))
    authz.server.run(500)
    assert authz.state() == before, "a request without the right has changed something"
    assert REFUSALS & set(codes_in(reply)), reply
