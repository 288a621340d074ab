"""The subject of a certificate, compared with what another library (cryptography) and Java would write."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.distinguished_name import subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime(2026, 1, 1)
KNOWN = [
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.USER_ID,
    NameOID.STREET_ADDRESS,
]


def certificate(name: x509.Name) -> bytes:
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, NOW, NOW + datetime.timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def name_of(*parts: tuple[ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def test_the_last_part_comes_first() -> None:
    name = name_of((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Mill"), (NameOID.COMMON_NAME, "alice"))
    assert subject_of(certificate(name)) == "CN=alice,O=Mill,C=DE"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a, b", "a\\, b"),
        ('say "x"', 'say \\"x\\"'),
        ("#1", "\\#1"),
        (" a ", "\\ a\\ "),
        ("a+b<c>d;e\\f", "a\\+b\\<c\\>d\\;e\\\\f"),
        ("Zoë 水", "Zoë 水"),
    ],
)
def test_what_has_a_meaning_is_escaped(text: str, written: str) -> None:
    assert subject_of(certificate(name_of((NameOID.COMMON_NAME, text)))) == f"CN={written}"


def test_what_java_has_no_name_for_has_its_number_and_its_bytes() -> None:
    address = x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c", _type=_ASN1Type.IA5String)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x"), address])
    assert subject_of(certificate(name)) == "1.2.840.113549.1.9.1=#16056140622e63,CN=x"


def test_parts_of_a_domain() -> None:
    name = name_of((NameOID.DOMAIN_COMPONENT, "org"), (NameOID.DOMAIN_COMPONENT, "example"))
    assert subject_of(certificate(name)) == "DC=example,DC=org"


def test_several_values_at_one_step() -> None:
    both = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    )
    written = subject_of(certificate(x509.Name([both])))
    assert sorted(written.split("+")) == ["CN=a", "UID=b"]


TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(str.strip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KNOWN), TEXTS), min_size=1, max_size=4))
def test_the_same_as_another_library_writes(parts: list[tuple[ObjectIdentifier, str]]) -> None:
    name = name_of(*parts)
    assert subject_of(certificate(name)) == name.rfc4514_string()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_certificate_is_a_value_error_or_another_name(position: int, byte: int) -> None:
    data = bytearray(certificate(name_of((NameOID.COMMON_NAME, "alice"), (NameOID.ORGANIZATION_NAME, "Mill"))))
    data[position % len(data)] = byte
    with contextlib.suppress(ValueError):
        assert isinstance(subject_of(bytes(data)), str)
