"""Files that are written and read past the page cache have the same bytes, and go through it where that is better."""

import errno
import fcntl
import itertools
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammrank_dask.storage.store import large_files
from ammrank_dask.storage.store.large_files import LargeFile, Pace, expect_file, open_large, write_pieces

BLOCK = 4096
SEVERAL_REQUESTS = 9 * (1 << 20) + 17


@pytest.fixture
def _every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "LEAST_BYTES", 1)
    monkeypatch.setattr(large_files, "LEAST_RATE", 0.0)  # however slow the disk is while other tests run
    monkeypatch.setattr(large_files, "_pace", Pace())


def random_bytes(size: int) -> bytes:
    """Return bytes that differ everywhere."""
    return np.random.default_rng(size).bytes(size)


def is_direct(path: Path) -> bool:
    """Tell whether a file is read past the page cache."""
    with LargeFile(path) as file:
        return file.is_direct


sizes = st.one_of(st.integers(0, 20), st.integers(BLOCK - 2, BLOCK + 2), st.integers(2 * BLOCK, 2 * BLOCK + 1))


@pytest.mark.usefixtures("_every_file_is_large")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(pieces=st.lists(sizes, max_size=6), request=st.sampled_from([BLOCK, 3 * BLOCK]))
def test_write_pieces__any_sizes_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[int], request: int
) -> None:
    monkeypatch.setattr(large_files, "_REQUEST_BYTES", request)
    monkeypatch.setattr(large_files, "_buffers", [])
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    written = [random_bytes(size) for size in pieces]
    arrays = [np.frombuffer(piece, np.uint8) if i % 2 else piece for i, piece in enumerate(written)]
    write_pieces(path, arrays)
    assert path.read_bytes() == b"".join(written)


@pytest.mark.usefixtures("_every_file_is_large")
def test_write_pieces__values_of_several_dimensions_and_requests(tmp_path: Path) -> None:
    values = np.arange(SEVERAL_REQUESTS, dtype=np.float32).reshape(-1, 1)
    write_pieces(tmp_path / "file", [b"head", values, np.empty(0), b"end"])
    assert (tmp_path / "file").read_bytes() == b"head" + values.tobytes() + b"end"


def test_write_pieces__a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    for size in (10, large_files.LEAST_BYTES):
        path = tmp_path / str(size)
        path.write_bytes(b"before")
        with pytest.raises(FileExistsError):
            write_pieces(path, [random_bytes(size)])
        assert path.read_bytes() == b"before"


@pytest.mark.parametrize("where", ["open", "write"])
@pytest.mark.usefixtures("_every_file_is_large")
def test_write_pieces__a_file_system_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    call = getattr(os, where)

    def fail(*args: object, **kwargs: object) -> object:
        if where == "write" or args[1] & os.O_DIRECT:  # type: ignore[operator]
            if where == "open":  # as Linux does
                Path(args[0]).touch()  # type: ignore[arg-type]
            raise OSError(errno.EINVAL, "Invalid argument")
        return call(*args, **kwargs)

    monkeypatch.setattr(os, where, fail)
    write_pieces(tmp_path / "file", [b"some", b"thing"])
    assert (tmp_path / "file").read_bytes() == b"something"


@pytest.mark.usefixtures("_every_file_is_large")
def test_write_pieces__a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        write_pieces(tmp_path / "file", [b"something"])


@pytest.mark.usefixtures("_every_file_is_large")
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [3 * BLOCK + 5, SEVERAL_REQUESTS])
def test_large_file__any_stretch_is_what_was_written(tmp_path: Path, size: int, whole: bool, cached: bool) -> None:
    data, path = random_bytes(size), tmp_path / "file"
    write_pieces(path, [data])
    if cached:
        path.read_bytes()
    rng = np.random.default_rng(7)
    with LargeFile(path, whole=whole) as file:
        assert file.size == size
        for _ in range(40):
            start, end = np.sort(rng.integers(0, size + 1, 2)).tolist()
            assert file.read(start, end - start) == data[start:end]
            assert bytes(file.lend(start, end - start)) == data[start:end]
            targets = [np.empty(min(16, end - start), np.uint8), np.empty(max(0, end - start - 16), np.uint8)]
            assert file.read_into(targets, start) == end - start
            assert b"".join(target.tobytes() for target in targets) == data[start:end]
        assert file.read(size - 3, 10) == data[-3:]
        assert file.read(size, 10) == b""


