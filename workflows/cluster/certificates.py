"""Make certificates for a run, and look at those that a cluster file names before anything connects.

Dask itself only times out.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Client, Security

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.workflows.cluster.cluster_file import Tls

TEMPORARY_NAME = "ammrank-internal"
_DAYS_VALID = 365


def temporary_security() -> Security:
    """Return the key and the certificate of one run, which all of its processes show and accept, in memory only.

    They are those of `Security.temporary` but for the curve P-256: its RSA keys take fifty milliseconds to make, and
    ten times the CPU in every handshake. They are valid from an hour ago on, as clocks of other hosts may be behind.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, TEMPORARY_NAME)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TEMPORARY_NAME)]), critical=False)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=_DAYS_VALID))
        .sign(key, hashes.SHA256())
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
    kept = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return secured(shown, shown, kept)


def secured(ca_file: str, cert: str, key: str) -> Security:
    """Return what a command, a scheduler that it starts and its workers show: all the same certificate."""
    roles = ("client", "scheduler", "worker")
    shown = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
    return Security(tls_ca_file=ca_file, require_encryption=True, **shown)


def check_certificates(tls: Tls, path: Path, *, now: dt.datetime | None = None) -> None:
    """Refuse certificates that cannot be read, are not valid now, or do not belong to their key.

    Parameters
    ----------
    tls
        The files that the cluster file names.
    path
        The cluster file, for the sentence.
    now
        The time to judge by; default: the clock of this machine.
    """
    now = now or dt.datetime.now(dt.UTC)
    for name, file in (("ca_file", tls.ca_file), ("cert", tls.cert)):
        for certificate in _read_certificates(name, file, path):
            first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if last < now:
                raise BadInput(f"{path}: the certificate {file} (security.{name}) expired on {last:%Y-%m-%d}; renew it")
            if first > now:
                raise BadInput(
                    f"{path}: the certificate {file} (security.{name}) is valid from {first:%Y-%m-%d %H:%M} UTC on and"
                    f" it is {now:%Y-%m-%d %H:%M} UTC here; correct the clock of this machine, or wait"
                )
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        cause = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise BadInput(
            f"{path}: security.key {tls.key} must be the key of security.cert {tls.cert} ({cause}); correct the names"
        ) from None


def check_scheduler_name(client: Client, address: str, tls: Tls, path: Path) -> None:
    """Refuse a scheduler that shows the certificate of another host: Dask itself compares no names.

    Whoever has a certificate of the authority could pose as the scheduler otherwise. One that names no host belongs to
    whoever has its key.

    Parameters
    ----------
    client
        Connected to the scheduler.
    address
        Where the scheduler was sought.
    tls
        The part `security` of the cluster file.
    path
        The cluster file, for the sentence.
    """
    host = tls.scheduler_name or address.rpartition("//")[2].rpartition(":")[0].strip("[]")
    connection: Any = client.scheduler_comm
    names = _hosts_of(connection.comm.extra_info["peercert"])
    if names and not any(_is_host(name, host) for name in names):
        raise BadInput(
            f"{path}: the certificate of the scheduler at {address} is that of {_list_some(names)} and not of {host};"
            " give the scheduler its own, or write the name that it has as security.scheduler_name"
        )


def _hosts_of(certificate: dict[str, Any]) -> list[str]:
    """Return the names and addresses of hosts in a certificate as `ssl` describes it."""
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_host(name: str, host: str) -> bool:
    """Return whether a name of a certificate is that of a host; `*.` stands for one label."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    return name == host or (name.startswith("*.") and name[1:] == host[len(host.partition(".")[0]) :])


def _read_certificates(name: str, file: str, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot read security.{name} {file}: {error.strerror}; correct the name") from None
    except ValueError:
        raise BadInput(f"{path}: security.{name} {file} must be a certificate in PEM form; correct the name") from None
