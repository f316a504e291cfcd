"""Look at the certificates that a cluster file names before anything connects: Dask itself only times out."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

from cryptography import x509

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.workflows.cluster.cluster_file import Tls


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


def _read_certificates(name: str, file: str, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot read security.{name} {file}: {error.strerror}; correct the name") from None
    except ValueError:
        raise BadInput(f"{path}: security.{name} {file} must be a certificate in PEM form; correct the name") from None
