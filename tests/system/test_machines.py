"""What can be wrong with a machine: no direct writes, no room for metrics, a root that is read-only, a wrong clock."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nights import config_of, copy_world, day
from plug import ammrank
from wrong_clock import wrong_clock

from ammrank_dask import kernels
from ammrank_dask.workflows.session.config import write_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly

pytestmark = pytest.mark.timeout(900)


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, check=False, **options)


@contextlib.contextmanager
def mounted(folder, kind, *options):
    folder.mkdir()
    subprocess.run(["mount", "-t", kind, *options, kind, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    """A small disk."""
    with mounted(tmp_path / "disk", "tmpfs", "-o", "size=64m") as folder:
        yield folder


@pytest.mark.system
def test_nightly__a_disk_that_is_full_when_metrics_are_written_changes_no_exit_code(published_world, disk):
    site = copy_world(published_world, disk)
    # What is run for a night that went well comes before the metrics.
    fill = f"sh -c 'cat /dev/zero > {disk / 'filler'} 2>&-; true'"
    site.config_path.write_text(write_config(config_of(notify={"on_success": fill})), encoding="utf-8")
    command = ammrank("nightly", site.path, "--date", day(5), "--quiet")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert (disk / "filler").is_file()
    not_written = f"{site.path / 'metrics.prom'} was not written: [Errno 28] No space left on device"
    assert [line.endswith(not_written) for line in done.stderr.splitlines()] == [True]
    assert not (site.path / "metrics.prom").exists()
    assert list(site.path.glob(".tmp-*")) == []

    failed = run(*ammrank("nightly", site.path, "--date", day(6), "--quiet"))
    assert failed.returncode == 1, failed.stderr
    sentence = "ammrank: No space left on device; what is published is whole, run the command again"
    assert failed.stderr.splitlines()[-1] == sentence
    assert site.current().date == day(5)
    assert site.digest() == published_world.digest()

    site.config_path.write_bytes(site.config_path.read_bytes().replace(b"keep_days: null", b"keep_days: xx"))
    bad = run(*command)
    assert bad.returncode == 65, bad.stderr
    assert "keep_days" in bad.stderr.splitlines()[-1]


@pytest.mark.long
def test_nightly__a_root_and_a_home_that_cannot_be_written(client, published_world, site, tmp_path):
    open_site = copy_world(published_world, tmp_path / "open")
    nightly(Night(client, open_site, config_of(), day(6)))
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cluster.yaml").write_text(
        "version: 1\nclass: distributed.LocalCluster\n"
        'kwargs: {n_workers: 1, threads_per_worker: 1, dashboard_address: "127.0.0.1:0"}\n'
    )
    closed = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind /"
    # Where numba keeps what is compiled unless it is told otherwise: beside the kernels, else in the home.
    tried = " && ".join(f"! touch {folder}/written 2>&-" for folder in ("~", Path(kernels.__file__).parent))
    shell = ["unshare", "--mount", "sh", "-c", f'{closed} && {tried} && exec "$0" "$@"']
    command = ammrank("nightly", site.path, "--date", day(6), "--cluster", tmp_path / "cluster.yaml", "--quiet")
    environment = {**os.environ, "HOME": "/root", "TMPDIR": str(tmp_path / "scratch")}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = run(*shell, *command, env=environment)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "there are no chances" not in line] == []
    assert site.digest() == open_site.digest()


@contextlib.contextmanager
def processes(*commands):
    """Run modules of Dask with an environment each."""
    with contextlib.ExitStack() as stack:
        for arguments, environment in commands:
            command = [sys.executable, "-m", *map(str, arguments)]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(command, env={**os.environ, **environment}, **quiet)
            stack.callback(process.wait, timeout=60)
            stack.callback(process.terminate)
        yield


@pytest.mark.system
@pytest.mark.parametrize(("hours", "way"), [(1, "ahead of"), (-1, "behind")])
def test_nightly__a_worker_whose_clock_is_one_hour_off(site, tmp_path, hours, way):
    file = tmp_path / "scheduler.json"
    local = ("--scheduler-file", file, "--host", "127.0.0.1")
    scheduler = ("distributed.cli.dask_scheduler", *local, "--port", 0, "--no-dashboard")
    worker = ("distributed.cli.dask_worker", *local, "--nthreads", 1, "--no-nanny", "--no-dashboard")
    (tmp_path / "cluster.yaml").write_text(f"version: 1\nscheduler_file: {file}\nnetwork: trusted\n")
    with processes((scheduler, {}), (worker, wrong_clock(tmp_path, hours * 3600))):
        done = run(*ammrank("nightly", site.path, "--date", day(6), "--cluster", tmp_path / "cluster.yaml", "--quiet"))
    assert done.returncode == 65, done.stderr
    assert re.search(rf"the clock of the worker at tcp://\S+ is 3,600 s {way} that of this machine; set", done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert site.current().date == day(5)
    assert list(site.path.glob(".view-*")) == []
