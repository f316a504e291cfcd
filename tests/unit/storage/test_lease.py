"""One run at a time has a site: on a folder by a lock, in a bucket by a lease that its holder renews."""

import json
import signal
import threading
import time
import uuid
from dataclasses import replace

import pytest
from holding import holder
from s3 import always, serve_s3

from ammrank_dask.storage.errors import BadInput, SiteBusy, StoreFailed
from ammrank_dask.storage.objects import store
from ammrank_dask.storage.objects.objects import Conflict
from ammrank_dask.storage.objects.posix import PosixObjects, open_objects
from ammrank_dask.storage.site.lease import find_holder, hold
from ammrank_dask.storage.site.root import Root, move_root, read_root

SECONDS = 1.5
"""How long a lease lasts in these tests."""


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running:
        running.make_bucket("sites")
        yield running


@pytest.fixture(autouse=True)
def short_lease(monkeypatch):
    monkeypatch.setenv("AMMRANK_LEASE_SECONDS", str(SECONDS))


@pytest.fixture
def where(server):
    return server.url(f"sites/{uuid.uuid4().hex}")


@pytest.fixture
def bucket(where):
    return open_objects(where)


@pytest.fixture(params=["posix", "bucket"])
def objects(request, tmp_path):
    """An empty site of each kind."""
    return PosixObjects(tmp_path) if request.param == "posix" else request.getfixturevalue("bucket")


def in_lock(objects):
    return json.loads(objects.get("LOCK")[0])


def publish(objects):
    root, tag = read_root(objects)
    move_root(objects, replace(root or Root(), kept=(*(root or Root()).kept, "state/a")), tag)


def test_hold__a_second_run_is_refused_and_a_later_one_not(objects):
    assert find_holder(objects) is None
    with hold(objects):
        publish(objects)
        with pytest.raises(SiteBusy, match=f"another run holds {objects}"), hold(objects):
            pass
        assert ", process " in str(find_holder(objects))
        assert str(find_holder(objects)).endswith(" UTC")
    assert find_holder(objects) is None
    with hold(objects):
        publish(objects)
    assert read_root(objects)[0].kept == ("state/a", "state/a")


def test_hold__a_second_run_learns_from_the_next_renewal_who_holds_the_bucket(bucket):
    with hold(bucket):
        began = time.monotonic()
        with pytest.raises(
            SiteBusy, match=r"holds s3://.* \(.*@.*, process \d+, since .* UTC\); wait for it or stop it"
        ):
            hold(bucket).__enter__()
        assert time.monotonic() - began < SECONDS / 3 + 5


def test_hold__every_holder_has_an_epoch_and_stamps_root(bucket):
    with hold(bucket):
        first = in_lock(bucket)["epoch"]
        assert read_root(bucket)[0].epoch == first
        time.sleep(SECONDS)  # it is renewed
        assert in_lock(bucket)["epoch"] == first
    assert in_lock(bucket)["free"]
    with hold(bucket):
        assert in_lock(bucket)["epoch"] == read_root(bucket)[0].epoch == first + 1
    bucket.delete(["LOCK"])
    with hold(bucket):
        assert read_root(bucket)[0].epoch > first + 1


@pytest.mark.parametrize("kind", ["posix", "bucket"])
def test_hold__a_killed_run_is_followed_at_the_end_of_its_lease(where, tmp_path, kind):
    where = str(tmp_path) if kind == "posix" else where
    with holder(where, 1) as process:
        process.kill()
        process.wait()
        began = time.monotonic()
        with hold(open_objects(where)):
            seconds = time.monotonic() - began
    assert seconds < 1 if kind == "posix" else SECONDS / 2 < seconds < SECONDS + 5


def test_hold__a_run_that_was_stopped_for_longer_changes_nothing_and_exits_75(where, bucket):
    with holder(where, 1) as process:
        process.send_signal(signal.SIGSTOP)
        with hold(bucket):
            publish(bucket)
            before = bucket.get("ROOT")
            process.stdin.write("publish\n")
            process.send_signal(signal.SIGCONT)
            assert process.wait(30) == 75
            said = process.stderr.read()
            assert "could not renew its lease of s3://" in said or "ROOT was written by another run" in said
            assert bucket.get("ROOT") == before
            assert not in_lock(bucket)["free"]
    assert len(list(bucket.list("roots/"))) == 3


