"""Which settings are not shown: a name that slips through here is a password in somebody's log."""

from __future__ import annotations

import pytest

from millpond.base.secret_names import HIDDEN, is_secret, shown

SECRETS = (
    "sasl.password",
    "kafka.sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.key",
    "ssl.truststore.password",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.lake.shop.blob.core.windows.net",
    "AWS_SECRET_ACCESS_KEY",
    "azure_storage_account_key",
    "azure_storage_connection_string",
    "azure_storage_sas_key",
    "google_application_credentials",
)
PLAIN = (
    "sasl.username",
    "sasl.mechanism",
    "security.protocol",
    "ssl.ca.location",
    "ssl.key.location",
    "ssl.certificate.location",
    "bootstrap.servers",
    "maxOffsetsPerTrigger",
    "spark.sql.shuffle.partitions",
    "spark.executor.memory",
    "key",
    "group.id",
)


@pytest.mark.parametrize("name", SECRETS)
def test_secrets(name: str) -> None:
    assert is_secret(name)
    assert is_secret(name.upper())
    assert shown(name, "hunter2") == HIDDEN


@pytest.mark.parametrize("name", PLAIN)
def test_what_may_be_shown(name: str) -> None:
    assert shown(name, "it") == "it"