def test_large_file__two_at_once_do_not_share_memory(tmp_path: Path) -> None:
    contents = [random_bytes(large_files.LEAST_BYTES + n) for n in range(2)]
    for n, data in enumerate(contents):
        write_pieces(tmp_path / str(n), [data])
    with LargeFile(tmp_path / "0") as one, LargeFile(tmp_path / "1") as other:
        lent = [file.lend(0, file.size) for file in (one, other)]
        assert [bytes(part) for part in lent] == contents


def test_large_file__what_is_small_or_in_the_page_cache_is_read_from_there(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    write_pieces(large, [random_bytes(large_files.LEAST_BYTES)])
    if not is_direct(large):
        pytest.skip("this file system has nothing but the page cache")
    assert is_direct(large)  # to ask did not bring it there
    large.read_bytes()
    assert not is_direct(large)
    write_pieces(small, [random_bytes(large_files.LEAST_BYTES - 1)])
    with open(small, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert not is_direct(small)


@pytest.mark.usefixtures("_every_file_is_large")
def test_large_file__a_file_system_that_wants_larger_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "file", os.preadv

    def refuse(descriptor: int, *args: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(descriptor, *args)

    data = random_bytes(3 * BLOCK)
    write_pieces(path, [data])
    monkeypatch.setattr(os, "preadv", refuse)
    with LargeFile(path) as file:
        assert file.read(5, 2 * BLOCK) == data[5 : 2 * BLOCK + 5]
        assert file.read(9, BLOCK) == data[9 : BLOCK + 9]


@pytest.mark.usefixtures("_every_file_is_large")
def test_large_file__a_file_system_that_maps_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, map_memory = tmp_path / "file", mmap.mmap

    def refuse(descriptor: int, *args: Any, **kwargs: Any) -> mmap.mmap:
        if descriptor >= 0:
            raise OSError(errno.ENODEV, "No such device")
        return map_memory(descriptor, *args, **kwargs)

    write_pieces(path, [b"something"])
    monkeypatch.setattr(mmap, "mmap", refuse)
    with LargeFile(path) as file:
        assert file.read(0, 9) == b"something"


def test_pace__a_slow_disk_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "_pace", Pace())
    monkeypatch.setattr(large_files, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(large_files, "LEAST_RATE", 1e15)
    write_pieces(tmp_path / "first", [random_bytes(large_files.LEAST_BYTES)])
    if large_files._pace.is_fast:
        pytest.skip("this file system has nothing but the page cache")
    data = random_bytes(large_files.LEAST_BYTES)
    write_pieces(tmp_path / "second", [data])
    assert not is_direct(tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == data


def test_pace__is_of_the_last_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
    monkeypatch.setattr(large_files.time, "perf_counter", lambda: next(now))
    pace = Pace()
    for _ in range(2):  # half a second each: no verdict yet
        with pace.timed(1):
            pass
    assert pace.is_fast
    with pace.timed(1):  # four seconds in all
        pass
    assert not pace.is_fast


@pytest.mark.parametrize(("n_bytes", "is_fast"), [(450_000_000, True), (250_000_000, False)])
def test_pace__requests_at_a_time_count_together(monkeypatch: pytest.MonkeyPatch, n_bytes: int, is_fast: bool) -> None:
    now = iter([0.0, 2.5])  # asked for when the first begins and when the last ends
    monkeypatch.setattr(large_files.time, "perf_counter", lambda: next(now))
    pace = Pace()
    with pace.timed(n_bytes), pace.timed(n_bytes):
        pass
    assert pace.is_fast == is_fast


@pytest.mark.usefixtures("_every_file_is_large")
def test_large_file__what_is_expected_is_what_is_asked_for(tmp_path: Path) -> None:
    data, path = random_bytes(SEVERAL_REQUESTS), tmp_path / "file"
    write_pieces(path, [data])
    starts = range(5, SEVERAL_REQUESTS - 70_000, 700_001)
    with LargeFile(path) as file:
        for start, following in itertools.pairwise(starts):
            file.expect(following, 70_000)
            lent = file.lend(start, 70_000)
            file.expect(following, 70_000)  # a second time: nothing new
            assert bytes(lent) == data[start : start + 70_000]
        assert file.read(3, 5) == data[3:8]  # what was expected last is left alone


@pytest.mark.usefixtures("_every_file_is_large")
def test_expect_file__the_next_to_open_is_there_and_others_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: dict[Path, Any] = {}
    monkeypatch.setattr(large_files, "_expected", expected)
    contents = {tmp_path / str(n): random_bytes(BLOCK + n) for n in range(large_files._MOST_EXPECTED + 3)}
    for path, data in contents.items():
        write_pieces(path, [data])
        expect_file(path)
        expect_file(path)
    assert len(expected) == large_files._MOST_EXPECTED
    for path, data in contents.items():
        with open_large(path) as file:
            assert file.read(0, file.size) == data
    assert not expected


@pytest.mark.usefixtures("_every_file_is_large")
def test_expect_file__one_that_is_gone_is_missed_by_who_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    expect_file(path)
    with pytest.raises(FileNotFoundError):
        open_large(path)


@pytest.mark.usefixtures("_every_file_is_large")
def test_expect_file__one_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (random_bytes(BLOCK), random_bytes(BLOCK)[::-1]):
        write_pieces(tmp_path / "temporary", [data])
        (tmp_path / "temporary").rename(path)
        if path not in large_files._expected:
            expect_file(path)
    with open_large(path) as file:
        assert file.read(0, file.size) == data


@pytest.mark.usefixtures("_every_file_is_large")
@pytest.mark.parametrize("more", [b"", b"a line"])
def test_expect_file__one_that_was_written_in_place_is_read_anew(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "file"
    data = random_bytes(2 * BLOCK)
    write_pieces(path, [data])
    expect_file(path)
    large_files._expected[path].result()
    time.sleep(0.02)  # clocks of file systems tick every few milliseconds
    with open(path, "r+b") as file:
        file.write(data[::-1] + more)
    with open_large(path) as large:
        assert large.read(0, large.size) == data[::-1] + more


@pytest.mark.usefixtures("_every_file_is_large")
def test_open_large__what_failed_in_advance_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    data = random_bytes(BLOCK)
    write_pieces(path, [data])
    with monkeypatch.context() as patched:
        patched.setattr(LargeFile, "fetch", lambda _: os.stat(tmp_path / "gone"))
        expect_file(path)
        with pytest.raises(FileNotFoundError):
            large_files._expected[path].result()
    with open_large(path) as file:
        assert file.read(0, BLOCK) == data


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # this process has threads, as the user's may
@pytest.mark.usefixtures("_every_file_is_large")
def test_fork__the_child_has_memory_and_threads_of_its_own(tmp_path: Path) -> None:
    data, path = random_bytes(SEVERAL_REQUESTS), tmp_path / "file"
    write_pieces(path, [data])

    def read() -> bool:
        with LargeFile(path) as file:
            file.expect(BLOCK, BLOCK)
            file.expect(3 * BLOCK, BLOCK)
            return all(file.read(at, BLOCK) == data[at : at + BLOCK] for at in (BLOCK, 3 * BLOCK))

    assert read()
    assert large_files._buffers
    child = os.fork()
    if not child:
        os._exit(0 if not large_files._buffers and read() else 1)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
