"""Find and check the file that describes the cluster of a command, and the certificates that it names."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.account import is_private_group, refuse_account, refuse_foreign_file
from ammrank_dask.storage.objects.folders import require_regular
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.workflows.session.config import parse_yaml
from ammrank_dask.workflows.session.sections import refuse_boolean

if TYPE_CHECKING:
    from distributed import Client, Security

BUILT_IN = Path(__file__).with_name("cluster.yaml")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ENCRYPTED = ("tls://", "wss://")
MEMORY = "inproc://"
"""Begins the addresses that are reached from inside of their process only."""


TEMPORARY_NAME = "ammrank-internal"
_DAYS_VALID = 365


class Tls(BaseModel):
    """Paths of the certificates of an external cluster, and the host that the scheduler's must name.

    Without `scheduler_name` that is the host of its address.
    """

    model_config = ConfigDict(extra="forbid")
    ca_file: str
    cert: str
    key: str
    scheduler_name: str | None = None


class ClusterConfig(BaseModel):
    """The content of cluster.yaml."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    version: Literal[1]
    class_: str | None = Field(None, alias="class")
    address: str | None = None
    scheduler_file: str | None = None
    kwargs: dict[str, Any] = {}
    security: Tls | Literal["temporary", "none"] | None = None
    network: Literal["trusted"] | None = None
    scale: int | None = Field(None, ge=1)
    adapt: dict[str, Any] | None = None
    wait_for_workers: int = Field(1, ge=1)
    timeout: float = Field(60, gt=0)
    dask: dict[str, Any] = {}

    _booleans_are_no_numbers = field_validator("*", mode="before")(classmethod(refuse_boolean))


@retried
def find_cluster_file(given: str | None, site: Path | None) -> Path:
    """Return the cluster file to use: the one given, the site's, that of the current folder, or the built-in one.

    One that is a pipe or a link to nothing is refused: another cluster than the chosen one would be used.

    It runs code in the name of whoever calls, so that of the current folder must be theirs, and that of the site must
    be the site's own, and they one who works on it.
    """
    if given is not None:
        return Path(given)
    if site is not None:
        require_regular(site / "cluster.yaml")
        if (site / "cluster.yaml").is_file():
            refuse_account(site)
            refuse_foreign_file(site / "cluster.yaml")
            return site / "cluster.yaml"
    here = Path.cwd() / "cluster.yaml"
    require_regular(here)
    if not here.is_file():
        return BUILT_IN
    _refuse_foreign(here)
    return here


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that another account owns or may write, or that another account's link leads to."""
    own = os.geteuid()
    for found in (path.lstat(), path.stat()):
        remedy = f"move it away, or name it with --cluster {path} if you trust what is in it"
        if found.st_uid not in (0, own):
            raise BadInput(f"{path} must belong to you or to root, found user id {found.st_uid}; {remedy}")
        is_shared = found.st_mode & stat.S_IWGRP and not is_private_group(found.st_gid, own)
        if not stat.S_ISLNK(found.st_mode) and (found.st_mode & stat.S_IWOTH or is_shared):
            mode = stat.filemode(found.st_mode)
            raise BadInput(f"nobody but you may write {path}, found {mode}; run `chmod go-w {path}` or {remedy}")


@retried
def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def load_cluster(path: Path) -> ClusterConfig:
    """Read and check a cluster file."""
    try:
        content = parse_yaml(_read_text(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; check --cluster and the file's permissions") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read {path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} must be a mapping of keys, found a {type(content).__name__}")
    try:
        config = ClusterConfig.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [field.alias or name for name, field in ClusterConfig.model_fields.items()]
            raise BadInput(f"{path}: there is no key {key}; known keys are {', '.join(known)}") from None
        reason = first["msg"].removeprefix("Value error, ")
        got = "" if first["type"] == "value_error" else f", got {first['input']!r}"
        raise BadInput(f"{path}: {key}: {reason}{got}") from None
    ways = [name for name in ("class_", "address", "scheduler_file") if getattr(config, name) is not None]
    if len(ways) != 1:
        raise BadInput(f"{path} must have exactly one of class, address and scheduler_file, found {len(ways)}")
    if config.address is not None:
        check_address(config.address, config, path)
    return config


def is_built_in(given: str | None, site: Path | None) -> bool:
    """Return whether the built-in cluster is used, and not one that somebody chose."""
    return load_cluster(find_cluster_file(given, site)) == load_cluster(BUILT_IN)


def check_address(address: str, config: ClusterConfig, path: Path) -> None:
    """Refuse an address that is none, that is remote and not protected, or whose certificates are not named."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not address.startswith(MEMORY) and not (host and port.isdigit()):
        raise BadInput(f"{path}: an address must be PROTOCOL://HOST:PORT, as tls://host:8786, got {address!r}")
    has_security = config.security not in (None, "none")
    if not _is_local(address) and not has_security and config.network is None:
        raise BadInput(f"{path}: {address} is remote and has no `security`; name its TLS certificates")
    refuse_open(address, config, path)
    if address.startswith(ENCRYPTED) and not has_security:
        raise BadInput(f"{path}: {address} speaks TLS and there is no `security`; name its TLS certificates")


def refuse_open(address: str, config: ClusterConfig, path: Path) -> None:
    """Refuse a scheduler that others can reach unencrypted, unless the file says that its network is trusted."""
    if config.network is None and not _is_local(address) and not address.startswith(ENCRYPTED):
        raise BadInput(
            f"{path}: the scheduler at {address} is remote and not encrypted; use TLS (`security`, tls://) or"
            " 127.0.0.1, or write `network: trusted` if nobody else can reach it"
        )


def is_open_to_accounts(address: str, config: ClusterConfig) -> bool:
    """Return whether every account of this machine can run tasks at the address, unless the file says so itself."""
    is_chosen = config.security == "none" or config.network is not None
    return not is_chosen and not address.startswith((MEMORY, *ENCRYPTED)) and _is_local(address)


def _is_local(address: str) -> bool:
    if address.startswith(MEMORY):
        return True
    host = address.rpartition("//")[2].rpartition(":")[0]
    return host in LOCAL_HOSTS


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
    from distributed import Security  # here, because a command may ask for the file and start no cluster

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
