"""Pull the plug on the real command: the published night stays, and the rerun ends with the bytes of a quiet run.

`AMMRANK_KILLS` of them, in every stage and of every kind of process.
"""

import json
import os
import random
import shutil
import subprocess

import pytest
from distributed import Client, LocalCluster
from plug import STAGES, VICTIMS, OutsideCluster, Plug, ammrank, check_published

from ammrank_dask.simulation.simulate import simulate
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = pytest.mark.system
CONFIG = {
    "lake": {"events": "../lake/events", "users": "../lake/users.parquet", "taxonomy": "../lake/taxonomy.csv"},
    "label": {"days": 3, "min_categories": 1},
    "features": {"min_days": 1},
    "train": {"epochs": 2, "shards": 2, "every_nights": 1},
    "gate": {"min_users": 1},
    "partitions": 2,
}
FIRST, SECOND = "2026-01-11", "2026-01-12"


def run(*arguments):
    done = subprocess.run(ammrank(*arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with OutsideCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def quiet(cluster, tmp_path_factory):
    """A site with one published night, and the hash of that night and of the next, run without disturbance."""
    world = tmp_path_factory.mktemp("world")
    lake, begun, site = world / "lake", world / "begun", world / "quiet"
    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as local, Client(local) as client:
        simulate(lake, client=client, truth=world / "truth", users=1_000, days=8, seed=7)
    begun.mkdir()
    (begun / "ammrank.yaml").write_text(write_config(check_config(CONFIG, "test")))
    settings = "wait_for_workers: 2\ntimeout: 15\n"
    (begun / "cluster.yaml").write_text(f"version: 1\nscheduler_file: {cluster.file}\n{settings}")
    run("nightly", begun, "--date", FIRST)
    shutil.copytree(begun, site)
    run("nightly", site, "--date", SECOND)
    return begun, dict([check_published(begun), check_published(site)])


def plug_of(quiet, cluster, name, seed):
    begun, expected = quiet
    return Plug(begun, begun.with_name(name), SECOND, cluster, expected, random.Random(seed))


@pytest.mark.timeout(1200)
def test_nightly__killed_again_and_again_ends_with_the_same_bytes(quiet, cluster):
    plug = plug_of(quiet, cluster, "killed", seed=11)
    plug.pull([("train", "worker"), ("score", "driver"), ("train", "scheduler")])
    assert len(plug.kills) == 3


@pytest.mark.timeout(3600)
def test_nightly__kills_in_all_stages(quiet, cluster):
    """Every kind of process in every stage, and nine more; `AMMRANK_KILLS` of these 36, a stage each first, if set."""
    plug = plug_of(quiet, cluster, "plugged", seed=5)
    plan = [(stage, victim) for stage in STAGES for victim in VICTIMS]
    plan += [(stage, plug.chance.choice(VICTIMS)) for stage in ("ingest", "train", "score") for _ in range(3)]
    plug.chance.shuffle(plan)
    one_a_stage = [plan.pop([stage for stage, _ in plan].index(name)) for name in STAGES]
    plan = (one_a_stage + plan)[: int(os.environ.get("AMMRANK_KILLS", "36"))]
    plug.pull(plan)
    assert len(plug.kills) == len(plan)
    assert {stage for stage, _ in plug.kills} == set(STAGES)


def test_nightly__sigterm_ends_cleanly_with_143(quiet, cluster):
    begun, expected = quiet
    site = begun.with_name("terminated")
    shutil.copytree(begun, site)
    command = ammrank("nightly", site, "--date", SECOND)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        # The address of the dashboard is printed before the first task: from here on the command is at work.
        while not process.stderr.readline().startswith("dashboard"):
            assert process.poll() is None
        process.stderr.readline()
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 143
    attempt = json.loads((site / "runs" / f"date={SECOND}" / "run.json").read_text())
    assert (attempt["status"], attempt["exit_code"]) == ("failed", 143)
    assert check_published(site) == (FIRST, expected[FIRST])
    second = subprocess.run(ammrank("nightly", site, "--date", SECOND), capture_output=True, check=False)
    assert second.returncode == 0
    assert check_published(site) == (SECOND, expected[SECOND])


def test_nightly__a_second_run_on_the_same_site_exits_75(quiet, cluster):
    begun, _ = quiet
    with Site(begun).exclusive():
        done = subprocess.run(ammrank("nightly", begun, "--date", SECOND), capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert "another run holds" in done.stderr
