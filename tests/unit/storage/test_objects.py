"""The contract of a store of objects: every kind of store passes the same tests."""

import os
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from s3 import always, every, serve_s3, slow

from ammrank_dask.storage.errors import BadInput, StoreFailed
from ammrank_dask.storage.objects.objects import Conflict, Object
from ammrank_dask.storage.objects.posix import PosixObjects, open_objects


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running:
        running.make_bucket("sites")
        yield running


@pytest.fixture
def bucket(server, request):
    """An empty prefix of a bucket."""
    return open_objects(server.url(f"sites/{uuid.uuid4().hex}"))


@pytest.fixture(params=["posix", "bucket"])
def store(request, tmp_path):
    """An empty store of each kind."""
    return PosixObjects(tmp_path / "site") if request.param == "posix" else request.getfixturevalue("bucket")


def test_get__returns_what_was_put_and_a_tag_of_it(store):
    tag = store.put("state/date=2026-01-05/part-00000.arrow", [b"one", b"", b"two"])
    assert store.get("state/date=2026-01-05/part-00000.arrow") == (b"onetwo", tag)
    other = store.put("state/date=2026-01-05/part-00000.arrow", [b"three"])
    assert store.get("state/date=2026-01-05/part-00000.arrow") == (b"three", other)
    assert other != tag


def test_get__of_what_is_not_there(store):
    for read in (lambda: store.get("a/b"), lambda: store.get_ranges("a/b", [0], [1]), lambda: store.copy("a/b", "c")):
        with pytest.raises(FileNotFoundError):
            read()


def test_put__empty_objects_are_objects(store):
    store.put("mark", [])
    assert store.get("mark")[0] == b""
    assert list(store.list()) == [Object("mark", 0)]


def test_get_ranges__returns_stretches_in_the_order_asked_for(store):
    store.put("a", [bytes(range(100))])
    found = store.get_ranges("a", [90, 0, 50, 95], [5, 3, 0, 10])
    assert found == [bytes(range(90, 95)), bytes(range(3)), b"", bytes(range(95, 100))]


def test_put_if__replaces_only_what_has_the_tag(store):
    first = store.put_if("ROOT", b"1", None)
    with pytest.raises(Conflict, match="was written by another run meanwhile, found another one; run it again"):
        store.put_if("ROOT", b"2", None)
    second = store.put_if("ROOT", b"2", first)
    with pytest.raises(Conflict):
        store.put_if("ROOT", b"3", first)
    assert store.get("ROOT") == (b"2", second)
    store.delete(["ROOT"])
    with pytest.raises(Conflict, match="found none"):
        store.put_if("ROOT", b"3", second)
    store.put_if("ROOT", b"4", None)
    assert store.get("ROOT")[0] == b"4"


