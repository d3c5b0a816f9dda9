"""Create the certificate authority of a cluster, and its certificates."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = timedelta(days=30)


def write_all(directory: Path, addresses: list[str], names: list[str]) -> None:
    """Write ca, server and client (an admin) as .crt and .key, and the key of service accounts as sa.key and sa.pub.
    `addresses`, `names`: IP addresses and DNS names for which the server's certificate is valid."""
    ca_key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    ca_name = _name("trainyard-kube-ca")
    ca = _builder(ca_name, ca_name, ca_key, now).add_extension(x509.BasicConstraints(True, 0), critical=True)
    ca = ca.add_extension(_key_usage(signs=True), critical=True)
    _write(directory, "ca", ca_key, ca.sign(ca_key, hashes.SHA256()))
    san = x509.SubjectAlternativeName(
        [
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
            *(x509.DNSName(name) for name in names),
        ]
    )
    for file, subject in (("server", _name("server")), ("client", _name("kube-apiserver", "system:masters"))):
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _builder(subject, ca_name, key, now).add_extension(san, critical=False)
        leaf = leaf.add_extension(_key_usage(signs=False), critical=True)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        _write(
            directory,
            file,
            key,
            leaf.add_extension(authority, critical=False).sign(ca_key, hashes.SHA256()),
        )
    sa_key = ec.generate_private_key(ec.SECP256R1())
    (directory / "sa.key").write_bytes(_private_pem(sa_key))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "sa.pub").write_bytes(sa_key.public_key().public_bytes(serialization.Encoding.PEM, spki))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + LIFE)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)


def _name(common_name: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _write(
    directory: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
) -> None:
    (directory / f"{name}.key").write_bytes(_private_pem(key))
    (directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
