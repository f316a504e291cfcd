"""An operation that a shared file system failed in passing is tried again, a few times, and nothing else is."""

import errno
import os

import numpy as np
import pytest

from ammrank_dask.storage.objects import retry as module
from ammrank_dask.storage.objects.atomic import digest_file
from ammrank_dask.storage.objects.retry import PAUSES, is_passing, retried
from ammrank_dask.storage.store import scratch_arrays


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", (0.0,) * len(PAUSES))


def failing(n_failures, code):
    """Return a function that fails so often, and the list of its calls."""
    calls = []

    @retried
    def operate():
        calls.append(1)
        if len(calls) <= n_failures:
            raise OSError(code, "away")
        return "done"

    return operate, calls


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("n_failures", [0, 1, 3])
def test_retried__an_error_that_passes(code, n_failures):
    operate, calls = failing(n_failures, code)
    assert operate() == "done"
    assert len(calls) == n_failures + 1


def test_retried__the_attempts_have_an_end_and_are_not_multiplied():
    operate, calls = failing(99, errno.EIO)
    outer = retried(retried(operate))
    with pytest.raises(OSError, match="away"):
        outer()
    assert len(calls) == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOENT, errno.EACCES, errno.EROFS])
def test_retried__other_errors_are_told_at_once(code):
    operate, calls = failing(1, code)
    with pytest.raises(OSError, match="away"):
        operate()
    assert len(calls) == 1
    assert not is_passing(OSError(code, "away"))
    assert not is_passing(ValueError("away"))


def test_digest_file__an_error_of_the_file_system_is_no_bad_input(tmp_path, monkeypatch):
    def away(*arguments):
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "file").touch()
    monkeypatch.setattr("builtins.open", away)
    with pytest.raises(OSError, match="Stale file handle"):
        digest_file(tmp_path / "file")


def test_array_writer__rows_that_a_failed_append_left_are_written_over(tmp_path, monkeypatch):
    write_header, calls = scratch_arrays._write_header, []

    def write_and_fail(file, *arguments):
        write_header(file, *arguments)
        calls.append(1)
        if len(calls) == 2:  # half of the rows are in the file when the disk goes away
            place = file.tell()
            file.seek(0, os.SEEK_END)
            file.write(b"left behind")
            file.seek(place)
            raise OSError(errno.EIO, "away")

    monkeypatch.setattr(scratch_arrays, "_write_header", write_and_fail)
    with scratch_arrays.ArrayWriter(tmp_path / "rows") as writer:
        writer.append("a", np.arange(6.0).reshape(3, 2))
        writer.append("a", np.arange(6.0, 10.0).reshape(2, 2))
        writer.finish({})
    assert len(calls) == 3
    assert scratch_arrays.is_saved(tmp_path / "rows")
    assert scratch_arrays.load_array(tmp_path / "rows", "a").tolist() == np.arange(10.0).reshape(5, 2).tolist()
