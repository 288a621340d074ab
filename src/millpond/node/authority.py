"""A certificate authority for one cluster: it signs the certificates of nodes and clients.

Everything is in one folder: `ca.pem` is public, `ca.key` signs and stays private, `NAME.pem` holds a key with its
certificate, as nodes and clients expect it (`ssl.keystore.location`). Keys are elliptic (P-256): as safe as 3,072-bit
RSA, with much cheaper handshakes. docs/decisions/0020-certificate-authority.md explains the choice of library.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from millpond.node.private_files import PUBLIC_MODE, make_private_folder, write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

Kind = Literal["node", "client"]

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 730
SKEW: Final = timedelta(minutes=10)
"""How far the clock of another machine may be behind ours."""

CERTIFICATE: Final = "ca.pem"
KEY: Final = "ca.key"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
"""A certificate's name, which is also a file name and a user name."""


class NoAuthority(Exception):
    """There is no authority in this folder, or its files are invalid; the text says which."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The contents of a certificate."""

    name: str
    path: Path
    kind: str
    """authority, node, client, or both."""
    subject: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    serial: str
    fingerprint: str
    """SHA-256, as browsers and openssl show it."""

    def days_left(self, now: datetime) -> int:
        return (self.not_after - now) // timedelta(days=1)


class Authority:
    """Signs certificates for one folder."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._certificate = certificate
        self._key = key

    @property
    def path(self) -> Path:
        """The file that anyone who verifies a certificate needs."""
        return self.folder / CERTIFICATE

    @classmethod
    def create(cls, folder: Path, name: str = "Millpond", days: int = AUTHORITY_DAYS) -> Authority:
        """Create one. FileExistsError if one exists: the certificates it issued would become invalid."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        make_private_folder(folder)
        for each in (CERTIFICATE, KEY):
            if (folder / each).exists():
                raise FileExistsError(f"{folder / each} already exists")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(f"{name} authority")
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + timedelta(days=days))
            # It signs end-entity certificates, and no further authorities.
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without it could never sign anything.
        write_private(folder / KEY, _key_pem(key))
        write_private(folder / CERTIFICATE, _certificate_pem(certificate), PUBLIC_MODE)
        return cls(folder, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
        except FileNotFoundError as missing:
            raise NoAuthority(f"{folder} has no authority: {missing.filename} is missing") from None
        except (OSError, ValueError, TypeError) as fault:
            raise NoAuthority(f"the authority in {folder} cannot be read: {fault}") from None
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise NoAuthority(f"{folder / KEY} is not the key of {folder / CERTIFICATE}")
        return cls(folder, certificate, key)

    def issue(
        self, name: str, kind: Kind, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS, *, replace: bool = False
    ) -> Path:
        """Write a key and its certificate to one file, `NAME.pem`. FileExistsError unless `replace`.

        A node's certificate is valid for both sides: as a server, and as a client of other nodes.
        """
        path = self.folder / f"{name}.pem"
        if path.exists() and not replace:
            raise FileExistsError(f"{path} already exists")
        write_private(path, self.issued(name, kind, hosts, days))
        return path

    def issued(self, name: str, kind: Kind, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS) -> bytes:
        """The same as bytes: a key, its certificate and the authority's."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

        assert NAME.fullmatch(name), name
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        until = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        purposes = [Purpose.CLIENT_AUTH] if kind == "client" else [Purpose.SERVER_AUTH, Purpose.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(_general_name, hosts)]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return _key_pem(key) + _certificate_pem(certificate) + _certificate_pem(self._certificate)


def read_facts(path: Path) -> Facts:
    """The contents of a file's first certificate. ValueError if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

    certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    found = {type(each.value): each.value for each in certificate.extensions}
    constraints, purposes = found.get(x509.BasicConstraints), found.get(x509.ExtendedKeyUsage)
    names = found.get(x509.SubjectAlternativeName)
    kind = "client"
    if isinstance(constraints, x509.BasicConstraints) and constraints.ca:
        kind = "authority"
    elif not isinstance(purposes, x509.ExtendedKeyUsage) or Purpose.SERVER_AUTH in purposes:
        kind = "node"
    hosts = [str(each.value) for each in names] if isinstance(names, x509.SubjectAlternativeName) else []
    return Facts(
        path.stem,
        path,
        kind,
        certificate.subject.rfc4514_string(),
        tuple(hosts),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        f"{certificate.serial_number:x}",
        certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
    )


def list_facts(folder: Path) -> list[Facts]:
    """The contents of every certificate in the folder, the authority's first; other files are skipped."""
    found = []
    for path in sorted(folder.glob("*.pem")):
        try:
            found.append(read_facts(path))
        except (ValueError, OSError):
            continue
    return sorted(found, key=lambda each: (each.kind != "authority", each.kind != "node", each.name))


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    # The only key format that Java reads.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
