"""`ammrank check`: yes or no for all that a site needs of its file system and its workers."""

import errno
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from lakes import replace_by
from s3 import serve_s3

from ammrank_dask.storage.objects import probe
from ammrank_dask.workflows.check import command
from ammrank_dask.workflows.cluster import checks

NAMES = [
    "lock",
    "exchange of two names",
    "hard link",
    "sync of a folder",
    "clock of the file system",
    "lake",
    "versions of the scheduler",
    "workers answer",
    "common view of the site",
    "versions of the workers",
    "clocks of the workers",
    "one type of CPU",
    "memory of the workers",
]


def check(site, cluster_file, *more):
    return CliRunner().invoke(command, [str(site.path), "--cluster", str(cluster_file), *more])


def test_check__a_sound_site_says_yes_to_all_and_leaves_nothing(site, cluster_file):
    before = sorted(path.name for path in site.path.iterdir())
    done = check(site, cluster_file)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split("  ")[1].split(":")[0] for line in lines] == NAMES
    assert {line.split()[0] for line in lines} == {"yes"}
    assert lines[4].endswith("clock of the file system: +0 s against this machine")
    assert sorted(path.name for path in site.path.iterdir()) == before
    listed = json.loads(check(site, cluster_file, "--json").stdout)["checks"]
    assert [(one["name"], one["ok"]) for one in listed] == [(name, True) for name in NAMES]


def test_check__a_missing_lake_is_named_as_that(site, cluster_file):
    text = site.config_path.read_text()
    site.config_path.write_text(re.sub(r"events: \S+", "events: nowhere/events", text, count=1))
    done = check(site, cluster_file)
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if "nowhere" in line]
    assert line.startswith("no   lake: ")
    assert "memory of the workers" not in done.output


def test_check__what_is_needed_and_missing_exits_1(site, cluster_file, monkeypatch):
    def none(*arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(probe.os, "link", none)
    monkeypatch.setattr(probe, "sync_folder", none)
    monkeypatch.setattr(probe, "exchange_names", lambda *names: False)
    done = check(site, cluster_file)
    assert done.exit_code == 1
    assert "no   sync of a folder: Operation not supported: fsync of a folder must work" in done.stdout
    assert "no   hard link: Operation not supported: forget, repartition and backtest copy files" in done.stdout
    assert "no   exchange of two names: three renames instead of one; a crash" in done.stdout
    assert done.stderr.endswith(f"the site at {site.path} cannot run nights yet: sync of a folder\n")


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("name", ["taxonomy.csv", "users.parquet"])
def test_check__what_is_no_regular_file_is_named_and_not_waited_for(site, cluster_file, name):
    path = site.path.parent / "lake" / name
    replace_by(path, "fifo")
    done = check(site, cluster_file)
    assert done.exit_code == 1
    assert f"{name} must be a regular file, found a named pipe; replace or remove it" in done.stdout


@pytest.mark.parametrize(("hours", "way"), [(1, "ahead of"), (-1, "behind")])
def test_check__a_clock_one_hour_off(site, cluster_file, monkeypatch, hours, way):
    ask = checks.inspect_worker

    def wrong_clock(*arguments):
        found = ask(*arguments)
        return replace(found, ahead=found.ahead + 3600 * hours)

    monkeypatch.setattr(checks, "inspect_worker", wrong_clock)
    done = check(site, cluster_file)
    assert done.exit_code == 1
    assert f"s {way} that of this machine; set both by NTP" in done.stdout
    assert "cannot run nights yet: clocks of the workers" in done.stderr


def test_check__no_site(tmp_path, cluster_file):
    done = CliRunner().invoke(command, [str(tmp_path / "none"), "--cluster", str(cluster_file)])
    assert done.exit_code == 65
    assert "there is no site at" in done.stderr


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running:
        running.make_bucket("sites")
        running.make_bucket("kept")
        running.deny("kept", "s3:DeleteObject")
        yield running


def test_check__a_bucket_that_can_hold_a_site(server):
    done = CliRunner().invoke(command, [server.url("sites/shop")])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["yes"] * 10
    assert "yes  conditional writes: of 8 writers at once one wins" in done.stdout
    listed = json.loads(CliRunner().invoke(command, [server.url("sites/shop"), "--json"]).stdout)["checks"]
    assert [one["name"] for one in listed if one["needed"]] == [
        "permission to list", "permission to write", "permission to read", "conditional writes", "clock of the store",
        "one site in the prefix", "permission to delete",
    ]  # fmt: skip


def test_check__a_bucket_that_can_not(server):
    done = CliRunner().invoke(command, [server.url("kept/shop")])
    assert done.exit_code == 1
    assert "no   permission to delete: s3://kept/shop: the store refuses the credentials" in done.stdout
    assert done.stderr.endswith("cannot run nights yet: permission to delete\n")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "there is no bucket s3://nowhere; correct the URL s3://nowhere/shop"),
        (("400 Bad Request", "ExpiredToken"), "the store refuses the credentials of this process"),
    ],
    ids=["no bucket", "expired"],
)
def test_check__a_bucket_that_cannot_be_opened(server, answer, sentence):
    with server.faults(lambda method, path: answer):
        done = CliRunner().invoke(command, [server.url("nowhere/shop")])
    assert done.exit_code == 65
    assert sentence in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
