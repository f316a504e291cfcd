"""Recognise a night that was run before, on hand-made sites: no cluster, no stage."""

import dataclasses
import datetime as dt
import json
import os
import shutil

import numpy as np
import pytest

from ammrank_dask.storage.objects.atomic import bytes_below
from ammrank_dask.storage.site.run_log import write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.parts import write_part
from ammrank_dask.storage.store.registry import STATE
from ammrank_dask.storage.store.runs import finish_run
from ammrank_dask.workflows.session.config import check_config
from ammrank_dask.workflows.stages.rerun_check import digest_inputs, find_unchanged

DATE = dt.date(2026, 3, 2)
BEFORE = DATE - dt.timedelta(1)
FILES = {
    "lake/events/date=2026-03-01/a.parquet": b"first",
    "lake/events/date=2026-03-02/a.parquet": b"second",
    "lake/users.parquet": b"users",
    "lake/taxonomy.csv": b"category,parent\n",
    "out.txt": b"17\n",
}
CONFIG = {
    "lake": {"events": "lake/events", "users": "lake/users.parquet", "taxonomy": "lake/taxonomy.csv"},
    "score": {"suppress": "out.txt"},
    "partitions": 1,
}


def config_of(**changes):
    return check_config({**CONFIG, **changes}, "test")


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_state(path, n_parts):
    facts = []
    for partition in range(n_parts):
        ids = ids_from_values(np.array([partition])).to_arrays()
        cells = {"cell": np.ones(1, np.uint16), "intensity": np.ones(1), "last": np.ones(1, np.int64)}
        facts.append(write_part(path, partition, STATE, {**ids, "indptr": np.array([0, 1]), **cells}))
    finish_run(path, STATE.kind, "abc", facts, config={}, inputs=[])


@pytest.fixture
def site(tmp_path):
    """A site of two published nights, as far as their records and the sizes of their results tell."""
    for name, data in FILES.items():
        write(tmp_path / name, data)
    site = Site(tmp_path)
    for date in (BEFORE, DATE):
        head = site.run("state", date, "abc")
        quals = site.qualifications_folder(date)
        write_state(head, n_parts=1)
        write(quals / "manifest.json", b"{}")
        runs = {"head": head, "qualifications": quals}
        site.publish(date, runs)
        attempt = {
            "date": str(date),
            "started": "2026-03-03T00:00:00",
            "status": "done",
            "facts": {"users": 3, "published": True},
            **digest_inputs(site, config_of(), date)._asdict(),
            "runs": {role: site.relative(path) for role, path in runs.items()},
            "bytes": {role: bytes_below(path) for role, path in runs.items()},
        }
        write_attempt(site.run_folder(date), attempt)
    return site


def test_find_unchanged__the_published_night(site):
    assert find_unchanged(site, config_of(), DATE) == {"users": 3, "published": True, "unchanged": True}


def test_find_unchanged__a_site_that_was_moved_names_its_present_paths(site, tmp_path_factory):
    record = site.run_folder(DATE) / "run.json"
    attempt = json.loads(record.read_text())
    attempt["facts"]["qualifications"] = str(site.qualifications_folder(DATE))
    record.write_text(json.dumps(attempt))
    moved = Site(tmp_path_factory.mktemp("moved") / "site")
    shutil.move(site.path, moved.path)
    unchanged = find_unchanged(moved, config_of(), DATE)
    assert unchanged["qualifications"] == str(moved.qualifications_folder(DATE))
    assert str(site.path) not in json.dumps(unchanged)


def test_find_unchanged__an_earlier_night_needs_its_results_only(site):
    os.unlink(site.run("state", BEFORE, "abc") / "manifest.json")  # what is pruned after the next night
    assert find_unchanged(site, config_of(), BEFORE) == {"users": 3, "published": False, "unchanged": True}


def test_find_unchanged__a_night_never_run(site):
    assert find_unchanged(site, config_of(), DATE + dt.timedelta(1)) is None


