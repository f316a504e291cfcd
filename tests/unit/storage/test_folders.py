"""Files and folders of a shared file system: what cannot be listed is an error, and a rename may have been done."""

import errno
import os

import pytest

from ammrank_dask.storage.objects import retry as module
from ammrank_dask.storage.objects.folders import list_paths, remove, rename, walk


@pytest.fixture
def away(monkeypatch):
    """Let a function of `os` fail with EIO the first times, before or after its work is done."""
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))

    def away(name, n_failures, *, is_done=False):
        call, calls = getattr(os, name), []

        def fail(*arguments, **options):
            calls.append(arguments)
            if len(calls) > n_failures:
                return call(*arguments, **options)
            if is_done:
                call(*arguments, **options)
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, name, fail)
        return calls

    return away


def make_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_list_paths__by_level_sorted_and_hidden_ones_too(tmp_path):
    make_files(tmp_path, "date=2/b/m.json", "date=1/a/m.json", "date=1/b/other", "date=3", ".hidden/a/m.json")
    assert list_paths(tmp_path, "date=*/*/m.json") == [tmp_path / "date=1/a/m.json", tmp_path / "date=2/b/m.json"]
    assert [path.name for path in list_paths(tmp_path)] == [".hidden", "date=1", "date=2", "date=3"]
    assert list_paths(tmp_path / "none") == []
    assert list_paths(tmp_path / "date=3") == []


def test_list_paths__what_cannot_be_listed_is_never_left_out(tmp_path, away):
    make_files(tmp_path, "a/1", "b/2")
    calls = away("scandir", 2)
    assert list_paths(tmp_path, "*/*") == [tmp_path / "a/1", tmp_path / "b/2"]
    assert len(calls) == 5
    away("scandir", 9)
    with pytest.raises(OSError, match="Input/output error"):
        list_paths(tmp_path)


def test_walk__what_cannot_be_listed_is_an_error(tmp_path, away):
    make_files(tmp_path, "a/1")
    away("scandir", 1)
    with pytest.raises(OSError, match="Input/output error"):
        list(walk(tmp_path))
    assert list(walk(tmp_path / "none")) == []


@pytest.mark.parametrize("is_done", [False, True])
def test_rename__once_whatever_the_first_answer_said(tmp_path, away, is_done):
    make_files(tmp_path, "old")
    away("rename", 1, is_done=is_done)
    rename(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with pytest.raises(FileNotFoundError):
        rename(tmp_path / "old", tmp_path / "newer")


def test_remove__a_file_a_folder_and_nothing(tmp_path, away):
    make_files(tmp_path, "file", "folder/a/b")
    away("rmdir", 1)
    for name in ("file", "folder", "none"):
        remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
