"""Several accounts of a machine and one site: root's nights are refused, those of one group go on with each other's."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from nights import config_of, day, simulate_world

from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]
ONE, OTHER, GROUP = 65534, 65533, 65532
COMMANDS = {
    "nightly": ["--date", day(5)],
    "ingest": ["--date", day(5)],
    "publish": ["--date", day(5), "--anyway"],
    "backtest": ["--from", day(5), "--to", day(6)],
    "evaluate": ["--date", day(5)],
    "repartition": ["--partitions", 3],
    "forget": ["--users", "users.txt"],
    "init": ["--lake", "lake", "--force"],
    "demo": [],
    "check": [],
    "report": ["--index"],
}


@pytest.fixture
def site(client, tmp_path):
    """A site without a night, beside its lake, below folders that everybody may enter."""
    for folder in (*tmp_path.parents, tmp_path):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    site = simulate_world(client, tmp_path)
    hook = f"touch {tmp_path / 'was-here'}"
    config = config_of(notify={"on_failure": hook}, publish={"hold": []})
    site.config_path.write_text(write_config(config))
    return site


def give(path, uid, gid):
    for found in (path, *path.rglob("*")):
        os.chown(found, uid, gid, follow_symlinks=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_writes_site__root_leaves_nothing_in_the_site_of_an_account(site, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (site.path / "cluster.yaml").write_text(
        "version: 1\nclass: distributed.LocalCluster\nkwargs: {processes: false, dashboard_address: '127.0.0.1:0'}\n"
    )
    give(site.path, ONE, ONE)
    before = sorted(site.path.rglob("*"))
    done = CliRunner().invoke(ammrank, [command, str(site.path), *map(str, COMMANDS[command])])
    assert done.exit_code == 65, done.output
    assert f"commands that write to {site.path} must run as its owner" in done.stderr
    assert "found root and d" in done.stderr
    assert "; run `sudo -u " in done.stderr
    assert sorted(site.path.rglob("*")) == before
    assert not (tmp_path / "was-here").exists()


def test_nightly__accounts_of_one_group_alternate_nights(site, tmp_path):
    cluster = tmp_path / "threads.yaml"
    cluster.write_text(
        "version: 1\nclass: distributed.LocalCluster\n"
        "kwargs: {n_workers: 1, threads_per_worker: 2, processes: false, dashboard_address: '127.0.0.1:0'}\n"
    )
    warm = tmp_path / "warm"
    script = Path(__file__).parents[1] / "support" / "night_of_account.py"
    give(site.path, ONE, GROUP)
    site.path.chmod(0o2770)
    for number, account in ((5, ONE), (6, OTHER), (7, ONE)):
        if not warm.is_dir():
            warm.mkdir()
            (warm / "ammrank.yaml").write_text(write_config(config_of(publish={"hold": []})))
        command = [sys.executable, script, account, GROUP, cluster, day(number), warm, site.path]
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert site.current().date == day(number)
        assert not (tmp_path / "was-here").exists()
    found = [path.stat() for path in site.path.rglob("*")]
    assert {status.st_uid for status in found} == {ONE, OTHER}
    assert {status.st_gid for status in found} == {GROUP}
    assert not any(status.st_mode & 0o007 for status in found if stat.S_ISDIR(status.st_mode))
