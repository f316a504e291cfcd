"""Open the cluster that `cluster.yaml` describes: the embedded one, any Dask cluster class, or a running scheduler."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import click
import dask
from distributed import Adaptive, Client, LocalCluster, Nanny, Scheduler, Security, SpecCluster, Worker
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.deploy.cluster import Cluster

from ammrank_dask.runtime.stop_tasks import is_scheduler_gone
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.account import is_of_group
from ammrank_dask.storage.objects.folders import is_folder
from ammrank_dask.workflows.cluster.checks import check_dask, checked_workers, private_workers
from ammrank_dask.workflows.cluster.cluster_file import (
    ENCRYPTED,
    LOCAL_HOSTS,
    MEMORY,
    ClusterConfig,
    Tls,
    check_address,
    check_certificates,
    check_scheduler_name,
    find_cluster_file,
    is_open_to_accounts,
    load_cluster,
    refuse_open,
    secured,
    temporary_security,
)
from ammrank_dask.workflows.cluster.local import (
    LeaveInterrupts,
    NameOrigins,
    hush_cancelled_waits,
    hush_cut_pages,
    hush_failed_tasks,
    name_origins,
    own_origins,
    private_scratch,
    start_apart,
)
from ammrank_dask.workflows.session.deadline import is_signalled, seconds_left

logger = logging.getLogger(__name__)

_GATEWAY = "dask_gateway.client.GatewayCluster"
"""The one cluster class that is used as the others are and does not derive from theirs."""
_SECONDS_BETWEEN_MESSAGES = 0.001
"""Dask's clients send a message every 10 ms at most, for which the workers would wait in every stage."""


SECONDS_TO_CLOSE = 30.0
"""How long a command that has ended waits for its cluster to close."""


@contextlib.contextmanager
def open_cluster(
    cluster_file: str | None,
    site: Path | None,
    quiet: bool = False,
    *,
    beside: Path | None = None,
) -> Iterator[Client]:
    """Start or join the cluster, say where its dashboard is, and close what was started.

    The workers must see the files of `site`; `beside` is a site whose cluster file counts and that nobody looks at.
    """
    from ammrank_dask.monitor.plugin import page_address, watch_cluster

    path = find_cluster_file(cluster_file, site or beside)
    config = load_cluster(path)
    _hush_distributed()
    with contextlib.ExitStack() as stack:
        is_local = config.class_ is not None and _import_name(config.class_) is LocalCluster
        if is_local:
            stack.enter_context(dask.config.set(own_origins()))
        stack.enter_context(dask.config.set(config.dask))
        if isinstance(config.security, Tls):
            check_certificates(config.security, path)
        security = _security(config.security)
        target: Any
        dashboard_address = None
        if config.class_ is not None:
            target, dashboard_address = _start_own(stack, config, security, path)
        elif config.address is not None:
            target = _join(config.address, security, config)
        else:
            address = _wait_for_address(Path(str(config.scheduler_file)), path, timeout=config.timeout)
            check_address(address, config, path)
            target = _join(address, security, config)
        try:
            client = stack.enter_context(closed_in_time(_connect(target, path, timeout=config.timeout)))
            refuse_open(client.scheduler.address, config, path)
            if config.class_ is None and isinstance(config.security, Tls):
                check_scheduler_name(client, target["address"], config.security, path)
            client.wait_for_workers(config.wait_for_workers, timeout=config.timeout)
        except (TimeoutError, OSError) as error:
            raise AmmrankError(f"the cluster did not come up within {config.timeout:g} s: {error}") from None
        hush_cancelled_waits()
        if config.class_ is not None:  # a cluster that is not ours keeps its signals, log levels and umask
            client.register_plugin(LeaveInterrupts())
            if is_local:
                client.register_plugin(NameOrigins())
            hush_failed_tasks()  # of workers that are threads of this process
            hush_cut_pages()
            for_group = site is not None and is_folder(site) and is_of_group(site)
            stack.enter_context(private_workers(client, for_group=for_group))
        if site is not None and is_folder(site):
            stack.enter_context(checked_workers(client, site, timeout=config.timeout))
        link = page_address(client) if watch_cluster(client) else client.dashboard_link
        if is_local:  # after our page is there, which is an application of its own
            client.run_on_scheduler(name_origins)
        if not quiet:
            click.echo(f"dashboard {_name_host(link, dashboard_address)}", err=True)
        try:
            yield client
        except Exception as error:
            if is_scheduler_gone(client) and not isinstance(error, AmmrankError):
                raise AmmrankError("the scheduler is gone; run the command again to go on") from error
            raise


