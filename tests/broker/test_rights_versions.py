"""Every API in every supported version: a refusal is a response that changes nothing and reveals no name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.test_rights import ADMIN, ALICE, ELSEWHERE, HERE, TEXTS, AclNode
from tests.support.rights_cases import Case, build, codes_in

from millpond.broker.apis import APIS
from millpond.wire import messages as m

pytestmark = pytest.mark.slow

VERSIONS = {api.key: range(api.versions[0], api.versions[1] + 1) for api in APIS}
DELETE_TOPICS, DESCRIBE_LOG_DIRS = 20, 35
WITHOUT_A_CODE = {(DELETE_TOPICS, 6), (DESCRIBE_LOG_DIRS, 1), (DESCRIBE_LOG_DIRS, 2)}
"""Responses without an error code: topics are named in another field there, or can only be left out."""


@pytest.fixture
def make_authz(make_server: Callable[..., Any]) -> Callable[..., AclNode]:
    return lambda **options: AclNode(make_server(dict(TEXTS)), **options)


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.id)
def test_without_a_right_it_is_refused_in_every_version(case: Case, make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz(is_first=case.is_first, with_token=case.with_token)
    before = authz.state()
    tried = 0
    for version in VERSIONS[case.key]:
        request = build(m.request_class(case.key), case.values(authz.scene))
        try:
            encoded = request.encode(version)
        except ValueError:
            # The case needs a field that this version lacks.
            continue
        tried += 1
        caller = authz.caller(ALICE)
        caller.connection.protocol = authz.alice.connection.protocol
        reply = caller.ask(request, version, within_ms=5000)
        told = reply.encode(version)
        assert not [name for name in ELSEWHERE if name.encode() in told and name.encode() not in encoded], (
            version,
            reply,
        )
        if case.rights and case.refused is None and (case.key, version) not in WITHOUT_A_CODE:
            assert any(codes_in(reply)), (version, reply)
        assert authz.state() == before, f"version {version}: a refused request has changed something"
    assert tried


@pytest.mark.parametrize("case", HERE, ids=lambda case: case.id)
def test_with_all_rights_it_is_answered_in_every_version(case: Case, make_authz: Callable[..., AclNode]) -> None:
    authz = make_authz(is_first=case.is_first, with_token=case.with_token)
    versions = 0
    for version in VERSIONS[case.key]:
        request = build(m.request_class(case.key), case.values(authz.scene))
        try:
            request.encode(version)
        except ValueError:
            continue
        caller = authz.caller(ADMIN)
        caller.connection.protocol = authz.admin.connection.protocol
        assert caller.ask(request, version, within_ms=60_000) is not None
        versions += 1
    assert versions