def test_put_if__of_writers_at_once_one_wins_each_time(store):
    def add(writer):
        won = 0
        while won < 20:
            try:
                data, tag = store.get("ROOT")
                store.put_if("ROOT", data + bytes([writer]), tag)
            except Conflict:
                continue
            won += 1

    store.put_if("ROOT", b"", None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    written = store.get("ROOT")[0]
    assert [written.count(bytes([writer])) for writer in range(4)] == [20] * 4


def test_copy__gives_a_second_key_that_outlives_the_first(store):
    store.put("a/part", [b"rows"])
    store.copy("a/part", "b/deep/part")
    store.copy("a/part", "b/deep/part")
    store.delete(["a/part"])
    assert store.get("b/deep/part")[0] == b"rows"
    store.put("c", [b"other"])
    store.copy("c", "b/deep/part")
    assert store.get("b/deep/part")[0] == b"rows"


def test_put__leaves_copies_as_they_were(store):
    store.put("a", [b"before"])
    store.copy("a", "b")
    store.put("a", [b"after"])
    assert [store.get(key)[0] for key in "ab"] == [b"after", b"before"]


def test_list__yields_keys_with_a_prefix_in_order(store):
    for key in ("days/b/1", "days/a/2", "days/a/1", "days.json", "state/1"):
        store.put(key, [key.encode()])
    assert [one.key for one in store.list("days/")] == ["days/a/1", "days/a/2", "days/b/1"]
    assert [one.key for one in store.list("days")] == ["days.json", "days/a/1", "days/a/2", "days/b/1"]
    assert [one.key for one in store.list("days/a/1")] == ["days/a/1"]
    assert list(store.list("users/")) == []
    assert list(store.list("state")) == [Object("state/1", 7)]


def test_delete__takes_what_is_there_and_nothing_else(store):
    for key in ("a/x", "a/y", "b"):
        store.put(key, [b"1"])
    store.delete(["a/x", "nowhere/x", "b"])
    assert [one.key for one in store.list()] == ["a/y"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a//b", "../a", "a/./b", "a/"])
def test_put__refuses_what_is_no_key(store, key):
    with pytest.raises(BadInput, match="a key must be names with / between them"):
        store.put(key, [b""])


def test_posix_put__that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    store = PosixObjects(tmp_path)
    store.put("a", [b"before"])

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        store.put("a", [b"after"])
    assert store.get("a")[0] == b"before"
    assert list(store.list()) == [Object("a", 6)]


def test_posix_copy__without_links_copies_the_bytes(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    store = PosixObjects(tmp_path)
    store.put("a", [b"rows"])
    store.copy("a", "b/c")
    assert store.get("b/c")[0] == b"rows"
    assert (tmp_path / "a").stat().st_nlink == 1


def test_posix_delete__removes_folders_that_it_leaves_empty(tmp_path):
    store = PosixObjects(tmp_path)
    for key in ("days/date=1/x/part", "days/date=2/x/part"):
        store.put(key, [b"1"])
    (tmp_path / "days" / "date=2" / "notes.txt").write_text("mine")
    store.delete(["days/date=1/x/part", "days/date=2/x/part"])
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "days", "days/date=2", "days/date=2/notes.txt",
    ]  # fmt: skip


def every_other(status, code, methods=("PUT",)):
    """Return a fault that comes with every other request of a method, first with the first one."""
    lock, seen = threading.Lock(), []

    def answer(method, path):
        with lock:
            seen.append(method in methods)
            return (status, code) if seen[-1] and sum(seen) % 2 else None

    return answer


@pytest.mark.parametrize("answer", ["500 Internal Server Error", "503 Slow Down", "409 Conflict"])
def test_store_put_if__a_lost_answer_is_no_conflict(server, bucket, answer):
    with server.losses(every_other(answer, "Lost")):
        first = bucket.put_if("ROOT", b"1", None)
        second = bucket.put_if("ROOT", b"2", first)
    assert bucket.get("ROOT") == (b"2", second)
    with server.losses(every_other(answer, "Lost")), pytest.raises(Conflict, match="found another one"):
        bucket.put_if("ROOT", b"3", first)
    assert bucket.get("ROOT") == (b"2", second)


def test_store_put_if__two_requests_at_once_are_made_again(server, bucket):
    with server.faults(every_other("409 Conflict", "ConditionalRequestConflict")):
        tag = bucket.put_if("ROOT", b"1", None)
    assert bucket.get("ROOT") == (b"1", tag)


def test_store_put_if__of_a_store_without_conditional_writes(server, bucket):
    refuse = always("412 Precondition Failed", "PreconditionFailed")
    with (
        server.faults(lambda method, path: refuse(method, path) if method == "PUT" else None),
        pytest.raises(Conflict, match="takes no conditional writes at present"),
    ):
        bucket.put_if("ROOT", b"1", None)


@pytest.mark.parametrize("fault", [slow(0.05), every(3, "503 Slow Down", "SlowDown")], ids=["slow", "failing"])
def test_store__slow_and_failing_requests_change_nothing(server, bucket, fault):
    with server.faults(fault):
        for number in range(5):
            bucket.put(f"part-{number}", [bytes([number]), b"rows"])
        assert [bucket.get(one.key)[0][0] for one in bucket.list("part-")] == list(range(5))
        bucket.delete([f"part-{number}" for number in range(4)])
        assert [one.key for one in bucket.list()] == ["part-4"]


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (("403 Forbidden", "AccessDenied"), BadInput, "the store refuses the credentials of this process"),
        (("400 Bad Request", "ExpiredToken"), BadInput, "the store refuses the credentials of this process"),
        (("500 Oops", "InternalError"), StoreFailed, "cannot be reached"),
    ],
    ids=["no permission", "expired", "broken"],
)
def test_store__refusals_are_one_sentence(server, bucket, answer, error, sentence):
    calls = [
        lambda: bucket.get("a"),
        lambda: bucket.put("a", [b"1"]),
        lambda: bucket.put_if("a", b"1", None),
        lambda: bucket.copy("a", "b"),
        lambda: list(bucket.list()),
        lambda: bucket.delete(["a"]),
    ]
    for call in calls:
        with server.faults(always(*answer)), pytest.raises(error, match=sentence) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_open_objects__of_what_cannot_be_a_store(server):
    for url, sentence in (
        (server.url("nowhere/site"), "there is no bucket s3://nowhere; correct the URL s3://nowhere/site"),
        ("hdfs://host/site", "objects are not written to hdfs://; name a folder, s3://, gs:// or az://"),
        ("s3://key:secret@sites/a", "must not hold credentials; give them in the environment"),
        ("az://container/site", "az://container/site cannot be opened (.*); correct the URL, or the environment"),
        ("s3://sites/a?color=red", "has an option color; give region, endpoint_override or scheme"),
    ):
        with pytest.raises(BadInput, match=sentence):
            open_objects(url).put("a", [b"1"])


def test_open_objects__without_the_package(monkeypatch):
    for name in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=r"run pip install 'ammrank-dask\[object-store\]'"):
        open_objects("s3://other/site")


def test_open_objects__takes_the_endpoint_from_the_environment(server, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    plain = open_objects(bucket.url)
    assert plain.options == ""
    plain.put("a", [b"1"])
    assert bucket.get("a")[0] == b"1"
