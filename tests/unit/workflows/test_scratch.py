"""Where a cluster that is started here keeps its files: never where another account can put some."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import dask
import pytest
from plug import ammrank

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.workflows.cluster.open import open_cluster

HOLD = """
import locket, sys
with locket.lock_file(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files in which somebody else has made the folder of Dask."""
    folder = tmp_path / "temporary"
    (folder / "dask-scratch-space").mkdir(parents=True)
    folder.chmod(0o1777)
    (folder / "dask-scratch-space").chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def write_cluster(folder, kwargs="processes: false", *lines):
    path = folder / "cluster.yaml"
    common = "n_workers: 1, threads_per_worker: 1, dashboard_address: '127.0.0.1:0'"
    lines = ("version: 1", "class: distributed.LocalCluster", f"kwargs: {{{common}, {kwargs}}}", *lines)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def worker_folder(dask_worker):
    return dask_worker.local_directory


def import_places():
    return list(sys.path)


def refused(path, sentence):
    with pytest.raises(BadInput, match=sentence):
        open_cluster(path, None, quiet=True).__enter__()


@pytest.mark.parametrize("processes", ["true", "false"])
@pytest.mark.parametrize("way", ["TMPDIR", "temporary-directory", "temporary_directory", "local_directory"])
def test_open_cluster__scratch_folders_are_private_and_gone_at_the_end(tmp_path, temporary, way, processes):
    kwargs, lines = f"processes: {processes}", ()
    if way == "local_directory":
        kwargs += f", local_directory: {temporary}"
    elif way != "TMPDIR":
        lines = (f"dask: {{{way}: {temporary}}}",)
    before, configured = list(sys.path), dask.config.get("temporary-directory")
    with open_cluster(write_cluster(tmp_path, kwargs, *lines), None, quiet=True) as client:
        (worker,) = client.run(worker_folder).values()
        (places,) = client.run(import_places).values()
        private = [folder for folder in temporary.iterdir() if folder.name != "dask-scratch-space"]
        for folder in private:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert folder.stat().st_uid == os.geteuid()
        for place in (worker, *places, *sys.path):
            if Path(place).is_relative_to(temporary):
                assert any(Path(place).is_relative_to(folder) for folder in private)
        assert any(Path(worker).is_relative_to(folder) for folder in private)
    assert [folder.name for folder in temporary.iterdir()] == ["dask-scratch-space"]
    assert list((temporary / "dask-scratch-space").iterdir()) == []
    assert sys.path == before
    assert dask.config.get("temporary-directory") == configured


@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", ["true", "false"])
@pytest.mark.parametrize("way", ["TMPDIR", "local_directory"])
def test_open_cluster__a_lock_that_another_holds_does_not_keep_it_waiting(tmp_path, temporary, way, processes):
    kwargs = f"processes: {processes}"
    if way == "local_directory":
        kwargs += f", local_directory: {temporary}"
    lock = temporary / "dask-scratch-space" / "global.lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with open_cluster(write_cluster(tmp_path, kwargs), None, quiet=True) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        holder.stdin.close()


@pytest.mark.parametrize("way", ["temporary-directory of Dask's settings", "kwargs.local_directory"])
@pytest.mark.parametrize("below", ["", "deeper"])
def test_open_cluster__a_folder_that_others_may_write_is_refused(tmp_path, way, below):
    folder = tmp_path / "open"
    (folder / below).mkdir(parents=True)
    folder.chmod(0o777)
    if way.startswith("kwargs"):
        path = write_cluster(tmp_path, f"processes: false, local_directory: {folder / below}")
        way = f"{path}: {way}"
    else:
        path = write_cluster(tmp_path, "processes: false", f"dask: {{temporary-directory: {folder / below}}}")
    sentence = f"{way}: nobody but you may write {folder}, found drwxrwxrwx; run `chmod go-w {folder}` or name"
    refused(path, f"^{re.escape(sentence)} another folder$")
    done = subprocess.run(
        ammrank("simulate", tmp_path / "lake", "--users", 100, "--days", 2, "--cluster", path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (65, f"ammrank: {sentence} another folder\n")
    assert [entry.name for entry in folder.iterdir()] == ([below] if below else [])


def test_open_cluster__a_scratch_folder_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    path = write_cluster(tmp_path, f"processes: false, local_directory: {file}")
    refused(path, rf"kwargs\.local_directory must be a folder that you can write, got {re.escape(str(file))} \(.*\); c")


def test_open_cluster__a_scratch_folder_that_is_not_there_is_made_for_us_alone(tmp_path):
    folder = tmp_path / "new"
    path = write_cluster(tmp_path, "processes: false", f"dask: {{temporary-directory: {folder}}}")
    with open_cluster(path, None, quiet=True) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
