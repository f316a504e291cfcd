"""A disk that runs full while qualifications are written. It needs root, and is run by `make test-system`."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from distributed import Client, LocalCluster

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = pytest.mark.system

CLUSTER = """\
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 2, threads_per_worker: 1, host: 127.0.0.1, dashboard_address: "127.0.0.1:0"}
"""
FIRST, SECOND = "2026-01-10", "2026-01-11"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that `resize` makes larger or smaller."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(place)], check=True)

    def resize(kib):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", str(place)], check=True)

    yield place, resize
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "lake"
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        simulate(folder, client=client, truth=folder.with_name("truth"), users=2_000, days=8, seed=7)
    return folder


def ammrank(*arguments):
    command = [sys.executable, "-m", "ammrank_dask.workflows.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": "/tmp"})


def digest_of(site):
    return json.loads(ammrank("verify", site, "--digest", "--json").stdout)["digest"]


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_score__a_full_disk_loses_nothing_and_the_rerun_goes_on(lake, small_disk, tmp_path):
    place, resize = small_disk
    site = place / "site"
    site.mkdir()
    names = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    config = {
        "lake": {key: str(lake / name) for key, name in names.items()},
        "label": {"days": 3, "min_categories": 1},
        "features": {"min_days": 1},
        "train": {"epochs": 1, "every_nights": 30},
        "partitions": 4,
    }
    (site / "ammrank.yaml").write_text(write_config(check_config(config, "test")))
    (site / "cluster.yaml").write_text(CLUSTER)
    first = ammrank("nightly", site, "--date", FIRST)
    assert first.returncode == 0, first.stderr
    # What the second night reads is there; only its qualifications are missing.
    done = ammrank("score", site, "--date", SECOND)
    assert done.returncode == 0, done.stderr
    scored = site / "qualifications" / f"date={SECOND}"
    expected = files_of(scored)
    size = sum(len(data) for data in expected.values()) // 1024
    shutil.rmtree(scored)
    published = digest_of(site)
    used = shutil.disk_usage(place).used // 1024
    messages = []
    for share in (0.1, 0.5, 1.0):  # of the room that is needed: full in the first files, in the middle, in the scratch
        resize(used + int(share * size))
        done = ammrank("score", site, "--date", SECOND)
        if done.returncode == 0:
            break
        assert done.returncode == 1, done.stderr
        messages.append(done.stderr.strip().splitlines()[-1])
        assert "No space left on device" in messages[-1], done.stderr
        assert not scored.exists()
        assert digest_of(site) == published
    assert messages
    resize(98_304)
    done = ammrank("score", site, "--date", SECOND)
    assert done.returncode == 0, done.stderr
    assert files_of(scored) == expected
