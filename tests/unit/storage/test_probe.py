"""What a site needs of a bucket is tried, and what it lacks is named."""

import time
import uuid
from types import SimpleNamespace

import pytest
from s3 import always, serve_s3, slow

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects import probe
from ammrank_dask.storage.objects.posix import open_objects
from ammrank_dask.storage.objects.probe import probe_bucket

NAMES = [
    "permission to list",
    "permission to write",
    "permission to read",
    "conditional writes",
    "clock of the store",
    "speed",
    "no old versions",
    "one site in the prefix",
    "unfinished uploads",
    "permission to delete",
]


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running:
        for name in ("sites", "versions"):
            running.make_bucket(name)
        running.keep_versions("versions")
        yield running


@pytest.fixture
def bucket(server):
    return open_objects(server.url(f"sites/{uuid.uuid4().hex}"))


def probed(objects):
    """Return what was found by name."""
    return {found.name: found for found in probe_bucket(objects)}


def missing(probes):
    return {name for name, found in probes.items() if not found.is_ok}


def test_probe_bucket__a_sound_one_says_yes_to_all_and_nothing_is_left(bucket):
    bucket.put("ammrank.yaml", [b"{}"])
    bucket.put("backtests/.work/ammrank.yaml", [b"{}"])
    probes = probed(bucket)
    assert list(probes) == NAMES
    assert missing(probes) == set()
    assert probes["conditional writes"].detail == "of 8 writers at once one wins"
    assert probes["clock of the store"].detail.endswith(" s against this machine")
    assert "let a rule of the bucket abort those older than a day" in probes["unfinished uploads"].detail
    assert [one.key for one in bucket.list()] == ["ammrank.yaml", "backtests/.work/ammrank.yaml"]


DENIED = "403 Forbidden", "AccessDenied"


@pytest.mark.parametrize(
    ("refused", "answer", "names"),
    [
        (lambda method, path: (method, path) == ("GET", "/sites"), DENIED, {"list"}),
        (lambda method, path: method == "PUT", DENIED, {"write"}),
        (lambda method, path: method == "GET" and path != "/sites", DENIED, {"read"}),
        (lambda method, path: method == "POST", DENIED, {"delete"}),
        (lambda method, path: method in ("PUT", "POST"), DENIED, {"write", "delete"}),
        (lambda method, path: True, DENIED, {"list", "write", "read", "delete"}),
    ],
)
def test_probe_bucket__every_missing_permission_is_named(server, bucket, refused, answer, names):
    with server.faults(lambda method, path: answer if refused(method, path) else None):
        probes = probed(bucket)
    assert missing(probes) == {f"permission to {name}" for name in names}
    for name in names:
        assert "refuses the credentials of this process" in probes[f"permission to {name}"].detail
        assert probes[f"permission to {name}"].is_needed


def test_probe_bucket__a_policy_that_forbids_to_delete(server):
    """The store answers 200, and says of each object that it is still there."""
    server.make_bucket("kept")
    server.deny("kept", "s3:DeleteObject")
    probes = probed(open_objects(server.url("kept/site")))
    assert missing(probes) == {"permission to delete"}
    assert "refuses the credentials of this process" in probes["permission to delete"].detail


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (("400 Bad Request", "ExpiredToken"), "the store refuses the credentials of this process .*; renew them"),
        (("403 Forbidden", "InvalidAccessKeyId"), "the store refuses the credentials of this process"),
        (
            ("403 Forbidden", "RequestTimeTooSkewed"),
            "the clocks of this machine and of the store differ; set it by NTP",
        ),
        (("404 Not Found", "NoSuchBucket"), "there is no bucket s3://sites; correct the URL s3://sites/"),
    ],
    ids=["expired", "unknown key", "clock", "no bucket"],
)
def test_probe_bucket__what_no_permission_mends_is_one_sentence(server, bucket, answer, sentence):
    with server.faults(always(*answer)), pytest.raises(BadInput, match=sentence) as raised:
        probed(bucket)
    assert "\n" not in str(raised.value)


def test_probe_bucket__a_store_that_replaces_in_spite_of_a_condition(bucket, monkeypatch):
    plain = type(bucket).put
    monkeypatch.setattr(type(bucket), "put_if", lambda self, key, data, tag: plain(self, key, [data]))
    found = probed(bucket)["conditional writes"]
    assert not found.is_ok
    assert found.is_needed
    assert found.detail == "8 of 8 writers at once replaced an object: two runs would mix; use another store"


def test_probe_bucket__a_store_without_conditional_writes(server, bucket):
    not_there = always("501 Not Implemented", "NotImplemented")
    with server.faults(lambda method, path: not_there(method, path) if path.endswith("/other") else None):
        found = probed(bucket)["conditional writes"]
    assert not found.is_ok
    assert "the store does not have what a site needs" in found.detail


def test_probe_bucket__a_clock_one_hour_off(bucket, monkeypatch):
    # Only in this module: timers of the event loops of this process would wait for an hour.
    late = SimpleNamespace(time=lambda: time.time() - 3600, perf_counter=time.perf_counter)
    monkeypatch.setattr(probe, "time", late)
    found = probed(bucket)["clock of the store"]
    assert not found.is_ok
    assert found.detail.endswith(" s against this machine; set both by NTP")
    assert int(found.detail.split()[0]) == pytest.approx(3600, abs=5)


def test_probe_bucket__speed_of_a_slow_store(server, bucket):
    with server.faults(slow(0.05)):
        found = probed(bucket)["speed"]
    assert found.is_ok
    milliseconds, _, rest = found.detail.partition(" ms a request, writes ")
    assert int(milliseconds) >= 50
    assert rest.count(" MB/s") == 2


def test_probe_bucket__versions_are_a_warning(server):
    found = probed(open_objects(server.url("versions/site")))["no old versions"]
    assert not found.is_ok
    assert not found.is_needed
    assert "users whom `ammrank forget` removes stay in them until a rule expires them" in found.detail


@pytest.mark.parametrize("other", ["inside/ammrank.yaml", "deep/in/it/ammrank.yaml"])
def test_probe_bucket__a_site_in_a_site(server, bucket, other):
    bucket.put(other, [b"{}"])
    found = probed(bucket)["one site in the prefix"]
    assert not found.is_ok
    assert found.detail == f"{bucket}/{other} is of another one; give each a prefix of its own"
    inside = open_objects(server.url(f"{bucket.url.removeprefix('s3://')}/one/more"))
    assert probed(inside)["one site in the prefix"].is_ok
    bucket.put("ammrank.yaml", [b"{}"])
    assert probed(inside)["one site in the prefix"].detail.startswith(f"{bucket}/ammrank.yaml is of another one")
