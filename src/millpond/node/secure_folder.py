"""The folder `security` within a data folder: everything that makes a node secure, created once.

A certificate authority, a certificate, a user `admin` with a random password, a user for the nodes themselves, and
the matching settings (`node.properties`). The same for clients comes in three forms: `client.properties` for Kafka's
tools and ours, `client.py` for Python, `kcat.conf` for kcat.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millpond.log.names import LOCK_FILE, SECURITY_FOLDER
from millpond.log.store import FolderInUse
from millpond.node.authority import Authority, NoAuthority
from millpond.node.disk import RealDisk
from millpond.node.private_files import guard_data_folder, make_private_folder, write_private
from millpond.remote.client_file import read_client_file

NODE_SETTINGS: Final = "node.properties"
CLIENT_SETTINGS: Final = "client.properties"
PYTHON_SETTINGS: Final = "client.py"
KCAT_SETTINGS: Final = "kcat.conf"
ADMIN: Final = "admin"
ADMIN_PASSWORD: Final = "admin.password"
NODE_USER: Final = "millpond-node"
"""The user that nodes authenticate as, by password or by this name in a certificate."""
NODE_PASSWORD: Final = "node.password"
USERS: Final = "initial.users"
MECHANISM: Final = "SCRAM-SHA-512"
PASSWORD_BYTES: Final = 24
"""Too many to guess, and 32 characters that need no quoting anywhere."""

PYTHON: Final = """\
# How programs in Python log in to this cluster.

SETTINGS = {{
{settings}}}  # confluent-kafka: Producer(SETTINGS); millpond: Producer(settings=SETTINGS)

KEYWORDS = {{
{keywords}}}  # kafka-python: KafkaProducer(**KEYWORDS)


def for_aiokafka():
    # AIOKafkaProducer(**for_aiokafka())
    import ssl

    others = {{name: value for name, value in KEYWORDS.items() if name != "ssl_cafile"}}
    return {{**others, "ssl_context": ssl.create_default_context(cafile=KEYWORDS["ssl_cafile"])}}
"""

_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")
_FILE_ENDINGS: Final = (".password.file", ".users.file")
"""Settings of `node.properties` that name files, relative to this folder unless absolute."""


@dataclass(frozen=True, slots=True)
class SecureFolder:
    path: Path
    is_new: bool = False
    """Whether it has just been created."""

    @property
    def client_file(self) -> Path:
        return self.path / CLIENT_SETTINGS

    @property
    def password_file(self) -> Path:
        return self.path / ADMIN_PASSWORD

    @property
    def authority_file(self) -> Path:
        return self.path / "ca.pem"

    def password(self) -> str:
        """The admin's password. Only the owner of the folder can read it."""
        return self.password_file.read_text(encoding="utf-8").strip()

    def node_texts(self) -> dict[str, str]:
        """The settings of the node, with paths resolved to the folder's current location. ConfigError, OSError."""
        texts = read_client_file(str(self.path / NODE_SETTINGS), "the node's settings")
        return {
            name: str(self.path / text) if text and (name in _FILES or name.endswith(_FILE_ENDINGS)) else text
            for name, text in texts.items()
        }

    def client_settings(self) -> dict[str, str]:
        """The admin's client settings, as Kafka's tools take them."""
        return read_client_file(str(self.client_file))

    def library_settings(self, bootstrap: str) -> dict[str, str]:
        """The same as librdkafka takes them."""
        return _for_library(self.path, bootstrap, self.password())

    def certificate_of(self, user: str) -> Path:
        """A key and a certificate for this user, for listeners that require one; created if necessary."""
        path = self.path / f"{user}.pem"
        return path if path.exists() else Authority.load(self.path).issue(user, "client")

    def change_password(self, password: str) -> None:
        """Update the files after the admin's password was changed."""
        write_private(self.password_file, f"{password}\n".encode())
        write_private(self.path / USERS, _users({ADMIN: password}))
        _write_clients(self.path, self.client_settings()["bootstrap.servers"], password)

    def tell_clients(self, bootstrap: str) -> None:
        """Write this address into the client files. Files that were removed stay removed."""
        if not self.client_file.exists() or not self.password_file.exists():
            return
        known = self.client_settings()
        before = known.get("bootstrap.servers"), known.get("ssl.truststore.location")
        if before != (bootstrap, str(self.authority_file)):
            _write_clients(self.path, bootstrap, self.password())


def secure_folder(data: str) -> SecureFolder | None:
    """The secure folder of this data folder, if it has one."""
    folder = Path(data).absolute() / SECURITY_FOLDER
    return SecureFolder(folder) if (folder / NODE_SETTINGS).exists() else None


class CannotSecure(Exception):
    """This data folder cannot get a new admin; the text says why, and what to do."""


def is_half_made(data: str) -> bool:
    """Whether creation was interrupted: the settings that make the node secure are missing."""
    folder = Path(data).absolute() / SECURITY_FOLDER
    has_some = any((folder / name).exists() for name in (ADMIN_PASSWORD, NODE_PASSWORD, USERS))
    return has_some and not (folder / NODE_SETTINGS).exists()


def make_secure_folder(data: str, hosts: Iterable[str]) -> SecureFolder:
    """Create it, for a node that is reached at `hosts`; an existing one stays unchanged.

    OpenToOthers, CannotSecure, FolderInUse or OSError if the data folder cannot be used; then nothing was changed.
    """
    known = secure_folder(data)
    if known is not None:
        return known
    folder = Path(data).absolute() / SECURITY_FOLDER
    has_admin = any((folder / name).exists() for name in (USERS, ADMIN_PASSWORD))
    for each in (Path(data), *sorted(Path(data).glob("node-*"))):
        _check_data(each, has_admin=has_admin)
    guard_data_folder(data, lambda *_, **__: None)
    make_private_folder(Path(data))
    make_private_folder(folder)
    _make(folder, [*dict.fromkeys([*hosts, *own_hosts()])])
    return SecureFolder(folder, is_new=(folder / ADMIN_PASSWORD).exists())


