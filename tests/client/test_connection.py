"""Where the cluster is."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer as RawProducer

from millpond import ConfigError
from millpond.client.connection import common_settings, make
from millpond.remote.bootstrap import bootstrap_servers


def test_the_address_is_given_else_in_the_environment_else_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLPOND_BOOTSTRAP", raising=False)
    assert bootstrap_servers(None) == "127.0.0.1:9092"
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", "broker:1234")
    assert bootstrap_servers(None) == "broker:1234"
    assert bootstrap_servers("here:1") == "here:1"


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        make(RawProducer, common_settings(None) | {"no.such.setting": 1})
