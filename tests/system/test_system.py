"""What needs root: a disk that runs full in each stage. Run by `make test-system`."""

import contextlib
import os
import shutil
import subprocess
import time

import pytest
from distributed import Client, LocalCluster
from plug import STAGES, OutsideCluster, ammrank, check_published, stage_of

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

CONFIG = {
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 2, "shards": 2, "every_nights": 1},
    "gate": {"min_users": 1},
    "partitions": 2,
}
FIRST, SECOND = "2026-01-11", "2026-01-12"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, so small that it can be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with OutsideCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "lake"
    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local, Client(local) as client:
        simulate(folder, client=client, truth=folder.with_name("truth"), users=1_000, days=8, seed=7)
    return folder


def begin_site(site, lake, cluster):
    """Make a site and publish its first night."""
    names = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    config = {**CONFIG, "lake": {key: str(lake / name) for key, name in names.items()}}
    site.mkdir()
    (site / "ammrank.yaml").write_text(write_config(check_config(config, "test")))
    (site / "cluster.yaml").write_text(f"version: 1\nscheduler_file: {cluster.file}\nwait_for_workers: 2\n")
    run_night(site, FIRST)
    return check_published(site)


def run_night(site, date):
    done = subprocess.run(ammrank("nightly", site, "--date", date), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def fill(disk, name="filler", leave=0):
    """Take all the space but what is to be left; return what to remove afterwards."""
    state = os.statvfs(disk)
    filler = disk / name
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range((state.f_bavail * state.f_frsize - leave) >> 20):
            file.write(bytes(1 << 20))
        while not leave:
            file.write(bytes(1 << 12))
    return filler


def has_reached(log, offset, stage):
    found = stage_of(log, offset)
    return found is not None and STAGES.index(found) >= STAGES.index(stage)


def test_nightly__a_full_disk_in_each_stage_loses_nothing(lake, cluster, small_disk):
    site = small_disk / "site"
    before = begin_site(site, lake, cluster)
    log = site / "runs" / f"date={SECOND}" / "log.jsonl"
    messages = []
    for stage in STAGES:
        offset = log.stat().st_size if log.is_file() else 0
        command = ammrank("nightly", site, "--date", SECOND, "--quiet")
        ballast = fill(small_disk, "ballast", leave=32 << 20)  # the rest is taken while a stage has hardly begun
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
            while driver.poll() is None and not has_reached(log, offset, stage):
                time.sleep(0.01)
            filler = fill(small_disk)
            message = driver.communicate(timeout=600)[1].strip()
        filler.unlink()
        ballast.unlink()
        published = check_published(site)
        if driver.returncode == 0:  # a stage that is done before the disk is full
            assert stage in STAGES[-2:]
            break
        assert driver.returncode == 1, message
        messages.append(message.splitlines()[-1])
        if published != before:  # full after ROOT moved: the night is there, only its record could not be written
            assert stage in STAGES[-2:]
            assert published[0] == SECOND
            break
    assert len(messages) >= 4
    assert all("No space left on device" in message for message in messages), messages
    assert all("what is published is whole, run the command again" in message for message in messages)
    run_night(site, SECOND)
    undisturbed = lake.with_name("undisturbed")
    begin_site(undisturbed, lake, cluster)
    run_night(undisturbed, SECOND)
    assert check_published(site) == check_published(undisturbed)
    assert subprocess.run(ammrank("verify", site), capture_output=True, check=False).returncode == 0
    shutil.rmtree(undisturbed)
