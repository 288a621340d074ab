"""Every API with every item named twice: both are refused or answered alike, and nothing changes on refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.broker.test_rights import HERE, TEXTS, AclNode
from tests.support.rights_cases import Case, Scene, codes_in

from millpond.base.rights import AclResource, Operation

FIND_COORDINATOR = 10


@pytest.fixture
def make_authz(make_server: Callable[..., Any]) -> Callable[..., AclNode]:
    return lambda **options: AclNode(make_server(dict(TEXTS)), **options)


def twice(values: dict[str, Any]) -> dict[str, Any]:
    """The request with each list item doubled."""
    return {name: [*value, *value] if isinstance(value, list) else value for name, value in values.items()}


NOTHING = Scene(UUID(int=7), 1, 0)
WITH_LISTS = [case for case in HERE if any(isinstance(each, list) and each for each in case.values(NOTHING).values())]


@pytest.mark.parametrize("case", WITH_LISTS, ids=lambda case: case.id)
def test_what_is_named_twice_is_refused_alike_and_answered(case: Case, make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz(is_first=case.is_first or case.key == FIND_COORDINATOR, with_token=case.with_token)
    values = twice(case.values(authz.scene))
    before = authz.state()
    reply = authz.ask(authz.alice, case.key, case.version, values)
    if case.rights and case.refused is None:
        assert {each for each in codes_in(reply) if each}, f"without any right: {reply}"
    assert authz.state() == before, "a refused request has changed something"
    authz.only(*case.rights, *case.also)
    assert authz.ask(authz.alice, case.key, case.version, values) is not None


def test_all_offsets_of_a_group_that_is_named_twice_are_told_once(make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz()
    authz.only((Operation.DESCRIBE, AclResource.GROUP, "crew"))
    one = {"group_id": "crew", "topics": [{"name": "pond", "partition_indexes": [0]}]}
    every = {"group_id": "crew", "topics": None}
    for groups in ([every, every], [every, one, every], [one, every, every, one]):
        reply = authz.ask(authz.alice, 9, 8, {"groups": groups})
        told = [each for each in reply.groups if not each.topics]
        assert len(told) == 1, reply
        for group in reply.groups:
            for topic in group.topics:
                assert {each.error_code for each in topic.partitions} == {29}, "an offset that one may not see"