@contextlib.contextmanager
def closed_in_time(opened: Any) -> Iterator[Any]:
    """Close a cluster or a client at the end of the block, and do not wait for ever: its workers may not answer."""
    try:
        yield opened.__enter__()
    finally:
        closing = threading.Thread(target=opened.__exit__, args=(None, None, None), daemon=True)
        closing.start()
        closing.join(seconds_left(SECONDS_TO_CLOSE))
        if closing.is_alive() and not is_signalled():
            logger.warning("the cluster has not closed within %g s; look if its workers are gone", SECONDS_TO_CLOSE)


def _name_host(link: str, address: str | None) -> str:
    """Return the link to a page with the host it listens at, which Dask does not name where workers are threads.

    Examples
    --------
    >>> _name_host("http://10.0.0.7:8787/status", "127.0.0.1:0")
    'http://127.0.0.1:8787/status'
    >>> _name_host("http://10.0.0.7:8787/status", "0.0.0.0:8787")
    'http://10.0.0.7:8787/status'
    """
    host = "" if address is None else str(address).rpartition(":")[0]
    return link.replace(f"//{urlsplit(link).hostname}:", f"//{host}:") if host in LOCAL_HOSTS else link


def _hush_distributed() -> None:
    """Keep the cluster's chatter about starting and stopping workers off the terminal; errors stay.

    `distributed` sets the levels of its loggers when it is imported, so it is done here and not earlier.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.ERROR)


def _cluster_class(name: str, path: Path) -> Any:
    """Return the class of that name if it is a cluster's; nothing else of a cluster file is ever called."""
    class_ = _import_name(name)
    if class_ is None:
        raise BadInput(f"there is no cluster class {name}; install its package or correct cluster.yaml")
    bases = class_.__mro__ if isinstance(class_, type) else ()
    is_cluster = Cluster in bases or any(f"{base.__module__}.{base.__qualname__}" == _GATEWAY for base in bases)
    # The two bases take the names of what they start from their arguments.
    if not is_cluster or class_ in (Cluster, SpecCluster):
        raise BadInput(
            f"{path}: class must name a cluster class of Dask, as distributed.LocalCluster, got {name}; correct it"
        )
    return class_


def _import_name(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError):
        return None


def _start_own(
    stack: contextlib.ExitStack, config: ClusterConfig, security: Security | None, path: Path
) -> tuple[Any, str | None]:
    """Start a cluster until the stack is closed; return how to reach it, and where its dashboard was asked for."""
    class_ = _cluster_class(str(config.class_), path)
    kwargs = _close_to_others(class_, config, path)
    dashboard_address = None
    if kwargs.get("dashboard_address") is not None:
        dashboard_address = kwargs["dashboard_address"] = _free_address(kwargs["dashboard_address"])
    if security is not None:
        kwargs["security"] = security
    stack.enter_context(private_scratch(class_, kwargs, path))
    cluster = stack.enter_context(closed_in_time(_start_cluster(class_, kwargs, path)))
    _size(cluster, config, path)
    return _reach(cluster, config, path), dashboard_address


def _start_cluster(class_: Any, kwargs: dict[str, Any], path: Path) -> Any:
    try:
        return start_apart(lambda: class_(**kwargs))
    except (TypeError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise BadInput(f"{path}: the cluster did not start ({cause}); check its kwargs") from None


def _size(cluster: Any, config: ClusterConfig, path: Path) -> None:
    """Ask the cluster for the workers that its file wants."""
    if config.adapt is not None:
        known = list(inspect.signature(cluster.adapt).parameters.values())
        # What `adapt` does not know itself it hands on, down to calls whose errors are never seen.
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
            known += inspect.signature(Adaptive).parameters.values()
        hidden = ("Adaptive", "cluster", "worker_key")
        names = {
            found.name: None for found in known if found.kind is not found.VAR_KEYWORD and found.name not in hidden
        }
        strange = [name for name in config.adapt if name not in names]
        if strange:
            raise BadInput(f"{path}: there is no key adapt.{strange[0]}; known keys are {', '.join(names)}")
    try:
        if config.scale is not None:
            cluster.scale(config.scale)
        if config.adapt is not None:
            cluster.adapt(**config.adapt)
    except (TypeError, ValueError, KeyError, NotImplementedError) as error:
        raise BadInput(f"{path}: the cluster cannot be sized ({error}); check scale and adapt") from None


def _reach(cluster: Any, config: ClusterConfig, path: Path) -> dict[str, Any]:
    """Return how to reach the scheduler of a cluster: one in this process through memory, as well as by its address.

    Two thirds of the messages of a night are between the command and the scheduler, and need no encryption then.
    """
    scheduler = getattr(cluster, "scheduler", None)
    if not isinstance(scheduler, Scheduler) or scheduler.address.startswith(MEMORY):
        return {"address": cluster}
    refuse_open(scheduler.address, config, path)
    cluster.sync(scheduler.listen, MEMORY)
    address = scheduler.listeners[-1].contact_address
    return {"address": address, "cluster": cluster, "loop": cluster.loop, "security": cluster.security}


def _wait_for_address(file: Path, path: Path, *, timeout: float) -> str:
    """Return the address in a scheduler's file once it is written; a client of Dask would wait for ever."""
    end = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(file.read_text(encoding="utf-8"))["address"])
        if time.monotonic() > end:
            found = "a file without an address" if file.is_file() else "no file"
            raise AmmrankError(
                f"{path}: the scheduler must write its address to scheduler_file {file}, found {found} within"
                f" {timeout:g} s; start the scheduler or correct the path"
            )
        time.sleep(0.05)


