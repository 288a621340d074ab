"""`client.properties`, parsed as in Java, for all clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.client.connection import common_settings
from millpond.remote.client_file import VARIABLE, client_settings, for_librdkafka, parse_properties, read_client_file
from millpond.remote.errors import ConfigError
from millpond.remote.security import Security

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="se\\"cret";'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b  ", {"a": "b"}),
        ("a: b\n", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# a=b\n! c=d\n\n", {}),
        ("a=b=c", {"a": "b=c"}),
        ("a=one \\\n   two", {"a": "one two"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=\\u00e9\\t.", {"a": "é\t."}),
        ("a=1\r\na=2\r\n", {"a": "2"}),
        ('p="x;y" z=1', {"p": '"x;y" z=1'}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MILLPOND_CLIENT_CONFIG: .*none\.properties cannot be read: No such file"):
        read_client_file(str(tmp_path / "none.properties"), VARIABLE)
    (tmp_path / "odd").write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_client_file(str(tmp_path / "odd"))


def test_javas_names_become_those_of_librdkafka() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "linger.ms": 5,
    }
    assert for_librdkafka(given) == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": 'se"cret',
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "https",
        "linger.ms": 5,
    }
    own = {"security.protocol": "SASL_SSL", "sasl.username": "a", "ssl.ca.location": "/ca.pem", "error_cb": print}
    assert for_librdkafka(own) == own, "what is the library's own already stays as it is"


def test_the_variable_applies_to_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLPOND_BOOTSTRAP", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert client_settings() == {}
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers=10.0.0.1:9092\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.jaas.config={JAAS}\n".replace('\\"', "")
    )
    monkeypatch.setenv(VARIABLE, str(path))
    login = Security.from_settings(client_settings()).login
    assert login is not None
    assert (login.username, login.password) == ("admin", "secret")
    common = common_settings(None)
    assert (common["bootstrap.servers"], common["sasl.username"]) == ("10.0.0.1:9092", "admin")
    assert common_settings("10.0.0.2:9092")["bootstrap.servers"] == "10.0.0.2:9092"
    monkeypatch.setenv("MILLPOND_BOOTSTRAP", "10.0.0.3:9092")
    assert common_settings(None)["bootstrap.servers"] == "10.0.0.3:9092"


def test_spark_reads_the_file_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.spark.options import OptionError, read_options

    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=10.0.0.1:9092\nsecurity.protocol=SSL\nclient.id=x\n")
    monkeypatch.delenv("MILLPOND_BOOTSTRAP", raising=False)
    monkeypatch.setenv(VARIABLE, str(path))
    kafka = read_options({"subscribe": "t"}, "readStream").kafka
    assert kafka == {"bootstrap.servers": "10.0.0.1:9092", "security.protocol": "SSL"}
    own = read_options({"subscribe": "t", "kafka.security.protocol": "PLAINTEXT"}, "readStream").kafka
    assert own["security.protocol"] == "PLAINTEXT"
    path.unlink()
    with pytest.raises(OptionError, match="cannot be read"):
        read_options({"subscribe": "t"}, "readStream")
