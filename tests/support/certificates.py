"""Make certificates for clusters with TLS, as an operator would with openssl."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """An authority, and one certificate with its key that it signed."""

    ca: Path
    cert: Path
    key: Path


def write_certificates(
    folder: Path, days: int = 30, hosts: Sequence[str] = ("127.0.0.1",), authority_days: int | None = None
) -> Certificates:
    """Write an authority of its own and a certificate for every party of a cluster, valid for so many days from now.

    The certificate names `hosts`, addresses or names; of none it belongs to whoever has its key.
    """
    folder.mkdir(parents=True)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test cluster")])
    authority = (
        _builder(authority_name, authority_name, authority_key, days if authority_days is None else authority_days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    builder = _builder(name, authority_name, key, days)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name_of(host) for host in hosts]), critical=False)
    cert = builder.sign(authority_key, hashes.SHA256())
    found = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    found.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    found.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return found


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=days))
    )
