"""TLS settings of a node: its certificate, its trust store, and client authentication."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from millpond.base.settings import AnySetting, Setting, SettingError, at_least, each_of, one_of
from millpond.base.tls import VERSIONS, ClientAuth, ClientTls, ServerTls, TlsFiles
from millpond.config.principal_rules import rules_fault

_PEM_ONLY = "Only PEM is supported: export a Java store with keytool and openssl."

KEYSTORE_TYPE = Setting(
    "ssl.keystore.type", "PEM", f"The format of `ssl.keystore.location`. {_PEM_ONLY}", one_of("PEM")
)
KEYSTORE_LOCATION = Setting(
    "ssl.keystore.location",
    "",
    "A PEM file with this node's private key and its certificate chain. It is reloaded when it changes.",
)
CERTIFICATE_LOCATION = Setting(
    "ssl.certificate.location",
    "",
    "A PEM file with this node's certificate chain, for a private key in a separate file (`ssl.key.location`).",
)
KEY_LOCATION = Setting("ssl.key.location", "", "The private key for `ssl.certificate.location`.")
KEY_PASSWORD = Setting("ssl.key.password", "", "The password of the private key, if it is encrypted.")
TRUSTSTORE_TYPE = Setting(
    "ssl.truststore.type", "PEM", f"The format of `ssl.truststore.location`. {_PEM_ONLY}", one_of("PEM")
)
TRUSTSTORE_LOCATION = Setting(
    "ssl.truststore.location",
    "",
    "A PEM file with the certificate authorities that this node trusts for clients and nodes. It is reloaded when "
    "it changes.",
)
CLIENT_AUTH = Setting(
    "ssl.client.auth",
    ClientAuth.NONE.value,
    "Whether clients must present a certificate: `required`, `requested` or `none`. If it is only requested, a "
    "client without one is `User:ANONYMOUS`, whose only rights are those of its ACLs. A SASL listener uses only "
    "`listener.name.NAME.ssl.client.auth`.",
    one_of(*(each.value for each in ClientAuth)),
)
ENABLED_PROTOCOLS = Setting[tuple[str, ...]](
    "ssl.enabled.protocols", VERSIONS, "The enabled TLS versions.", each_of(*VERSIONS)
)
CIPHER_SUITES = Setting[tuple[str, ...]](
    "ssl.cipher.suites",
    (),
    "The TLS 1.2 ciphers, by Java's or OpenSSL's names. Empty for those with forward secrecy and authenticated "
    "encryption (ECDHE with AES-GCM or ChaCha20). The TLS 1.3 ciphers are always enabled.",
)
ENDPOINT_IDENTIFICATION = Setting(
    "ssl.endpoint.identification.algorithm",
    "https",
    "How this node verifies certificates of other nodes: with `https` they must name the host or address that it "
    "connected to; empty disables the check.",
    one_of("https", "none", ""),
)
PRINCIPAL_MAPPING_RULES = Setting(
    "ssl.principal.mapping.rules",
    "DEFAULT",
    "How a certificate's name becomes a user name. Comma-separated rules, of which the first match applies: "
    "`RULE:pattern/replacement/`, followed by `L` or `U` for lower or upper case, or `DEFAULT` for the unchanged "
    "name.",
    lambda value: rules_fault(str(value)),
)
HANDSHAKE_MS_MAX = Setting(
    "ssl.handshake.timeout.ms",
    10_000,
    "How long a TLS handshake may take before the connection is closed.",
    at_least(1),
    bits=32,
)

SETTINGS: Final[tuple[AnySetting, ...]] = (
    KEYSTORE_TYPE,
    KEYSTORE_LOCATION,
    CERTIFICATE_LOCATION,
    KEY_LOCATION,
    KEY_PASSWORD,
    TRUSTSTORE_TYPE,
    TRUSTSTORE_LOCATION,
    CLIENT_AUTH,
    ENABLED_PROTOCOLS,
    CIPHER_SUITES,
    ENDPOINT_IDENTIFICATION,
    PRINCIPAL_MAPPING_RULES,
    HANDSHAKE_MS_MAX,
)

Get = Callable[[Setting[Any]], Any]
"""Returns a setting's value for one listener."""

_JAVA_STORES: Final = (".jks", ".p12", ".pfx", ".keystore", ".truststore")
_OF_TLS_1_3: Final = re.compile(r"TLS_(?!.*_WITH_)")


def server_tls(get: Get, client_auth: ClientAuth) -> ServerTls:
    """The TLS settings of a listener. Raises SettingError if a required file is missing."""
    files = _files(get)
    if not files.certificate:
        raise SettingError(
            f"a listener with TLS needs a certificate: set {KEYSTORE_LOCATION.name}, or "
            f"{CERTIFICATE_LOCATION.name} and {KEY_LOCATION.name}"
        )
    if client_auth is not ClientAuth.NONE and not files.authorities:
        raise SettingError(
            f"{CLIENT_AUTH.name}={client_auth.value} needs {TRUSTSTORE_LOCATION.name}, the trusted "
            "certificate authorities"
        )
    return ServerTls(files, client_auth, get(ENABLED_PROTOCOLS), _ciphers(get), get(HANDSHAKE_MS_MAX))


def client_tls(get: Get) -> ClientTls:
    """The TLS settings for connecting to other nodes on this listener, with the same certificate."""
    files = _files(get)
    if not files.authorities:
        raise SettingError(
            f"to connect to other nodes by TLS, set {TRUSTSTORE_LOCATION.name} to the authorities of their "
            "certificates"
        )
    checks_host = get(ENDPOINT_IDENTIFICATION) == "https"
    return ClientTls(files, checks_host, get(ENABLED_PROTOCOLS), _ciphers(get), get(HANDSHAKE_MS_MAX))


def _files(get: Get) -> TlsFiles:
    both, certificate, key = get(KEYSTORE_LOCATION), get(CERTIFICATE_LOCATION), get(KEY_LOCATION)
    for setting, path in ((KEYSTORE_LOCATION, both), (TRUSTSTORE_LOCATION, get(TRUSTSTORE_LOCATION))):
        if path.endswith(_JAVA_STORES):
            raise SettingError(f"{setting.name}={path}: {_PEM_ONLY}")
    if key and not certificate:
        raise SettingError(f"{KEY_LOCATION.name} requires {CERTIFICATE_LOCATION.name}")
    return TlsFiles(certificate or both, key or certificate or both, get(KEY_PASSWORD), get(TRUSTSTORE_LOCATION))


def _ciphers(get: Get) -> tuple[str, ...]:
    return tuple(openssl_name(each) for each in get(CIPHER_SUITES) if not _OF_TLS_1_3.match(each))


def openssl_name(cipher: str) -> str:
    """OpenSSL's name of a cipher: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384."""
    if not cipher.startswith("TLS_"):
        return cipher
    name = cipher.removeprefix("TLS_").replace("_WITH_", "_").replace("POLY1305_SHA256", "POLY1305")
    return re.sub(r"AES_(\d+)", r"AES\1", name).replace("_", "-")
