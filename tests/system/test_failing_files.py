"""A night on a file system that fails one in 200 calls with EIO or ESTALE ends with the bytes of a quiet one."""

import builtins
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nights import config_of, copy_world, day
from plug import ammrank

from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.nightly import command
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
    log = (world.path / "runs" / f"date={day(5)}" / "log.jsonl").read_text()
    assert log.count("the lake has no events for") == 1


FILE_CALLS = [
    *((os, name) for name in ("stat", "lstat", "open", "rename", "replace", "mkdir", "unlink", "remove", "rmdir")),
    *((os, name) for name in ("scandir", "listdir", "link", "chmod", "utime", "truncate")),
    (io, "open"),
    (builtins, "open"),
]
HARMLESS = ("rmtree", "resolve", "convert")
"""Functions of Python and click that let errors pass: they leave what they cannot remove, or look at."""


def frames_above():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_nightly__every_call_on_files_is_tried_again(site, cluster_file, monkeypatch):
    tried_again = retried(abs).__code__
    below, n_calls, bare = str(site.path.parent), 0, set()

    def watch(module, name):
        call = getattr(module, name)

        def watched(path, *arguments, **options):
            nonlocal n_calls
            is_of_site = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(below)
            if is_of_site:
                n_calls += 1
                codes = [frame.f_code for frame in frames_above()]
                if tried_again not in codes and not {code.co_name for code in codes} & set(HARMLESS):
                    ours = next(code for code in codes if "ammrank_dask" in code.co_filename)
                    bare.add(f"{name} in {ours.co_filename}:{ours.co_qualname}")
            return call(path, *arguments, **options)

        monkeypatch.setattr(module, name, watched)

    for module, name in FILE_CALLS:
        watch(module, name)
    for date in (day(6), day(7)):  # the second of them trains
        command([str(site.path), "--date", str(date), "--cluster", str(cluster_file), "--quiet"], standalone_mode=False)
    assert n_calls > 1000
    assert sorted(bare) == []
