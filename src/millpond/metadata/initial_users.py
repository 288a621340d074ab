"""The first users of a cluster, as lines of a file with SCRAM credentials but no passwords.

    alice SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=8192

The credential is written as Kafka does; in the name, all but letters and digits are percent-encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millpond.base.scram import ScramFault, attributes, digest, from_base64, keys_of, salted, to_base64
from millpond.metadata.decision import Decision
from millpond.metadata.records import UserScramCredentialRecord
from millpond.metadata.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ITERATIONS_USUAL,
    MECHANISMS,
    SALT_BYTES_MAX,
    Mechanism,
    name_fault,
    secret_record,
)

if TYPE_CHECKING:
    from millpond.metadata.image import Image

LINES_MAX: Final = 1000
FORM: Final = "NAME MECHANISM salt=…,stored_key=…,server_key=…,iterations=…"
_SECRETS: Final = ("salt", "stored_key", "server_key")


class InitialUsersFault(ValueError):
    """An invalid line of the file; the text names it without its secrets."""


def credential_of(
    user: str,
    password: str,
    salt: bytes,
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512,
    iterations: int = ITERATIONS_USUAL,
) -> UserScramCredentialRecord:
    """The credential for a password. Takes some milliseconds."""
    stretched = salted(mechanism.hash_name, password.encode(), salt, iterations)
    return UserScramCredentialRecord(user, mechanism, salt, *keys_of(mechanism.hash_name, stretched), iterations)


def written(credentials: Iterable[UserScramCredentialRecord]) -> str:
    """Format credentials as lines of a file."""
    from urllib.parse import quote

    return "".join(
        f"{quote(each.name, safe='')} {Mechanism(each.mechanism).label} salt={to_base64(each.salt)},"
        f"stored_key={to_base64(each.stored_key)},server_key={to_base64(each.server_key)},"
        f"iterations={each.iterations}\n"
        for each in credentials
    )


def read(text: str) -> tuple[UserScramCredentialRecord, ...]:
    """Parse the lines of a file; empty lines and comments are skipped."""
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) > LINES_MAX:
        raise InitialUsersFault(f"it has {len(lines)} lines, but at most {LINES_MAX} are allowed")
    users: dict[tuple[str, int], UserScramCredentialRecord] = {}
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            each = _read_line(number, line)
            if users.setdefault((each.name, each.mechanism), each) is not each:
                raise InitialUsersFault(f"line {number} repeats the user and mechanism of another line")
    return tuple(users.values())


def _read_line(number: int, line: str) -> UserScramCredentialRecord:
    from urllib.parse import unquote

    parts = line.split()
    if len(parts) != len(("name", "mechanism", "keys")):
        raise InitialUsersFault(f"line {number} must have the form {FORM}")
    user, mechanism, values = unquote(parts[0]), MECHANISMS.get(parts[1]), attributes(parts[2])
    if (fault := name_fault(user)) is not None:
        raise InitialUsersFault(f"line {number}: {fault}")
    if mechanism is None:
        raise InitialUsersFault(f"line {number}: the mechanism must be one of {', '.join(MECHANISMS)}")
    if missing := [name for name in (*_SECRETS, "iterations") if name not in values]:
        raise InitialUsersFault(f"line {number} lacks {', '.join(missing)}")
    try:
        iterations = int(values["iterations"])
    except ValueError:
        iterations = 0
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InitialUsersFault(f"line {number}: iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    try:
        salt, stored_key, server_key = (from_base64(values[name]) for name in _SECRETS)
    except ScramFault:
        raise InitialUsersFault(f"line {number}: the salt and the keys must be base64") from None
    size = len(digest(mechanism.hash_name, b""))
    if not 0 < len(salt) <= SALT_BYTES_MAX or len(stored_key) != size or len(server_key) != size:
        raise InitialUsersFault(
            f"line {number}: the salt must not be empty, and each key of {parts[1]} must have {size} bytes"
        )
    return UserScramCredentialRecord(user, mechanism, salt, stored_key, server_key, iterations)


def decide_first_users(
    image: Image, users: Iterable[UserScramCredentialRecord], fresh_secret: bytes
) -> Decision[int]:
    """Create the first users; the number of users.

    A cluster that ever had users gets none: a removed administrator must not come back with a restart.
    """
    credentials = tuple(users)
    if image.scram.had_users or not credentials:
        return Decision((), 0)
    return Decision((secret_record(fresh_secret), *credentials), len(credentials))
