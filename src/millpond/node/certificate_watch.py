"""Warns before a certificate expires: afterwards no peer would accept this node, or it would accept no peer."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millpond.base.named_tuple import NamedTuple
from millpond.node.der import children, fields_of
from millpond.node.distinguished_name import subject_of

if TYPE_CHECKING:
    from millpond.base.ports import Clock, Timer, Workers
    from millpond.base.tls import ServerTls
    from millpond.broker.loop.journal import Journal

SOON_DAYS: Final = 30
LOOK_MS: Final = 3_600_000
AGAIN_MS: Final = 24 * 3_600_000
"""How often a warning is repeated."""

_DAY_SECONDS: Final = 86_400
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_FORMS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


class End(NamedTuple):
    """The earliest expiry among the certificates of a file."""

    path: str
    subject: str
    at: datetime


class CertificateWatch:
    """Checks the files of all listeners once an hour: they may change while the node runs."""

    def __init__(
        self, clock: Clock, workers: Workers, listeners: Iterable[ServerTls | None], journal: Journal
    ) -> None:
        files = [each.files for each in listeners if each is not None]
        self._paths = [
            *dict.fromkeys(path for each in files for path in (each.certificate, each.authorities) if path)
        ]
        self._clock = clock
        self._workers = workers
        self._journal = journal
        self._said: dict[str, tuple[End, bool, int]] = {}
        """The last warning about each file, whether it was about an actual expiry, and when it was given."""
        self._timer: Timer | None = None

    def start(self) -> None:
        if self._paths:
            self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._workers.run(lambda: [first_end(each) for each in self._paths]).then(self._tell)
        self._timer = self._clock.call_later(LOOK_MS, self._look)

    def _tell(self, ends: list[End | None]) -> None:
        for end in filter(None, ends):
            seconds = end.at.timestamp() - self._clock.wall_ms() / 1000
            is_over = seconds <= 0
            if seconds > SOON_DAYS * _DAY_SECONDS or self._was_said(end, is_over):
                continue
            self._said[end.path] = end, is_over, self._clock.monotonic_ms()
            self._journal(
                "certificate expired: renew it" if is_over else "certificate expires soon: renew it",
                file=end.path,
                subject=end.subject,
                ends=end.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                days=int(seconds // _DAY_SECONDS),
            )

    def _was_said(self, end: End, is_over: bool) -> bool:
        said = self._said.get(end.path)
        return said is not None and said[:2] == (end, is_over) and self._clock.monotonic_ms() - said[2] < AGAIN_MS


def first_end(path: str) -> End | None:
    """None if the file cannot be read: its user reports that."""
    try:
        texts = _CERTIFICATE.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
        ends = [_end(path, ssl.PEM_cert_to_DER_cert(each)) for each in texts]
    except (OSError, ValueError, IndexError):
        return None
    return min(ends, key=lambda each: each.at, default=None)


def _end(path: str, certificate: bytes) -> End:
    _, validity = fields_of(certificate)[3]
    tag, text = children(validity)[1]
    form = _FORMS.get(tag)
    if form is None:
        raise ValueError("the certificate has no expiry date")
    at = datetime.strptime(bytes(text).decode("ascii"), form).replace(tzinfo=UTC)
    return End(path, subject_of(certificate), at)
