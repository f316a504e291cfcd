"""A night on a file system that fails one in 200 calls with EIO or ESTALE ends with the bytes of a quiet one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from nights import config_of, copy_world, day
from plug import ammrank

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

CLUSTER = """
version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 2, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    """The library that lets calls fail."""
    source = Path(__file__).parents[1] / "support" / "failing_files.c"
    library = tmp_path_factory.mktemp("failing") / "failing_files.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture
def world(small_world, tmp_path):
    site = copy_world(small_world, tmp_path)
    site.config_path.write_text(write_config(config_of()), encoding="utf-8")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return site


def run_night(site, cluster, **environment):
    command = ammrank("nightly", site.path, "--date", day(5), "--cluster", cluster, "--quiet")
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def failing(preload, below, seed):
    return {
        "LD_PRELOAD": str(preload),
        "AMMRANK_FAIL_BELOW": f"{below}/",
        "AMMRANK_FAIL_SEED": str(seed),
        "AMMRANK_FAIL_ONE_IN": "200",
        "AMMRANK_FAIL_COUNT": f"{below}-failures",
    }


def test_nightly__one_in_200_calls_fails_and_the_bytes_are_the_same(preload, world, published_world, tmp_path):
    expected = Site(published_world.path).digest()
    for seed in (1, 2):
        site = copy_world(world, tmp_path / f"seed-{seed}")
        below = site.path.parent
        done = run_night(site, tmp_path / "cluster.yaml", **failing(preload, below, seed))
        assert done.returncode == 0, done.stderr
        n_failures = Path(f"{below}-failures").stat().st_size
        assert n_failures > 20
        assert Site(site.path).digest() == expected
        verified = subprocess.run(ammrank("verify", site.path), capture_output=True, text=True, check=False)
        assert verified.returncode == 0, verified.stderr


def test_nightly__bad_input_on_such_a_day_fails_at_once(preload, world, tmp_path):
    shutil.rmtree(world.path.parent / "lake" / "events" / f"date={day(4)}")
    done = run_night(world, tmp_path / "cluster.yaml", **failing(preload, world.path.parent, 3))
    assert done.returncode == 65, done.stderr
    assert str(day(4)) in done.stderr
    # Errors that pass may have let the night go on; the bad input ended it the first time it was met.
    log = (world.path / "runs" / f"date={day(5)}" / "log.jsonl").read_text()
    assert log.count("the lake has no events for") == 1
