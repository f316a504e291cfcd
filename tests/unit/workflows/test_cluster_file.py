"""Who may talk to the embedded cluster, which classes a cluster file may name, and which port the dashboard gets."""

import socket
import sys
from pathlib import Path

import pytest
from distributed import Client, Security

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.workflows.cluster.cluster_file import BUILT_IN, load_cluster
from ammrank_dask.workflows.cluster.open import _cluster_class, _free_address, open_cluster


def write_cluster(folder, *lines):
    path = folder / "cluster.yaml"
    path.write_text("\n".join(["version: 1", *lines]) + "\n")
    return str(path)


def local_cluster(folder, kwargs, *lines):
    common = "n_workers: 1, threads_per_worker: 1, dashboard_address: '127.0.0.1:0'"
    return write_cluster(folder, "class: distributed.LocalCluster", f"kwargs: {{{common}, {kwargs}}}", *lines)


def test_load_cluster__the_built_in_cluster_has_certificates_of_its_own():
    assert load_cluster(BUILT_IN).security == "temporary"


@pytest.mark.parametrize(
    ("kwargs", "lines"),
    [("processes: true", ()), ("processes: true", ("security: temporary",)), ("processes: false, protocol: tls", ())],
    ids=["default", "temporary", "threads over the network"],
)
def test_open_cluster__the_embedded_scheduler_takes_its_own_client_only(tmp_path, kwargs, lines):
    with open_cluster(local_cluster(tmp_path, kwargs, *lines), None, quiet=True) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        with pytest.raises(OSError, match=r"Timed out trying to connect|TCP \(closed\)"):
            Client(address.replace("tls", "tcp"), timeout=1, set_as_default=False)
        with pytest.raises(OSError, match="TLS certificate does not match"):
            Client(address, security=Security.temporary(), timeout=60, set_as_default=False)


def test_open_cluster__threads_talk_through_memory(tmp_path):
    with open_cluster(local_cluster(tmp_path, "processes: false"), None, quiet=True) as client:
        assert client.scheduler.address.startswith("inproc://")


def test_open_cluster__an_open_loopback_is_an_explicit_choice(tmp_path):
    threads = "processes: false, protocol: tcp"
    with open_cluster(local_cluster(tmp_path, threads, "security: none"), None, quiet=True) as client:
        assert client.scheduler.address.startswith("tcp://127.0.0.1:")
    sentence = r"protocol tcp is not encrypted, and every account of this machine .*write `security: none`"
    with pytest.raises(BadInput, match=sentence):
        open_cluster(local_cluster(tmp_path, threads), None).__enter__()
    with pytest.raises(BadInput, match=r"protocol tcp is not encrypted"):
        open_cluster(local_cluster(tmp_path, "host: 'tcp://127.0.0.1'"), None).__enter__()


def test_load_cluster__a_remote_address_needs_certificates(tmp_path):
    path = write_cluster(tmp_path, "address: tls://10.0.0.7:8786", "security: none")
    with pytest.raises(BadInput, match=r"tls://10\.0\.0\.7:8786 is remote and has no `security`; name its TLS"):
        load_cluster(Path(path))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("subprocess.Popen", "{{args: [touch, {0}]}}"),
        ("os.system", "{{command: touch {0}}}"),
        ("distributed.Client", "{{}}"),
        ("distributed.SpecCluster", "{{scheduler: {{cls: subprocess.Popen, options: {{args: [touch, {0}]}}}}}}"),
        ("distributed.deploy.cluster.Cluster", "{{}}"),
    ],
)
def test_open_cluster__only_cluster_classes_are_called(tmp_path, name, kwargs):
    marker = tmp_path / "called"
    path = write_cluster(tmp_path, f"class: {name}", f"kwargs: {kwargs.format(marker)}")
    with pytest.raises(BadInput, match=f"class must name a cluster class of Dask, as .*, got {name}; correct it"):
        open_cluster(path, None).__enter__()
    assert not marker.exists()


def test_open_cluster__only_worker_classes_are_called(tmp_path):
    path = local_cluster(tmp_path, "worker_class: subprocess.Popen")
    with pytest.raises(BadInput, match=r"kwargs\.worker_class must name a worker class of Dask, got subprocess\.Popen"):
        open_cluster(path, None).__enter__()
    path = local_cluster(tmp_path, "processes: false, worker_class: distributed.Worker")
    with open_cluster(path, None, quiet=True) as client:
        assert client.submit(sum, [1, 2]).result() == 3


def test_cluster_class__that_of_a_gateway_derives_from_none(tmp_path, monkeypatch):
    (tmp_path / "dask_gateway").mkdir()
    (tmp_path / "dask_gateway" / "__init__.py").write_text("from .client import Gateway, GatewayCluster\n")
    (tmp_path / "dask_gateway" / "client.py").write_text("class Gateway: ...\nclass GatewayCluster: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert _cluster_class("dask_gateway.GatewayCluster", tmp_path).__name__ == "GatewayCluster"
        with pytest.raises(BadInput, match=r"must name a cluster class of Dask, .*, got dask_gateway\.Gateway;"):
            _cluster_class("dask_gateway.Gateway", tmp_path)
    finally:
        for name in ("dask_gateway", "dask_gateway.client"):
            sys.modules.pop(name, None)


def test_free_address__a_port_that_only_old_connections_hold_is_free():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        host, port = server.getsockname()
        with socket.create_connection((host, port)) as visitor:
            connection, _ = server.accept()
            connection.close()  # first, so that the waiting time is on this side
            assert visitor.recv(1) == b""
        assert _free_address(f"{host}:{port}") == f"{host}:0"  # somebody listens
    with socket.socket() as plain, pytest.raises(OSError, match="Address already in use"):
        plain.bind((host, port))
    assert _free_address(f"{host}:{port}") == f"{host}:{port}"