def test_hold__a_run_that_was_stopped_goes_on_where_nobody_took_the_site(where, bucket):
    with holder(where, 7) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(2 * SECONDS)
        process.stdin.write("publish\n")
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "published\n"
        process.stdin.close()
        assert process.wait(30) == 0
    assert read_root(bucket)[0].date.day == 7


def test_hold__a_lost_lease_ends_every_write(bucket):
    with hold(bucket):
        bucket.delete(["LOCK"])
        time.sleep(SECONDS)
        for write in (
            lambda: bucket.put("a", [b"1"]),
            lambda: bucket.put_if("a", b"1", None),
            lambda: bucket.copy("ROOT", "a"),
            lambda: bucket.delete(["ROOT"]),
        ):
            with pytest.raises(SiteBusy, match=r"could not renew its lease of s3://.*; what is published is"):
                write()
        assert read_root(bucket)[0].epoch
    assert [one.key for one in bucket.list()] == ["ROOT", "roots/000001.json"]
    assert store.GUARDS == {}


def test_hold__a_store_that_is_away_for_a_moment_costs_nothing(server, bucket):
    with hold(bucket):
        with server.faults(lambda method, path: ("503 Slow Down", "SlowDown") if path.endswith("LOCK") else None):
            time.sleep(SECONDS)
        publish(bucket)
    assert read_root(bucket)[0].kept == ("state/a",)


def test_hold__nothing_is_written_while_the_lease_cannot_be_renewed(server, bucket):
    with (
        hold(bucket),
        server.faults(lambda method, path: always("503 Away", "Away")(method, path) if "LOCK" in path else None),
    ):
        time.sleep(SECONDS)
        del server.requests[:]
        with pytest.raises(SiteBusy, match="could not renew its lease"):
            bucket.put("a", [b"1"])
        assert not [path for method, path in server.requests if not path.endswith("LOCK")]


def test_move_root__of_a_holder_before_the_one_that_stamped_root(bucket):
    with hold(bucket):
        root, _ = read_root(bucket)
        bucket.put("ROOT", [replace(root, epoch=root.epoch + 1).encode()])  # a successor, after a jump of our clock
        with pytest.raises(Conflict, match="ROOT was written by another run meanwhile"):
            publish(bucket)
        assert read_root(bucket)[0].kept == ()


@pytest.mark.parametrize("clock", ["1970-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"])
def test_hold__times_that_a_holder_writes_do_not_count(bucket, clock):
    stop = threading.Event()
    with hold(bucket):
        content = in_lock(bucket)

    def renew():
        number = 0
        while not stop.wait(SECONDS / 3):
            number += 1
            bucket.put(
                "LOCK", [json.dumps({**content, "free": False, "renewed": clock, "write": str(number)}).encode()]
            )

    thread = threading.Thread(target=renew)
    thread.start()
    time.sleep(SECONDS / 2)
    with pytest.raises(SiteBusy, match="another run holds"):
        hold(bucket).__enter__()
    stop.set()
    thread.join()
    with hold(bucket):
        assert in_lock(bucket)["epoch"] == content["epoch"] + 1


def test_hold__what_is_no_lease_is_named(bucket):
    for data in (b"{", b"[]", b'{"color": 1}'):
        bucket.put("LOCK", [data])
        with pytest.raises(BadInput, match="LOCK is not what was written; remove it once no run is going on"):
            hold(bucket).__enter__()


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (("403 Forbidden", "AccessDenied"), BadInput, "the store refuses the credentials"),
        (("500 Oops", "InternalError"), StoreFailed, "cannot be reached"),
        (("412 Precondition Failed", "PreconditionFailed"), Conflict, "takes no conditional writes at present"),
    ],
    ids=["no permission", "broken", "no conditional writes"],
)
def test_hold__a_store_that_does_not_write(server, bucket, answer, error, sentence):
    with (
        server.faults(lambda method, path: answer if method == "PUT" else None),
        pytest.raises(error, match=sentence),
    ):
        hold(bucket).__enter__()
    assert store.GUARDS == {}
    with hold(bucket):
        publish(bucket)


def test_hold__a_store_that_takes_no_notice_of_conditions(bucket, monkeypatch):
    plain = type(bucket).put
    monkeypatch.setattr(type(bucket), "put_if", lambda self, key, data, tag: plain(self, key, [data]))
    with pytest.raises(BadInput, match="the store replaces objects in spite of a condition, and two runs would mix"):
        hold(bucket).__enter__()
    assert [one.key for one in bucket.list()] == ["LOCK"]