def _check_data(folder: Path, *, has_admin: bool) -> None:
    """Check existing data: no node uses it, and its metadata will accept the admin as a user."""
    from millpond.broker.rescue.survivor import METADATA_FOLDER, CannotRescue, read_metadata
    from millpond.metadata.features import METADATA_VERSION, SECURITY_FROM, metadata_version

    disk = RealDisk()
    if not (folder / METADATA_FOLDER).exists():
        return
    try:
        disk.lock(str(folder / LOCK_FILE)).release()
    except BlockingIOError:
        raise FolderInUse(str(folder)) from None
    try:
        image = read_metadata(disk, str(folder / METADATA_FOLDER)).image
    except CannotRescue:
        # The node itself reports what is wrong with it.
        return
    # Before its first node is registered nothing is decided yet, and the first start uses the newest level.
    if image.brokers and (level := metadata_version(image)) < SECURITY_FROM:
        raise CannotSecure(
            f"it is from an older version, with {METADATA_VERSION} {level}, and users need {SECURITY_FROM}. Start it "
            "without --secure, run `millpond cluster upgrade`, stop it, and give --secure then"
        )
    if image.scram.users() and not has_admin:
        raise CannotSecure(
            "it has users already, and an admin is made only where there are none. If it was secure, put the folder "
            f"{SECURITY_FOLDER} back, as a backup has it. Else start it without --secure, remove them (`millpond "
            "user remove`), stop it, and give --secure then"
        )


def own_hosts() -> list[str]:
    """This machine's names, as itself and others know it."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    with contextlib.suppress(OSError):
        names += [str(each[4][0]).partition("%")[0] for each in socket.getaddrinfo(socket.gethostname(), None)]
    return [each for each in dict.fromkeys(names) if each]


def _make(folder: Path, hosts: list[str]) -> None:
    authority = _authority(folder)
    authority.issue(NODE_USER, "node", hosts, replace=True)
    # Existing passwords may be in use: the metadata can have these users.
    if not (folder / NODE_PASSWORD).exists():
        write_private(folder / NODE_PASSWORD, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode())
    made = SecureFolder(folder)
    if not (folder / USERS).exists():
        if not made.password_file.exists():
            write_private(made.password_file, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode())
        write_private(folder / USERS, _users({ADMIN: made.password()}))
    if made.password_file.exists():
        _write_clients(folder, "127.0.0.1:9092", made.password())
    settings = {
        "listen.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{NODE_USER}.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        # PLAIN for older clients: librdkafka before 2.6.1 (the kcat of Debian 12) has a SCRAM bug.
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "super.users": f"User:{ADMIN};User:{NODE_USER}",
        "inter.broker.sasl.username": NODE_USER,
        "inter.broker.sasl.password.file": NODE_PASSWORD,
        "initial.users.file": USERS,
    }
    head = "The settings that make this node secure; --set and --config override them. Files are in this folder."
    # Last: its existence means that everything is complete.
    write_private(folder / NODE_SETTINGS, _properties(settings, head))


def _authority(folder: Path) -> Authority:
    """An interrupted run continues with what it had created."""
    try:
        return Authority.load(folder)
    except NoAuthority:
        for name in ("ca.key", "ca.pem"):
            (folder / name).unlink(missing_ok=True)
        return Authority.create(folder)


def _users(passwords: Mapping[str, str]) -> bytes:
    """The initial users of a cluster, with the SCRAM credentials of their passwords."""
    from millpond.metadata.initial_users import credential_of, written
    from millpond.metadata.scram import SALT_BYTES_USUAL, Mechanism

    credentials = [
        credential_of(user, password, secrets.token_bytes(SALT_BYTES_USUAL), mechanism)
        for user, password in passwords.items()
        for mechanism in Mechanism
    ]
    return written(credentials).encode()


def _write_clients(folder: Path, bootstrap: str, password: str) -> None:
    ca = folder / "ca.pem"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    for_tools = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f'{module} required username="{ADMIN}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    for_library = _for_library(folder, bootstrap, password)
    head = "For `--command-config` of Kafka's tools, and for MILLPOND_CLIENT_CONFIG."
    write_private(folder / CLIENT_SETTINGS, _properties(for_tools, head))
    for_kcat = {**for_library, "sasl.mechanism": "PLAIN"}
    write_private(
        folder / KCAT_SETTINGS,
        _properties(for_kcat, "For kcat -F; with PLAIN, because old versions have a SCRAM bug."),
    )
    write_private(folder / PYTHON_SETTINGS, _python(for_library, ca).encode())


def _python(settings: Mapping[str, str], ca: Path) -> str:
    """The same for a Python program."""
    by_keyword = {
        "bootstrap_servers": settings["bootstrap.servers"].split(","),
        "security_protocol": settings["security.protocol"],
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
        "ssl_cafile": str(ca),
    }
    return PYTHON.format(settings=_shown(settings), keywords=_shown(by_keyword))


def _shown(values: Mapping[str, object]) -> str:
    return "".join(f"    {json.dumps(name)}: {json.dumps(value)},\n" for name, value in values.items())


def _properties(settings: Mapping[str, str], head: str) -> bytes:
    lines = [f"# {head}", *(f"{name}={text}" for name, text in settings.items())]
    return ("\n".join(lines) + "\n").encode()


def _for_library(folder: Path, bootstrap: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": password,
        "ssl.ca.location": str(folder / "ca.pem"),
    }
