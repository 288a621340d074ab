"""Certificates for one test: of an authority created for it, of a server, of a client."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from support.node import HOST


class Certificates:
    """Files in PEM format: those of a server or client have its key and its certificate."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._authority = authority = trustme.CA()
        self.authority = self._write("authority", authority.cert_pem.bytes())
        self.stranger = self._write("stranger", trustme.CA().cert_pem.bytes())
        self.server = self._write("server", _key_and_chain(authority.issue_cert(HOST, "localhost")))
        self.elsewhere = self._write("elsewhere", _key_and_chain(authority.issue_cert("elsewhere.example")))
        self.client = self._write("client", _key_and_chain(authority.issue_cert("client@example.org")))

    def named(self, user: str) -> Path:
        """The certificate of a client or node of this name, valid for the loopback: `CN=user,OU=…,O=…`."""
        return self._write(user, _key_and_chain(self._authority.issue_cert(HOST, "localhost", common_name=user)))

    def server_settings(self, user: str = "node") -> dict[str, str]:
        """The settings of a node that uses TLS, and trusts only certificates of its own authority."""
        return {"ssl.keystore.location": str(self.named(user)), "ssl.truststore.location": str(self.authority)}

    def _write(self, name: str, data: bytes) -> Path:
        path = self._root / f"{name}.pem"
        path.write_bytes(data)
        return path


def _key_and_chain(issued: trustme.LeafCert) -> bytes:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    # The only key format that Java reads.
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return written + b"".join(each.bytes() for each in issued.cert_chain_pems)
