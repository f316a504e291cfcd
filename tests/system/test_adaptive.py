"""Workers come and go: an adaptive cluster of one to four, one of which is killed again and again; the same bytes."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from certificates import write_certificates
from hosts import switched_hosts
from nights import config_of, copy_world, day
from plug import ammrank, children_of, kill_quietly

from ammrank_dask.workflows.session.config import write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.timeout(900)

SECONDS_BETWEEN_KILLS = {"one_host": 3, "two_hosts": 5}
"""Short enough for two kills while these nights last, which on two hosts start their workers more slowly."""
NIGHTS = (5, 7)
"""The first and the last night; every other one trains."""
ADAPT = """
adapt: {minimum: 1, maximum: 4, interval: "200ms", target_duration: "50ms"}
dask: {distributed.deploy.lost-worker-timeout: 2s, distributed.scheduler.allowed-failures: 100}
"""
ONE_HOST = """
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 1, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}
"""
TWO_HOSTS = """
version: 1
class: hosts.HostCluster
security: {{ca_file: {0.ca}, cert: {0.cert}, key: {0.key}}}
"""


@contextlib.contextmanager
def two_hosts(folder):
    with switched_hosts():
        yield TWO_HOSTS.format(write_certificates(folder / "certificates"))


@contextlib.contextmanager
def one_host(folder):
    yield ONE_HOST


def workers_of(pid):
    """Return the processes of workers, those of a nanny or those on other hosts, the oldest first."""
    workers = []
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8", errors="replace")
            if "spawn_main" in words or "dask_worker" in words:
                started = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
                workers.append((int(started), child))
    return [worker for _, worker in sorted(workers)]


@pytest.fixture(scope="module")
def expected(client, published_world, tmp_path_factory):
    """What the last night is when nobody is killed."""
    site = copy_world(published_world, tmp_path_factory.mktemp("quiet"))
    for number in range(NIGHTS[0] + 1, NIGHTS[1] + 1):
        nightly(Night(client, site, config_of(), day(number)))
    return site.digest()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(one_host, id="one host", marks=pytest.mark.system),
        pytest.param(two_hosts, id="two hosts", marks=pytest.mark.long),
    ],
)
def test_nightly__adaptive_workers_that_are_killed_again_and_again(small_world, expected, tmp_path, start):
    site = copy_world(small_world, tmp_path)
    site.config_path.write_text(write_config(config_of()), encoding="utf-8")
    options = ("--cluster", tmp_path / "cluster.yaml", "--quiet")
    command = ammrank("nightly", site.path, "--from", day(NIGHTS[0]), "--to", day(NIGHTS[1]), *options)
    support = str(Path(__file__).parents[1] / "support")
    n_killed, n_workers = 0, 0
    with start(tmp_path) as cluster:
        (tmp_path / "cluster.yaml").write_text(cluster + ADAPT)
        environment = {**os.environ, "PYTHONPATH": support}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as night:
            while night.poll() is None and not (site.run_folder(day(NIGHTS[0])) / "log.jsonl").is_file():
                time.sleep(0.1)
            next_kill = time.monotonic() + 1
            while night.poll() is None:
                time.sleep(0.2)
                workers = workers_of(night.pid)
                n_workers = max(n_workers, len(workers))
                if len(workers) > 1 and time.monotonic() >= next_kill:
                    kill_quietly(workers[0])  # one that is at work, not one that begins
                    n_killed += 1
                    next_kill = time.monotonic() + SECONDS_BETWEEN_KILLS[start.__name__]
            message = night.stderr.read()
    assert night.returncode == 0, message
    assert n_killed >= 2
    assert n_workers >= 2
    assert site.digest() == expected
