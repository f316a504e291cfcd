"""Who may talk to the embedded cluster, which classes a cluster file may name, and which port the dashboard gets."""

import datetime as dt
import logging
import os
import pwd
import socket
import sys
from pathlib import Path

import pytest
from certificates import write_certificates
from cryptography import x509
from distributed import Client, Security
from lakes import lose_link, replace_by

from ammrank_dask.runtime.task_workers import _most_workers
from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.workflows.cluster.checks import MOST_SKEW
from ammrank_dask.workflows.cluster.cluster_file import (
    BUILT_IN,
    ClusterConfig,
    Tls,
    check_certificates,
    find_cluster_file,
    is_built_in,
    is_open_to_accounts,
    load_cluster,
    refuse_open,
    temporary_security,
)
from ammrank_dask.workflows.cluster.open import _cluster_class, _free_address, _security, open_cluster


def write_cluster(folder, *lines):
    path = folder / "cluster.yaml"
    path.write_text("\n".join(["version: 1", *lines]) + "\n")
    return str(path)


def local_cluster(folder, kwargs, *lines):
    common = "n_workers: 1, threads_per_worker: 1, dashboard_address: '127.0.0.1:0'"
    return write_cluster(folder, "class: distributed.LocalCluster", f"kwargs: {{{common}, {kwargs}}}", *lines)


@pytest.mark.parametrize("name", [None, "copy.yaml"])
def test_is_built_in__also_a_copy_of_its_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name is not None:
        (tmp_path / name).write_bytes(BUILT_IN.read_bytes())
    assert is_built_in(name, None)


def test_is_built_in__not_another_cluster_that_the_site_has(tmp_path):
    local_cluster(tmp_path, "processes: false, protocol: tls")
    assert not is_built_in(None, tmp_path)


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
        assert client.scheduler.address.startswith("inproc://")
        address = client.cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        with pytest.raises(OSError, match=r"Timed out trying to connect|TCP \(closed\)"):
            Client(address.replace("tls", "tcp"), timeout=1, set_as_default=False)
        for stranger in (Security.temporary(), temporary_security()):  # another name, and the same with another key
            with pytest.raises(OSError, match="TLS certificate does not match"):
                Client(address, security=stranger, timeout=60, set_as_default=False)


def test_temporary_security__a_key_of_its_own_on_a_curve_and_clocks_may_differ():
    one, other = temporary_security(), temporary_security()
    assert one.tls_worker_key != other.tls_worker_key
    assert one.require_encryption
    certificate = x509.load_pem_x509_certificate(one.tls_scheduler_cert.encode())
    assert certificate.public_key().curve.name == "secp256r1"
    now = dt.datetime.now(dt.UTC)
    assert now - certificate.not_valid_before_utc > dt.timedelta(seconds=MOST_SKEW)
    assert certificate.not_valid_after_utc - now > dt.timedelta(days=300)


def test_open_cluster__threads_talk_through_memory(tmp_path):
    with open_cluster(local_cluster(tmp_path, "processes: false"), None, quiet=True) as client:
        assert client.cluster.scheduler_address.startswith("inproc://")


def test_open_cluster__limits_are_those_of_the_cluster_however_it_is_reached(tmp_path):
    lines = ("adapt: {minimum: 1, maximum: 5, interval: 1h}",)
    path = local_cluster(tmp_path, "processes: false, protocol: tls", *lines)
    with open_cluster(path, None, quiet=True) as client:
        assert client.scheduler.address.startswith("inproc://")
        assert _most_workers(client) == 5


def test_open_cluster__an_open_loopback_is_an_explicit_choice(tmp_path):
    threads = "processes: false, protocol: tcp"
    with open_cluster(local_cluster(tmp_path, threads, "security: none"), None, quiet=True) as client:
        assert client.cluster.scheduler_address.startswith("tcp://127.0.0.1:")
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


# The file of the current folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A cluster file in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\nclass: distributed.LocalCluster\n")
    path.chmod(0o644)
    return path


def test_find_cluster_file__the_current_folders_is_mine_or_roots(here):
    assert find_cluster_file(None, None) == here


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_find_cluster_file__everybody_may_write_it(here, mode):
    here.chmod(mode)
    with pytest.raises(BadInput, match=r"nobody but you may write .*cluster.yaml, found -rw-.*chmod go-w .*--cluster"):
        find_cluster_file(None, None)
    assert find_cluster_file(str(here), None) == here  # named by hand it is trusted
    here.chmod(0o600)
    assert find_cluster_file(None, None) == here


