"""`millpond up` with TLS and with several listeners: what the panel says, and what is told when it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.config.listeners import LISTEN
from millpond.testing.ports import HOST, free_port
from support.tls import Certificates

UNSAID = ("--listen", LISTEN.default)
"""Takes back what the helper says."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("listen.protocol=SSL",), "a listener with TLS needs a certificate: set ssl.keystore.location"),
        (("listen.protocol=TLS",), "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (("listener.name.ssl.num.partitions=1",), "unknown node setting listener.name.ssl.num.partitions"),
        (("listeners=PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2",), "two listeners are named PLAINTEXT"),
    ],
)
def test_conflicting_settings_are_refused(
    lonely: Any, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    sets = [word for each in settings for word in ("--set", each)]
    lonely.fails("up", *sets, cwd=tmp_path, code=2, error=message)


def test_unusable_files_are_reported_and_nothing_is_left_behind(lonely: Any, tmp_path: Path) -> None:
    path = tmp_path / "missing.pem"
    sets = ("--set", "listen.protocol=SSL", "--set", f"ssl.keystore.location={path}")
    result = lonely("up", "--listen", f"{HOST}:0", "--data", str(tmp_path / "data"), *sets)
    assert result.code == 1
    assert result.err == f"millpond: The node cannot start: {path} cannot be used: no such file or directory.\n"
    assert not (tmp_path / "data").exists()


def test_nodes_that_cannot_recognise_each_other_are_refused(lonely: Any, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    texts = {
        "listen.protocol": "SSL",
        "ssl.client.auth": "required",
        "cluster.nodes": f"1@{HOST}:{free_port()},2@{HOST}:{free_port()}",
        "super.users": "User:somebody",
        **certificates.server_settings(),
    }
    config = tmp_path / "node.conf"
    config.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    lonely.fails(
        "up",
        "--config",
        str(config),
        "--data",
        str(tmp_path / "data"),
        error=("the other nodes would take this one for a client", "who is not one of super.users"),
    )


def test_the_panel_names_all_listeners(start_node: Callable[..., Any], tmp_path: Path) -> None:
    one, other = free_port(), free_port()
    texts = {
        "listeners": f"ONE://{HOST}:{one},OTHER://{HOST}:{other}",
        "listener.security.protocol.map": "ONE:PLAINTEXT,OTHER:PLAINTEXT",
        "inter.broker.listener.name": "ONE",
    }
    node = start_node(*UNSAID, *(word for name, text in texts.items() for word in ("--set", f"{name}={text}")))
    assert node.panel["listens on"] == f"ONE://{HOST}:{one},OTHER://{HOST}:{other}"


def test_a_node_of_a_file_may_have_more_listeners_than_the_file_says(
    start_node: Callable[..., Any], lonely: Any, tmp_path: Path
) -> None:
    nodes, users = free_port(), free_port()
    file, config = tmp_path / "nodes.toml", tmp_path / "node.conf"
    file.write_text(f'[nodes]\n1 = "{HOST}:{nodes}"\n')
    config.write_text(
        f"listeners=NODES://{HOST}:{nodes},USERS://{HOST}:{users}\n"
        "listener.security.protocol.map=NODES:PLAINTEXT,USERS:PLAINTEXT\n"
        "inter.broker.listener.name=NODES\n"
    )
    node = start_node(*UNSAID, "--cluster", str(file), "--node", "1", "--config", str(config))
    assert node.panel["listens on"] == f"NODES://{HOST}:{nodes},USERS://{HOST}:{users}"
    lonely.succeeds("topic", "create", "x", "-b", f"{HOST}:{users}")
