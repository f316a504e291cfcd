"""Find and check the file that describes the cluster of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ammrank_dask.storage.errors import BadInput

BUILT_IN = Path(__file__).with_name("cluster.yaml")
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ENCRYPTED = ("tls://", "wss://")


class Tls(BaseModel):
    """Paths of the certificates of an external cluster."""

    model_config = ConfigDict(extra="forbid")
    ca_file: str
    cert: str
    key: str


class ClusterConfig(BaseModel):
    """The content of cluster.yaml."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    version: Literal[1]
    class_: str | None = Field(None, alias="class")
    address: str | None = None
    scheduler_file: str | None = None
    kwargs: dict[str, Any] = {}
    security: Tls | Literal["temporary", "none"] | None = None
    scale: int | None = Field(None, ge=1)
    adapt: dict[str, Any] | None = None
    wait_for_workers: int = Field(1, ge=1)
    timeout: float = Field(60, gt=0)
    dask: dict[str, Any] = {}


def find_cluster_file(given: str | None, site: Path | None) -> Path:
    """Return the file in force: the one given, the site's, that of the current folder, or the built-in one."""
    if given is not None:
        return Path(given)
    for folder in (site, Path.cwd()):
        if folder is not None and (folder / "cluster.yaml").is_file():
            return folder / "cluster.yaml"
    return BUILT_IN


def load_cluster(path: Path) -> ClusterConfig:
    """Read and check a cluster file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
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
        raise BadInput(f"{path}: {key}: {first['msg']}, got {first['input']!r}") from None
    ways = [name for name in ("class_", "address", "scheduler_file") if getattr(config, name) is not None]
    if len(ways) != 1:
        raise BadInput(f"{path} must have exactly one of class, address and scheduler_file, found {len(ways)}")
    if config.address is not None:
        check_address(config.address, config, path)
    return config


def check_address(address: str, config: ClusterConfig, path: Path) -> None:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not address.startswith("inproc://") and not (host and port.isdigit()):
        raise BadInput(f"{path}: an address must be PROTOCOL://HOST:PORT, as tls://host:8786, got {address!r}")
    has_security = config.security not in (None, "none")
    if not _is_local(address) and not has_security:
        raise BadInput(f"{path}: {address} is remote and has no `security`; name its TLS certificates")
    refuse_open(address, path)
    if address.startswith(ENCRYPTED) and not has_security:
        raise BadInput(f"{path}: {address} speaks TLS and there is no `security`; name its TLS certificates")


def refuse_open(address: str, path: Path) -> None:
    if not _is_local(address) and not address.startswith(ENCRYPTED):
        raise BadInput(
            f"{path}: the scheduler at {address} is remote and not encrypted; use TLS (`security`, tls://) or 127.0.0.1"
        )


def _is_local(address: str) -> bool:
    if address.startswith("inproc://"):
        return True
    host = address.rpartition("//")[2].rpartition(":")[0]
    return host in _LOCAL_HOSTS
