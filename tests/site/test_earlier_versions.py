"""A site that version 0.1.0 made is refused with what to type, and that command makes it again from its lake.

`tests/data/site-0.1.0.tar.xz` holds a lake of 150 simulated users over 16 days and a site with the published nights of
2026-01-17 and 2026-01-18, as version 0.1.0 left them (performance pages removed for size).
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.night

ARCHIVE = Path(__file__).parent.parent / "data" / "site-0.1.0.tar.xz"
CLUSTER = """version: 1
class: distributed.LocalCluster
kwargs: {n_workers: 1, processes: false, threads_per_worker: 2, dashboard_address: "127.0.0.1:0"}
wait_for_workers: 1
"""


def run(*arguments):
    command = [sys.executable, "-m", "ammrank_dask.workflows.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def site(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "site" / "cluster.yaml").write_text(CLUSTER)
    return tmp_path / "site"


@pytest.mark.parametrize("command", [["nightly", "--date", "2026-01-19"], ["verify"], ["status"]], ids=lambda c: c[0])
def test_commands__say_how_to_go_on_with_a_site_of_version_0_1_0(site, command):
    name, *options = command
    done = run(name, site, *options)
    assert done.returncode == 65, done.stderr + done.stdout
    sentence = "has format 1 of an earlier version, this one reads 0.3.0; make it again with `ammrank nightly"
    assert sentence in done.stderr + done.stdout


def test_nightly__rebuilds_a_site_of_version_0_1_0(site):
    published = run("nightly", site, "--date", "2026-01-18", "--rebuild", "--quiet", "--json")
    assert published.returncode == 0, published.stderr
    assert json.loads(published.stdout.splitlines()[-1])["users"] == 150
    following = run("nightly", site, "--date", "2026-01-19", "--quiet", "--json")
    assert following.returncode == 0, following.stderr
    before, after = (
        pq.read_table(site / "qualifications" / f"date=2026-01-{day}" / "by_user").to_pandas() for day in (18, 19)
    )
    assert set(after["user_id"]) == set(before["user_id"])
    assert (after.groupby("user_id").size() == 10).all()
