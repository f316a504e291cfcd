"""Scheduler and two workers on hosts of their own (network namespaces), with TLS; one host is cut off in mid-night."""

import contextlib
import os
import shutil
import subprocess
import time

import pytest
from certificates import write_certificates
from distributed import Client, LocalCluster
from hosts import ADDRESSES, ip, on_host, switched_hosts
from plug import ammrank, check_published, stage_of

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.workflows.cluster.open import open_cluster
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

CONFIG = {
    "lake": {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"},
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 3, "shards": 2, "every_nights": 1},
    "gate": {"min_users": 1},
    "partitions": 4,
}
FIRST, SECOND = "2026-01-11", "2026-01-12"
# A host that is cut off is noticed in seconds, not minutes.
IMPATIENT = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "30s", "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "15s"}


class Hosts:
    """A scheduler and two workers on hosts of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.certificates = write_certificates(folder / "certificates", hosts=[ADDRESSES["scheduler"]])
        self.processes = {}

    def __enter__(self):
        self.switch = contextlib.ExitStack()
        self.switch.enter_context(switched_hosts())
        self.start("scheduler", "dask_scheduler", "--port", 8786, "--dashboard-address", "127.0.0.1:0")
        for host in ("one", "two"):
            self.start_worker(host)
        return self

    def __exit__(self, *_):
        for host in list(self.processes):
            self.stop(host)
        self.switch.close()

    @property
    def address(self):
        return f"tls://{ADDRESSES['scheduler']}:8786"

    def start(self, host, module, *arguments):
        paths = self.certificates
        tls = ("--tls-ca-file", paths.ca, "--tls-cert", paths.cert, "--tls-key", paths.key, "--protocol", "tls")
        with open(self.folder / f"{host}.log", "ab") as log:
            self.processes[host] = subprocess.Popen(
                on_host(host, f"distributed.cli.{module}", *arguments, "--host", ADDRESSES[host], *tls),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **IMPATIENT},
            )

    def start_worker(self, host):
        self.start(host, "dask_worker", self.address, "--nthreads", 1, "--no-nanny", "--no-dashboard")

    def stop(self, host):
        process = self.processes.pop(host)
        process.kill()
        process.wait(timeout=60)

    def cut_off(self, host):
        """Pull the network cable of a host; its processes do not notice at once."""
        ip("link", "set", f"amm-{host}", "down")

    def connect(self, host):
        """Put the cable back, and start the worker anew, as its service manager would."""
        ip("link", "set", f"amm-{host}", "up")
        self.stop(host)
        self.start_worker(host)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with Hosts(tmp_path_factory.mktemp("hosts")) as started:
        yield started


def cluster_file(address, paths, timeout=120):
    security = f"security: {{ca_file: {paths.ca}, cert: {paths.cert}, key: {paths.key}}}\n" if paths else ""
    wait = "wait_for_workers: 2\n"
    return f"version: 1\naddress: {address}\n{security}{wait}timeout: {timeout}\n"


def run_night(site, date):
    done = subprocess.run(ammrank("nightly", site, "--date", date), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def quiet(hosts, tmp_path_factory):
    """A site with one published night, and what the next one is when nothing disturbs it."""
    world = tmp_path_factory.mktemp("world")
    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local, Client(local) as client:
        simulate(world / "lake", client=client, truth=world / "truth", users=2_000, days=8, seed=7)
    begun = world / "begun"
    begun.mkdir()
    (begun / "ammrank.yaml").write_text(write_config(check_config(CONFIG, "test")))
    (begun / "cluster.yaml").write_text(cluster_file(hosts.address, hosts.certificates))
    run_night(begun, FIRST)
    shutil.copytree(begun, world / "quiet")
    run_night(world / "quiet", SECOND)
    return begun, check_published(world / "quiet")


@pytest.mark.parametrize("stage", ["train", "score"])
def test_nightly__a_host_is_cut_off(hosts, quiet, stage):
    begun, expected = quiet
    site = begun.with_name(f"cut-{stage}")
    shutil.copytree(begun, site)
    log = site / "runs" / f"date={SECOND}" / "log.jsonl"
    command = ammrank("nightly", site, "--date", SECOND, "--quiet")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        while driver.poll() is None and stage_of(log, 0) != stage:
            time.sleep(0.01)
        assert driver.poll() is None
        hosts.cut_off("one")
        message = driver.communicate(timeout=900)[1]
    hosts.connect("one")
    assert driver.returncode == 0, message
    assert check_published(site) == expected


def test_open_cluster__strangers_are_refused(hosts, tmp_path):
    strange = write_certificates(tmp_path / "strange")
    path = tmp_path / "cluster.yaml"
    for address, paths in (
        (hosts.address, strange),
        (hosts.address, None),
        (hosts.address.replace("tls", "tcp"), None),
        (hosts.address.replace("tls", "tcp"), hosts.certificates),
    ):
        path.write_text(cluster_file(address, paths, timeout=4))
        with pytest.raises(AmmrankError), open_cluster(str(path), None, quiet=True):
            pass
    with pytest.raises(OSError, match=r"reset by peer|[Tt]imed out|closed"):
        Client(hosts.address.replace("tls", "tcp"), timeout=4)
