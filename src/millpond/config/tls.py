"""TLS settings of a node: its certificate, its trust store, and client authentication."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from millpond.base.settings import AnySetting, Setting, SettingError, at_least, each_of, one_of
from millpond.base.tls import VERSIONS, ClientAuth, ClientTls, ServerTls, TlsFiles
from millpond.config.principal_rules import rules_fault

_PEM_ONLY = "Only PEM is read: export a Java store with keytool and openssl."

KEYSTORE_TYPE = Setting(
    "ssl.keystore.type", "PEM", f"The form of `ssl.keystore.location`. {_PEM_ONLY}", one_of("PEM")
)
KEYSTORE_LOCATION = Setting(
    "ssl.keystore.location",
    "",
    "A PEM file with the private key and the certificate of this node, with the chain up to its authority. It is "
    "read again when it changes.",
)
CERTIFICATE_LOCATION = Setting(
    "ssl.certificate.location",
    "",
    "The same in two files, as most authorities hand them out: the certificate and its chain.",
)
KEY_LOCATION = Setting("ssl.key.location", "", "The private key for `ssl.certificate.location`.")
KEY_PASSWORD = Setting("ssl.key.password", "", "The password of the private key, if it has one.")
TRUSTSTORE_TYPE = Setting(
    "ssl.truststore.type", "PEM", f"The form of `ssl.truststore.location`. {_PEM_ONLY}", one_of("PEM")
)
TRUSTSTORE_LOCATION = Setting(
    "ssl.truststore.location",
    "",
    "A PEM file with the certificates of the authorities whose clients and nodes are believed. It is read again when "
    "it changes.",
)
CLIENT_AUTH = Setting(
    "ssl.client.auth",
    ClientAuth.NONE.value,
    "Whether clients show a certificate of their own: `required`, `requested` or `none`. Where it is requested, "
    "whoever shows none is `User:ANONYMOUS`, who has no rights but those that an ACL gives. On a listener with SASL "
    "it counts only as `listener.name.NAME.ssl.client.auth`.",
    one_of(*(each.value for each in ClientAuth)),
)
ENABLED_PROTOCOLS = Setting[tuple[str, ...]](
    "ssl.enabled.protocols", VERSIONS, "The versions of TLS that are spoken.", each_of(*VERSIONS)
)
CIPHER_SUITES = Setting[tuple[str, ...]](
    "ssl.cipher.suites",
    (),
    "The ciphers of TLS 1.2, by Java's names or OpenSSL's; empty for those with forward secrecy and authenticated "
    "encryption (ECDHE with AES-GCM or ChaCha20). Those of TLS 1.3 are all good, and always on.",
)
ENDPOINT_IDENTIFICATION = Setting(
    "ssl.endpoint.identification.algorithm",
    "https",
    "How this node checks the certificates of other nodes: with `https` they have to name the host or address at "
    "which the node was reached; empty does without.",
    one_of("https", "none", ""),
)
PRINCIPAL_MAPPING_RULES = Setting(
    "ssl.principal.mapping.rules",
    "DEFAULT",
    "How the name in a client's certificate becomes that of a user: rules `RULE:pattern/replacement/` with `L` or "
    "`U` behind it for lower or upper case, and `DEFAULT` for the name as it is, parted by commas; the first that "
    "matches counts.",
    lambda value: rules_fault(str(value)),
)
HANDSHAKE_MS_MAX = Setting(
    "ssl.handshake.timeout.ms",
    10_000,
    "How long a peer may take to agree on keys before its connection is closed.",
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
            f"{CLIENT_AUTH.name}={client_auth.value} needs {TRUSTSTORE_LOCATION.name}: the authorities whose "
            "certificates are believed"
        )
    return ServerTls(files, client_auth, get(ENABLED_PROTOCOLS), _ciphers(get), get(HANDSHAKE_MS_MAX))


def client_tls(get: Get) -> ClientTls:
    """The TLS settings for connecting to other nodes on this listener, with the same certificate."""
    files = _files(get)
    if not files.authorities:
        raise SettingError(
            f"nodes that connect by TLS need {TRUSTSTORE_LOCATION.name}: the authorities that the other nodes' "
            "certificates come from"
        )
    checks_host = get(ENDPOINT_IDENTIFICATION) == "https"
    return ClientTls(files, checks_host, get(ENABLED_PROTOCOLS), _ciphers(get), get(HANDSHAKE_MS_MAX))


def _files(get: Get) -> TlsFiles:
    both, certificate, key = get(KEYSTORE_LOCATION), get(CERTIFICATE_LOCATION), get(KEY_LOCATION)
    for setting, path in ((KEYSTORE_LOCATION, both), (TRUSTSTORE_LOCATION, get(TRUSTSTORE_LOCATION))):
        if path.endswith(_JAVA_STORES):
            raise SettingError(f"{setting.name}={path}: {_PEM_ONLY}")
    if key and not certificate:
        raise SettingError(f"{KEY_LOCATION.name} is of use only with {CERTIFICATE_LOCATION.name}")
    return TlsFiles(certificate or both, key or certificate or both, get(KEY_PASSWORD), get(TRUSTSTORE_LOCATION))


def _ciphers(get: Get) -> tuple[str, ...]:
    return tuple(openssl_name(each) for each in get(CIPHER_SUITES) if not _OF_TLS_1_3.match(each))


def openssl_name(cipher: str) -> str:
    """OpenSSL's name of a cipher: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384."""
    if not cipher.startswith("TLS_"):
        return cipher
    name = cipher.removeprefix("TLS_").replace("_WITH_", "_").replace("POLY1305_SHA256", "POLY1305")
    return re.sub(r"AES_(\d+)", r"AES\1", name).replace("_", "-")