def test_find_cluster_file__the_group_may_write_it(here, monkeypatch):
    user = pwd.getpwuid(os.geteuid())
    here.chmod(0o664)
    os.chown(here, -1, user.pw_gid)
    if user.pw_name == "root":
        assert find_cluster_file(None, None) == here  # the private group of the user
    monkeypatch.setattr("ammrank_dask.workflows.cluster.cluster_file.is_private_group", lambda gid, uid: False)
    with pytest.raises(BadInput, match=r"nobody but you may write .*, found -rw-rw-r--"):
        find_cluster_file(None, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")
def test_find_cluster_file__another_account_owns_it_or_the_link_to_it(here, tmp_path):
    os.chown(here, 65534, -1)
    with pytest.raises(BadInput, match=r"cluster.yaml must belong to you or to root, found user id 65534; move it"):
        find_cluster_file(None, None)
    os.chown(here, 0, -1)
    here.rename(tmp_path / "mine.yaml")
    here.symlink_to(tmp_path / "mine.yaml")
    assert find_cluster_file(None, None) == here
    os.chown(here, 65534, -1, follow_symlinks=False)
    with pytest.raises(BadInput, match=r"must belong to you or to root, found user id 65534"):
        find_cluster_file(None, None)


@pytest.mark.parametrize("is_of_site", [True, False])
def test_find_cluster_file__a_pipe_or_a_link_that_leads_nowhere_is_no_reason_to_use_another(here, is_of_site):
    site = here.parent if is_of_site else None
    replace_by(here, "fifo")
    with pytest.raises(BadInput, match=f"{here} must be a regular file, found a named pipe; replace or remove it"):
        find_cluster_file(None, site)
    said = lose_link(here)
    with pytest.raises(BadInput) as raised:
        find_cluster_file(None, site)
    assert str(raised.value) == said


# A network that is protected by other means


def test_load_cluster__a_trusted_network_is_an_explicit_choice(tmp_path):
    remote = "address: tcp://10.0.0.7:8786"
    with pytest.raises(BadInput, match="is remote and has no `security`"):
        load_cluster(Path(write_cluster(tmp_path, remote)))
    trusted = load_cluster(Path(write_cluster(tmp_path, remote, "network: trusted")))
    refuse_open("tcp://10.0.0.7:8786", trusted, tmp_path)
    with pytest.raises(BadInput, match=r"remote and not encrypted; use TLS .* or write `network: trusted` if nobody"):
        refuse_open("tcp://10.0.0.7:8786", load_cluster(BUILT_IN), tmp_path)
    with pytest.raises(BadInput, match="network: Input should be 'trusted', got 'open'"):
        load_cluster(Path(write_cluster(tmp_path, remote, "network: open")))
    with pytest.raises(BadInput, match="speaks TLS and there is no `security`"):
        load_cluster(Path(write_cluster(tmp_path, "address: tls://10.0.0.7:8786", "network: trusted")))


@pytest.mark.parametrize(
    ("address", "choice", "is_open"),
    [
        ("tcp://127.0.0.1:8786", {}, True),
        ("localhost:8786", {}, True),
        ("tcp://127.0.0.1:8786", {"security": "none"}, False),
        ("tcp://127.0.0.1:8786", {"network": "trusted"}, False),
        ("tls://127.0.0.1:8786", {}, False),
        ("inproc://127.0.0.1/1/1", {}, False),
    ],
)
def test_is_open_to_accounts__by_hand(address, choice, is_open):
    assert is_open_to_accounts(address, ClusterConfig(version=1, address=address, **choice)) is is_open


def test_open_cluster__an_open_scheduler_of_ones_own_is_warned_of(tmp_path, caplog):
    address = "tcp://127.0.0.1:9"  # nobody listens there: the warning comes before the connection
    for lines, n_warnings in (((), 1), (("network: trusted",), 0)):
        caplog.clear()
        path = write_cluster(tmp_path, f"address: {address}", "timeout: 0.2", *lines)
        with caplog.at_level(logging.WARNING, "ammrank_dask"), pytest.raises(AmmrankError, match="did not come up"):
            open_cluster(path, None).__enter__()
        assert sum("every account of its machine can run tasks" in text for text in caplog.messages) == n_warnings


# Certificates


def tls_of(paths, **other):
    return Tls(**{"ca_file": str(paths.ca), "cert": str(paths.cert), "key": str(paths.key), **other})


def test_check_certificates__valid_ones_pass_and_others_are_told(tmp_path):
    one, two = (write_certificates(tmp_path / name) for name in ("one", "two"))
    file = tmp_path / "cluster.yaml"
    now = dt.datetime.now(dt.UTC)
    check_certificates(tls_of(one), file)
    with pytest.raises(BadInput, match=r"cluster.yaml: the certificate .*ca.pem \(security.ca_file\) expired on 20"):
        check_certificates(tls_of(one), file, now=now + dt.timedelta(days=31))
    with pytest.raises(BadInput, match=r"is valid from .* UTC on and it is .* UTC here; correct the clock of this"):
        check_certificates(tls_of(one), file, now=now - dt.timedelta(days=12))
    with pytest.raises(BadInput, match=r"security.key .* must be the key of security.cert .*\(KEY_VALUES_MISMATCH\)"):
        check_certificates(tls_of(one, key=str(two.key)), file)
    with pytest.raises(BadInput, match=r"cannot read security.cert .*none.pem: No such file or directory; correct"):
        check_certificates(tls_of(one, cert=str(tmp_path / "none.pem")), file)
    with pytest.raises(BadInput, match=r"security.cert .*key.pem must be a certificate in PEM form"):
        check_certificates(tls_of(one, cert=str(one.key)), file)


def test_open_cluster__expired_certificates_are_told_before_anybody_is_asked(tmp_path):
    paths = write_certificates(tmp_path / "expired", days=-1)
    security = f"security: {{ca_file: {paths.ca}, cert: {paths.cert}, key: {paths.key}}}"
    path = write_cluster(tmp_path, "address: tls://127.0.0.1:9", security)
    with pytest.raises(BadInput, match=r"ca.pem \(security.ca_file\) expired on \d{4}-"):
        open_cluster(path, None).__enter__()


def test_security__a_scheduler_of_the_command_shows_its_certificate(tmp_path):
    paths = write_certificates(tmp_path / "own")
    security = _security(tls_of(paths))
    for role in ("client", "scheduler", "worker"):
        files = security.get_tls_config_for_role(role)
        assert (files["ca_file"], files["cert"], files["key"]) == (str(paths.ca), str(paths.cert), str(paths.key))