@pytest.mark.parametrize("name", FILES)
def test_find_unchanged__an_input_of_other_bytes(site, name):
    write(site.path / name, FILES[name] + b"more")
    assert find_unchanged(site, config_of(), DATE) is None


def test_find_unchanged__an_input_written_again_later(site):
    path = site.path / "lake/events/date=2026-03-01/a.parquet"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert find_unchanged(site, config_of(), DATE) is None


@pytest.mark.parametrize(
    "name", ["lake/events/date=2026-03-02/b.parquet", "lake/events/date=2026-02-28/a.parquet", "forgotten.json"]
)
def test_find_unchanged__a_new_input(site, name):
    write(site.path / name, b"new")
    assert find_unchanged(site, config_of(), DATE) is None


def test_find_unchanged__days_after_the_date_are_no_input(site):
    write(site.path / "lake/events/date=2026-03-03/a.parquet", b"third")
    assert find_unchanged(site, config_of(), DATE) is not None


def test_find_unchanged__another_setting(site):
    assert find_unchanged(site, config_of(alpha=0.5), DATE) is None


def test_find_unchanged__other_categories_leave_an_earlier_night_as_it_is(site):
    write(site.path / "lake/taxonomy.csv", b"category,parent\nnew,\n")
    write(site.path / "categories.csv", b"category\nnew\n")
    renamed = config_of(categories={"old": "new"})
    said = find_unchanged(site, renamed, BEFORE)
    assert said["unchanged"] is True
    assert said["categories"] == "those of then; --rebuild writes the night again with those of now"
    assert find_unchanged(site, renamed, DATE) is None
    assert find_unchanged(site, config_of(categories={"old": "new"}, alpha=0.5), BEFORE) is None
    write(site.path / "lake/events/date=2026-03-01/a.parquet", b"corrected")
    assert find_unchanged(site, renamed, BEFORE) is None


def test_find_unchanged__another_number_of_partitions_in_the_config_alone(site):
    for date in (BEFORE, DATE):
        assert find_unchanged(site, config_of(partitions=2), date) is None


def test_find_unchanged__a_night_before_the_site_was_placed_in_other_partitions(site):
    head = site.run("state", DATE, "abc")
    shutil.rmtree(head)
    write_state(head, n_parts=2)
    assert find_unchanged(site, config_of(partitions=2), BEFORE) is not None
    assert find_unchanged(site, config_of(), BEFORE) is None


@pytest.mark.parametrize("name", ["part-00000.arrow", "manifest.json"])
def test_find_unchanged__a_result_that_is_not_whole(site, name):
    os.unlink(site.run("state", DATE, "abc") / name)
    assert find_unchanged(site, config_of(), DATE) is None


def test_find_unchanged__a_report_without_its_checksums(site):
    path = site.run_folder(DATE) / "run.json"
    record = json.loads(path.read_text())
    record["runs"]["report"] = site.relative(site.report_folder(DATE))
    path.write_text(json.dumps(record))
    current = site.root()
    runs = {**current.runs, "report": record["runs"]["report"]}
    (site.path / "ROOT").write_bytes(dataclasses.replace(current, runs=runs).encode())
    assert find_unchanged(site, config_of(), DATE) is None


@pytest.mark.parametrize("change", [{"status": "failed"}, {"inputs": "other"}, {"runs": {"head": "state/other"}}])
def test_find_unchanged__a_record_of_something_else(site, change):
    path = site.run_folder(DATE) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert find_unchanged(site, config_of(), DATE) is None


def test_find_unchanged__a_record_of_an_earlier_version(site):
    path = site.run_folder(DATE) / "run.json"
    record = json.loads(path.read_text())
    for key in ("inputs", "runs"):
        del record[key]
    path.write_text(json.dumps(record))
    assert find_unchanged(site, config_of(), DATE) is None
