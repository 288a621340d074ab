"""A folder that asked who comes does not forget it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from millpond.broker.data_folder.identity import Misconfigured
from millpond.config.node import node_settings
from millpond.config.security import STANDARD_AUTHORIZER
from millpond.log.names import SECURE_MARK
from millpond.node.secure_mark import check_mark, leave_mark

CLOSED = [
    {"listen.protocol": "SASL_PLAINTEXT"},
    {"authorizer.class.name": STANDARD_AUTHORIZER},
    {
        "listen.protocol": "SSL",
        "ssl.keystore.location": "/n.pem",
        "ssl.truststore.location": "/ca.pem",
        "ssl.client.auth": "requested",
    },
]


@pytest.mark.parametrize("texts", CLOSED)
def test_settings_without_authentication_are_refused_afterwards(tmp_path: Path, texts: dict[str, str]) -> None:
    folder = {"data.folder": str(tmp_path)}
    for _ in range(2):
        check_mark(node_settings(folder | texts))
        leave_mark(node_settings(folder | texts))
    assert stat.S_IMODE((tmp_path / SECURE_MARK).stat().st_mode) == 0o600
    with pytest.raises(Misconfigured, match="has required authentication so far"):
        check_mark(node_settings(folder))
    for others in CLOSED:
        check_mark(node_settings(folder | others))
    (tmp_path / SECURE_MARK).unlink()
    check_mark(node_settings(folder))


def test_a_node_that_never_asked_leaves_no_mark(tmp_path: Path) -> None:
    settings = node_settings({"data.folder": str(tmp_path)})
    leave_mark(settings)
    assert list(tmp_path.iterdir()) == []
    check_mark(node_settings({"data.folder": str(tmp_path / "not-there")}))