def _join(address: str, security: Security | None, config: ClusterConfig) -> dict[str, Any]:
    """Return how to reach a scheduler that runs, and warn of one that every account of this machine can use."""
    if is_open_to_accounts(address, config):
        logger.warning(
            "the scheduler at %s has no TLS: every account of its machine can run tasks on it as you; start it with"
            " certificates, or write `network: trusted` into the cluster file",
            address,
        )
    return {"address": address, "security": security}


def _connect(target: dict[str, Any], path: Path, *, timeout: float) -> Client:
    cluster = target.pop("cluster", None)
    try:
        if isinstance(target["address"], str) and not target["address"].startswith(MEMORY):
            check_dask(target["address"], target["security"], timeout=timeout)
        client = Client(timeout=timeout, set_as_default=False, **target)
        client.cluster = client.cluster or cluster  # who asks for its limits finds it, whichever way it was reached
        if client.scheduler_comm is not None:  # it is None while the client connects again
            client.scheduler_comm.interval = _SECONDS_BETWEEN_MESSAGES
        return client
    except BadInput:
        raise
    except CommClosedError as error:
        cause = error.__cause__
        # Who refuses the other's certificate says so by an alert, which is no fatal error to Dask.
        if not isinstance(error, FatalCommClosedError) and not isinstance(cause, ssl.SSLError):
            raise
        reason = getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or "they do not match"
        raise BadInput(
            f"{path}: the scheduler and this command do not accept each other's TLS certificates ({reason}); both must"
            " be valid now and signed by `security.ca_file`"
        ) from None
    except ValueError as error:
        raise BadInput(f"{path}: the scheduler cannot be reached ({error}); correct its address") from None


def _close_to_others(class_: Any, config: ClusterConfig, path: Path) -> dict[str, Any]:
    """Return the arguments of the cluster. A local cluster serves this command only, unless the file says otherwise."""
    kwargs = dict(config.kwargs)
    given = kwargs.get("worker_class")
    worker = _import_name(given) if isinstance(given, str) else Nanny
    if not (isinstance(worker, type) and issubclass(worker, Worker | Nanny)):
        raise BadInput(f"{path}: kwargs.worker_class must name a worker class of Dask, got {given}; correct it")
    if class_ is not LocalCluster:
        return kwargs
    protocol = kwargs.get("protocol") or str(kwargs.get("host") or "").rpartition("://")[0]
    # Workers that are threads of this process talk through memory and take no host, but their pages need an address.
    is_network = bool(kwargs.get("processes", True) or protocol or config.security in ("temporary", "none"))
    if is_network and config.security is None and kwargs.get("security") is None:
        if protocol and not f"{protocol}://".startswith(ENCRYPTED):
            raise BadInput(
                f"{path}: protocol {protocol} is not encrypted, and every account of this machine could run tasks as"
                " you; remove it, or write `security: none`"
            )
        kwargs["security"] = temporary_security()
    host = {"host": "127.0.0.1"} if is_network else {"worker_dashboard_address": "127.0.0.1:0"}
    closed = {**host, "dashboard_address": "127.0.0.1:8787", **kwargs}
    # Dask takes no address for port 8787 of all interfaces.
    return {**closed, "dashboard_address": closed["dashboard_address"] or "127.0.0.1:0"}


def _security(given: Tls | Literal["temporary", "none"] | None) -> Security | None:
    if given is None or given == "none":
        return None
    return secured(given.ca_file, given.cert, given.key) if isinstance(given, Tls) else temporary_security()


def _free_address(address: str) -> str:
    """Return the address, with another port when its own is taken."""
    host, _, port = str(address).rpartition(":")
    if not port.isdigit():
        raise BadInput(f"dashboard_address must be HOST:PORT, got {address!r}")
    with socket.socket() as probe:
        # As the server of the page does: what is left of the connections of the last run does not take the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "127.0.0.1", int(port)))
        except OSError:
            return f"{host}:0"
    return address
