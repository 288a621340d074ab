"""TLS and authentication, from the settings that Java clients and librdkafka use."""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millpond.remote import signed_tokens
from millpond.remote.errors import ConfigError
from millpond.remote.sasl import MECHANISMS, OAUTHBEARER, Login
from millpond.remote.signed_tokens import TokenSource

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SETTINGS: Final = frozenset(
    {
        "security.protocol",
        "enable.ssl.certificate.verification",
        *("sasl." + each for each in ("mechanism", "mechanisms", "username", "password", "jaas.config")),
        *("ssl.ca." + each for each in ("location", "pem")),
        *("ssl.certificate." + each for each in ("location", "pem")),
        *("ssl.key." + each for each in ("location", "pem", "password")),
        *("ssl.truststore." + each for each in ("location", "type", "certificates")),
        *("ssl.keystore." + each for each in ("location", "type", "certificate.chain", "key")),
        "ssl.endpoint.identification.algorithm",
        *signed_tokens.SETTINGS,
    }
)
"""Every setting that is used here."""

_JAAS_FIELD: Final = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|([^\s;"\']+))')
_JAVA_STORE: Final = "ssl.{}.location"


@dataclass(slots=True, frozen=True)
class Security:
    """`context` is None without TLS, `login` without authentication."""

    context: ssl.SSLContext | None = None
    login: Login | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> Security:
        """From `security.protocol`, `ssl.*` and `sasl.*`; ConfigError says what is missing."""
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(f"security.protocol={protocol} is none of {', '.join(PROTOCOLS)}")
        context = _context(settings) if protocol.endswith("SSL") else None
        login = _login(settings) if protocol.startswith("SASL") else None
        return cls(context, login)


PLAIN_TEXT: Final = Security()


def librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """The security settings in librdkafka's names, for clients built on it."""
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    translated: dict[str, Any] = {"security.protocol": protocol.lower()}
    if protocol.startswith("SASL"):
        translated |= _librdkafka_login(_login(settings))
    if protocol.endswith("SSL"):
        for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"):
            if name in settings:
                translated[name] = settings[name]
        for theirs, (java, text) in {
            "ssl.ca.location": ("ssl.truststore.location", None),
            "ssl.ca.pem": ("ssl.truststore.certificates", "ssl.ca.pem"),
            "ssl.certificate.pem": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
            "ssl.key.pem": ("ssl.keystore.key", "ssl.key.pem"),
        }.items():
            given = settings.get(text or "") or settings.get(java)
            if given and theirs not in translated:
                translated[theirs] = given
        if "ssl.keystore.location" in settings and "ssl.certificate.location" not in translated:
            translated["ssl.certificate.location"] = translated["ssl.key.location"] = settings[
                "ssl.keystore.location"
            ]
        translated["ssl.endpoint.identification.algorithm"] = "https" if _checks_host(settings) else "none"
        if not _verifies(settings):
            translated["enable.ssl.certificate.verification"] = "false"
    return translated


def _librdkafka_login(login: Login) -> dict[str, Any]:
    if (tokens := login.tokens) is not None:
        # librdkafka calls us for tokens, as it does not support all of our sources.
        return {"sasl.mechanisms": login.mechanism, "oauth_cb": lambda _: (tokens.token(), tokens.until())}
    if login.is_token:
        raise ConfigError("librdkafka does not log in by delegation tokens: give a user's own sasl.username")
    return {
        "sasl.mechanisms": login.mechanism,
        "sasl.username": login.username,
        "sasl.password": login.password,
    }


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    _refuse_java_stores(settings)
    authorities = settings.get("ssl.ca.location") or settings.get("ssl.truststore.location")
    inline = settings.get("ssl.ca.pem") or settings.get("ssl.truststore.certificates")
    try:
        context = ssl.create_default_context(cafile=authorities or None, cadata=inline or None)
        _load_own_certificate(context, settings)
    except (OSError, ssl.SSLError, ValueError) as fault:
        raise ConfigError(f"the certificates of ssl.* cannot be read: {fault}") from fault
    context.check_hostname = _checks_host(settings)
    if not _verifies(settings):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_own_certificate(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    password = settings.get("ssl.key.password")
    store = settings.get("ssl.keystore.location")
    chain = settings.get("ssl.certificate.location") or store
    key = settings.get("ssl.key.location") or store
    if chain:
        context.load_cert_chain(chain, key, password)
        return
    chain_text = settings.get("ssl.certificate.pem") or settings.get("ssl.keystore.certificate.chain")
    key_text = settings.get("ssl.key.pem") or settings.get("ssl.keystore.key")
    if chain_text and key_text:
        # Python loads a key only from files; this one exists only for a moment.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            both.write(f"{key_text}\n{chain_text}\n")
            both.flush()
            context.load_cert_chain(both.name, password=password)


def _refuse_java_stores(settings: Mapping[str, str]) -> None:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "").upper()
        path = settings.get(_JAVA_STORE.format(store), "")
        if kind in ("JKS", "PKCS12") or path.endswith((".jks", ".p12", ".pfx")):
            raise ConfigError(
                f"ssl.{store}.location is a Java {store}; only PEM files can be read: export it with keytool and "
                f"openssl, and give ssl.{store}.type=PEM or ssl.{'ca' if store == 'truststore' else 'key'}.location"
            )


def _checks_host(settings: Mapping[str, str]) -> bool:
    return settings.get("ssl.endpoint.identification.algorithm", "https").lower() not in ("", "none")


def _verifies(settings: Mapping[str, str]) -> bool:
    return settings.get("enable.ssl.certificate.verification", "true").lower() != "false"


def _login(settings: Mapping[str, str]) -> Login:
    mechanism = (settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "").upper()
    if mechanism not in MECHANISMS:
        reason = f"sasl.mechanism={mechanism} is not supported" if mechanism else "sasl.mechanism is missing"
        raise ConfigError(f"{reason}; choose one of {', '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        source = TokenSource.from_settings(settings, _jaas_fields(settings.get("sasl.jaas.config", "")))
        return Login(mechanism, "", "", tokens=source)
    username, password = settings.get("sasl.username"), settings.get("sasl.password")
    fields: dict[str, str] = {}
    if username is None or password is None:
        fields = _jaas_fields(settings.get("sasl.jaas.config", ""))
        username, password = fields.get("username", username), fields.get("password", password)
    if username is None or password is None:
        raise ConfigError("a login needs sasl.username and sasl.password, or both inside sasl.jaas.config")
    return Login(mechanism, username, password, fields.get("tokenauth", "").lower() == "true")


def _jaas_fields(text: str) -> dict[str, str]:
    """The fields of a line such as: module required username="a" password="b";"""
    fields = {}
    for match in _JAAS_FIELD.finditer(text):
        quoted = match[2] if match[2] is not None else match[3]
        fields[match[1]] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[4]
    return fields
