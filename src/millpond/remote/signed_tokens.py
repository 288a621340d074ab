"""OAUTHBEARER tokens: from a file that is kept fresh externally, or from a token endpoint."""

from __future__ import annotations

import binascii
import json
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.error import URLError
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

from millpond.config.addresses import is_loopback
from millpond.remote.errors import ConfigError, LoginFailed

URL: Final = "sasl.oauthbearer.token.endpoint.url"
SETTINGS: Final = frozenset(
    {
        URL,
        "sasl.oauthbearer.scope",
        # Kafka's names, and those of librdkafka.
        *(f"sasl.oauthbearer.client.credentials.client.{each}" for each in ("id", "secret")),
        *(f"sasl.oauthbearer.client.{each}" for each in ("id", "secret")),
    }
)
ANSWER_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
SHARE: Final = 0.8
"""A token is replaced after this share of its lifetime."""


@dataclass(slots=True)
class TokenSource:
    """Returns a token that is valid for a while yet. For one thread at a time."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    _token: str = field(default="", repr=False)
    _renew_at: float = 0.0

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], fields: Mapping[str, str]) -> TokenSource:
        """`fields` are those of sasl.jaas.config. ConfigError says what is missing."""
        url = settings.get(URL, "")
        parts = urlsplit(url)
        if parts.scheme not in ("file", "https") and not (
            parts.scheme == "http" and is_loopback(parts.hostname or "")
        ):
            raise ConfigError(f"a login by OAUTHBEARER needs {URL}: a file or https URL")
        credentials = {}
        for name, java in (("id", "clientId"), ("secret", "clientSecret")):
            value = settings.get(f"sasl.oauthbearer.client.credentials.client.{name}") or fields.get(java)
            credentials[name] = value or settings.get(f"sasl.oauthbearer.client.{name}", "")
        if parts.scheme != "file" and not all(credentials.values()):
            raise ConfigError("a login by OAUTHBEARER needs a client's id and secret, or a file with a token")
        scope = settings.get("sasl.oauthbearer.scope") or fields.get("scope", "")
        return cls(url, credentials["id"], credentials["secret"], scope)

    def token(self) -> str:
        if self.url.startswith("file:"):
            return self._read()
        if time.monotonic() >= self._renew_at:
            self._ask()
        return self._token

    def until(self) -> float:
        """When the token expires, in seconds since 1970; in a minute if it does not say."""
        try:
            body = self.token().split(".")[1]
            return float(json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
        except (IndexError, ValueError, KeyError, TypeError, binascii.Error):
            return time.time() + 60

    def _read(self) -> str:
        path = unquote(urlsplit(self.url).path)
        try:
            with open(path, encoding="ascii") as file:
                return file.read(ANSWER_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise LoginFailed(f"the token in {path} cannot be read: {getattr(fault, 'strerror', fault)}") from None

    def _ask(self) -> None:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        # RFC 6749: each of the two is form-encoded.
        who = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        request = Request(self.url, urlencode(form).encode(), method="POST")
        request.add_header("Authorization", f"Basic {b64encode(who.encode()).decode()}")
        request.add_header("Accept", "application/json")
        try:
            with urlopen(request, timeout=ANSWER_SECONDS) as response:
                answer = json.loads(response.read(ANSWER_BYTES_MAX))
            token, seconds = str(answer["access_token"]), float(answer.get("expires_in", 60))
        except (URLError, OSError) as fault:
            raise LoginFailed(f"{self.url} gives no token: {fault}") from None
        except (ValueError, KeyError, TypeError):
            raise LoginFailed(f"{self.url} gives no token: invalid response") from None
        self._token, self._renew_at = token, time.monotonic() + seconds * SHARE
