"""What needs root: a disk that runs full. Run by `make test-system`."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from distributed import Client, LocalCluster

from ammrank_dask.simulation import simulate
from workflows.config import check_config, write_config

pytestmark = pytest.mark.system

CLUSTER = """\
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 2, threads_per_worker: 1, host: 127.0.0.1, dashboard_address: "127.0.0.1:0"}
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that `resize` makes larger or smaller."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=True)

    def resize(kib):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", str(place)], check=True)

    yield place, resize
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "lake"
    with LocalCluster(1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        simulate(client, folder, truth=folder.with_name("truth"), users=2_000, days=8, seed=7)
    return folder


def ammrank(*arguments):
    command = [sys.executable, "-m", "workflows.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": "/tmp"})


def used_kib(place):
    return shutil.disk_usage(place).used // 1024


def test_features__a_full_disk_loses_nothing_and_the_rerun_goes_on(lake, small_disk):
    place, resize = small_disk
    site = place / "site"
    site.mkdir()
    names = {"events": "events", "users": "users.parquet", "taxonomy": "taxonomy.csv"}
    config = {
        "lake": {key: str(lake / name) for key, name in names.items()},
        "label": {"days": 3, "min_categories": 1},
        "partitions": 4,
    }
    (site / "ammrank.yaml").write_text(write_config(check_config(config, "test")))
    (site / "cluster.yaml").write_text(CLUSTER)
    first = ammrank("features", site, "--date", "2026-01-11")
    assert first.returncode == 0, first.stderr
    before = json.loads(ammrank("verify", site, "--digest", "--json").stdout)["digest"]
    full = used_kib(place)
    messages = set()
    for room in (8, 120, 400, 900):  # KiB left: full in the exchange, the partials, the state, the features
        resize(full + room)
        done = ammrank("features", site, "--date", "2026-01-12")
        if done.returncode == 0:
            break
        assert done.returncode == 1, done.stderr
        last = done.stderr.strip().splitlines()[-1]
        messages.add(last)
        assert last.startswith("ammrank: No space left on device"), done.stderr
        assert "what was published before is untouched" in last
        verified = ammrank("verify", site, "--digest", "--json")
        assert json.loads(verified.stdout)["digest"] == before
    assert messages
    resize(65_536)
    assert ammrank("features", site, "--date", "2026-01-12").returncode == 0
    quiet = lake.parent / "quiet"
    shutil.copytree(
        site, quiet, ignore=lambda folder, found: [n for n in found if n not in ("ammrank.yaml", "cluster.yaml")]
    )
    for night in ("2026-01-11", "2026-01-12"):
        assert ammrank("features", quiet, "--date", night).returncode == 0
    digests = [json.loads(ammrank("verify", s, "--digest", "--json").stdout)["digest"] for s in (site, quiet)]
    assert digests[0] == digests[1]
