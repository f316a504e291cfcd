"""Another account of the machine attacks the cluster of a night: the embedded one, and a scheduler of one's own."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from certificates import write_certificates
from plug import ammrank, check_published
from second_account import NOBODY

from ammrank_dask.workflows.cluster.open import open_cluster
from ammrank_dask.workflows.session.config import check_config, write_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]
LAKE = {"events": "", "users": ".parquet", "taxonomy": ".csv"}


@pytest.fixture
def site(tmp_path):
    """A site's folder as `init` makes it, below folders that everybody may enter."""
    for folder in (*tmp_path.parents, tmp_path):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "site"
    path.mkdir(mode=0o700)
    return path


def attack(client, site, marker):
    script = Path(__file__).parents[1] / "support" / "second_account.py"
    command = [sys.executable, str(script), client.dashboard_link.removesuffix("/status"), str(marker), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def planting(temporary, marker):
    """Let another account make the folder of Dask first, and put a package of our name into all that lies in it."""
    script = Path(__file__).parents[1] / "support" / "plant_package.py"
    command = [sys.executable, str(script), str(temporary), str(marker)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "planted\n"
            yield
            assert process.poll() is None, "the other account has not acted all the time"
        finally:
            process.kill()


def cluster_lines(kind, tmp_path):
    if kind == "embedded":
        return "class: distributed.LocalCluster\nkwargs: {n_workers: 1, dashboard_address: '127.0.0.1:0'}\n"
    paths = write_certificates(tmp_path / "certificates")
    return (
        f"scheduler_file: {tmp_path / 'scheduler.json'}\n"
        f"security: {{ca_file: {paths.ca}, cert: {paths.cert}, key: {paths.key}}}\n"
    )


@contextlib.contextmanager
def own_scheduler(tmp_path, protocol):
    """Run a scheduler and a worker as processes of their own, with TLS or without."""
    file, folder = tmp_path / "scheduler.json", tmp_path / "certificates"
    options = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--protocol", protocol]
    if protocol == "tls":
        options += ["--tls-ca-file", str(folder / "ca.pem"), "--tls-cert", str(folder / "cert.pem")]
        options += ["--tls-key", str(folder / "key.pem")]
    more = {"scheduler": ["--port", "0", "--dashboard-address", "127.0.0.1:0"], "worker": ["--nthreads", "1"]}
    with contextlib.ExitStack() as stack:
        for name, extra in more.items():
            command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options, *extra]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, timeout=60)
            stack.callback(process.terminate)
        yield


@pytest.mark.parametrize("kind", ["embedded", "own scheduler"])
def test_open_cluster__another_account_runs_nothing(tmp_path, site, kind):
    file, marker = tmp_path / "cluster.yaml", tmp_path / "was-here"
    file.write_text("version: 1\n" + cluster_lines(kind, tmp_path))
    with contextlib.ExitStack() as stack:
        if kind != "embedded":
            stack.enter_context(own_scheduler(tmp_path, "tls"))
        client = stack.enter_context(open_cluster(str(file), site, quiet=True))
        found = attack(client, site, marker)
        assert found["seen"], "the dashboard was not read"
        assert all(address.startswith("tls://127.0.0.1:") for address in found["seen"])
        assert client.submit(sum, [1, 2]).result() == 3
    assert (found["inside"], found["readable"]) == ([], [])
    assert not marker.exists()


def test_open_cluster__the_attack_gets_in_where_a_scheduler_is_open(tmp_path, site):
    """Without TLS the same attack works: it is the certificates that stop it."""
    file, marker = tmp_path / "cluster.yaml", tmp_path / "was-here"
    file.write_text(f"version: 1\nscheduler_file: {tmp_path / 'scheduler.json'}\nnetwork: trusted\n")
    with own_scheduler(tmp_path, "tcp"), open_cluster(str(file), site, quiet=True) as client:
        found = attack(client, site, marker)
    assert found["inside"]
    assert marker.stat().st_uid == os.geteuid()


def test_nightly__a_cluster_file_planted_in_the_current_folder_is_refused(tmp_path, site):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    planted = shared / "cluster.yaml"
    planted.write_text("version: 1\nclass: distributed.LocalCluster\ndask: {distributed.worker.preload: [evil]}\n")
    os.chown(planted, NOBODY, NOBODY)
    done = subprocess.run(
        ammrank("simulate", site / "lake", "--users", 100, "--days", 2),
        cwd=shared,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 65
    assert done.stderr == (
        f"ammrank: {planted} must belong to you or to root, found user id {NOBODY}; move it away, or name it with"
        f" --cluster {planted} if you trust what is in it\n"
    )


@pytest.mark.parametrize("processes", ["true", "false"])
def test_nightly__a_package_planted_in_the_folder_of_dask_is_not_run(tmp_path, site, processes):
    temporary, marks = tmp_path / "temporary", tmp_path / "marks"
    for folder, mode in ((temporary, 0o1777), (marks, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    settings = {
        "lake": {name: f"../lake/{name}{end}" for name, end in LAKE.items()},
        "label": {"days": 3, "min_categories": 1},
        "features": {"min_days": 1},
        "train": {"epochs": 2, "shards": 2, "every_nights": 1},
        "gate": {"min_users": 1},
        "partitions": 2,
    }
    (site / "ammrank.yaml").write_text(write_config(check_config(settings, "test")))
    kwargs = f"n_workers: 2, processes: {processes}, dashboard_address: '127.0.0.1:0'"
    (site / "cluster.yaml").write_text(f"version: 1\nclass: distributed.LocalCluster\nkwargs: {{{kwargs}}}\n")
    commands = [
        ammrank("simulate", tmp_path / "lake", "--users", 1000, "--days", 8, "--cluster", site / "cluster.yaml"),
        ammrank("nightly", site, "--date", "2026-01-09"),
    ]
    with planting(temporary, marks / "was-here"):
        for command in commands:
            done = subprocess.run(
                command, env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
    assert list(marks.iterdir()) == []
    assert check_published(site)[0] == "2026-01-09"
    assert [folder.name for folder in temporary.iterdir()] == ["dask-scratch-space"]
