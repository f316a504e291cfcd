"""Pull the plug on the real command: the published night stays, and the rerun ends with the bytes of a quiet run."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster

from ammrank_dask.simulation import simulate
from storage.runs import verify_run
from storage.site import Site
from workflows.config import check_config, write_config

N_DAYS = 8
CONFIG = {
    "lake": {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"},
    "label": {"days": 3, "min_categories": 1},
    "partitions": 4,
}
CLUSTER = """\
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 2, threads_per_worker: 1, host: 127.0.0.1, dashboard_address: "127.0.0.1:0"}
"""
NIGHTS = ("2026-01-11", "2026-01-12")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "lake"
    with LocalCluster(1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        simulate(client, folder, truth=folder.with_name("truth"), users=2_000, days=N_DAYS, seed=7)
    return folder


def new_site(lake, name):
    site = lake.parent / name
    site.mkdir()
    (site / "ammrank.yaml").write_text(write_config(check_config(CONFIG, "test")))
    (site / "cluster.yaml").write_text(CLUSTER)
    return site


def ammrank(*arguments):
    return [sys.executable, "-m", "workflows.cli", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(ammrank(*arguments), capture_output=True, text=True, check=False)


def digest(site):
    """Check every byte of the published runs and return one hash over them."""
    place = Site(site)
    for name in place.current().runs.values():
        assert verify_run(site / name) > 0
    return place.digest()


@pytest.fixture(scope="module")
def undisturbed(lake):
    site = new_site(lake, "undisturbed")
    digests = []
    for night in NIGHTS:
        done = run("features", site, "--date", night)
        assert done.returncode == 0, done.stderr
        digests.append(digest(site))
    return digests


def children_of(pid):
    """Return the processes that a process started, and theirs."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid:
                found += [int(entry), *children_of(int(entry))]
    return found


def kill_quietly(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_features__killed_again_and_again_end_with_the_same_bytes(lake, undisturbed, victim):
    site = new_site(lake, f"killed-{victim}")
    assert run("features", site, "--date", NIGHTS[0]).returncode == 0
    chance = random.Random(11)
    n_kills = 0
    for _ in range(3):
        with subprocess.Popen(
            ammrank("features", site, "--date", NIGHTS[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(chance.uniform(1.5, 4.5))
            children = children_of(process.pid)
            if process.poll() is None:
                n_kills += 1
                for pid in [process.pid, *children] if victim == "driver" else children[-1:]:
                    kill_quietly(pid)
            process.wait(timeout=120)
        published = json.loads((site / "CURRENT").read_text())["date"]
        assert published in NIGHTS
        assert digest(site) == undisturbed[NIGHTS.index(published)]
    assert n_kills
    done = run("features", site, "--date", NIGHTS[1])
    assert done.returncode == 0, done.stderr
    assert digest(site) == undisturbed[1]


def test_ingest__sigterm_ends_cleanly_with_143(lake, undisturbed):
    site = new_site(lake, "terminated")
    with subprocess.Popen(
        ammrank("features", site, "--date", NIGHTS[1]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        # The address of the dashboard is printed before the first task: from here on the command is at work.
        while not process.stderr.readline().startswith("dashboard"):
            assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 143
    assert run("features", site, "--date", NIGHTS[1]).returncode == 0
    assert digest(site) == undisturbed[1]
